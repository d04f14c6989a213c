"""The `[model]` table of a recipe that trains the text-to-image transformer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from training.section import Count, Layers, Positive, Section

AttentionType = Literal["full", "row", "column", "conv"]


class ModelConfig(Section):
    """Settings of the text-to-image transformer (paper, section 3.1)."""

    hidden_size: Positive
    """D, width of the residual stream."""
    num_layers: Layers
    """L, number of computed layers; each is one attention and one feed-forward block."""
    num_heads: Positive
    """N, number of attention heads."""
    head_dim: Positive
    """H, width of one head."""
    attention_cycle: Annotated[tuple[AttentionType, ...], Field(min_length=1)] = ("row", "column", "row", "row")
    """Attention masks of all layers but the last, in turn."""
    last_attention: AttentionType = "conv"
    """Attention mask of the last layer."""
    shared_groups: Positive | None = 4
    """Number of groups of layers that share weights: layer i belongs to group i mod this number. The last layer has
    weights of its own. None: no sharing."""
    text_vocab_size: Positive
    """Number of the tokenizer's text ids; the model appends one padding id for each position."""
    text_seq_len: Positive
    """Number of text tokens per sample, padding included."""
    image_grid: Positive
    """G, side of the square of image tokens."""
    image_vocab_size: Positive
    """Number of entries of the image codec's codebook."""
    reversible: bool = True
    """True for reversible layers (Bruegger et al. 2019), whose activations are recomputed from the output and not
    kept."""
    rotary: bool = True
    """True for rotary position embeddings (Su et al. 2021) of text, row and column."""
    shift_tokens: bool = True
    """True if each block gets part of its channels from the previous token (text) or the tokens above and left
    (image)."""
    tied_embeddings: bool = True
    """True if input and output embeddings are one matrix (Press and Wolf 2016)."""
    text_padding_id: Count = 0
    """Id that pads the text. 0: each position has its own padding id, to which others attend (dalle-pytorch 1.6.6).
    Otherwise this id, such as 1, T5's `</s>`, which attention ignores (the 2021 run's fork, whose weights never saw the
    ids of positions)."""

    @property
    def image_seq_len(self) -> int:
        """Number of image tokens per sample."""
        return self.image_grid**2

    @property
    def seq_len(self) -> int:
        """T, number of tokens per sample, text and image together."""
        return self.text_seq_len + self.image_seq_len
