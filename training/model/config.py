"""The `[model]` of a recipe that trains the text-to-image transformer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from training.section import Count, Layers, Positive, Section

AttentionType = Literal["full", "row", "column", "conv"]


class ModelConfig(Section):
    """The text-to-image transformer (paper, section 3.1)."""

    hidden_size: Positive
    """D, width of the residual stream."""
    num_layers: Layers
    """L, layers computed; each is one attention and one feed-forward block."""
    num_heads: Positive
    """N, attention heads."""
    head_dim: Positive
    """H, width of one head."""
    attention_cycle: Annotated[tuple[AttentionType, ...], Field(min_length=1)] = ("row", "column", "row", "row")
    """Attention masks, repeated over all layers but the last."""
    last_attention: AttentionType = "conv"
    """Attention mask of the last layer."""
    shared_groups: Positive | None = 4
    """Layers i and j share weights if i mod this = j mod this; the last layer has its own. None: no sharing."""
    text_vocab_size: Positive
    """Text ids of the tokenizer; the model appends one padding id for each position."""
    text_seq_len: Positive
    """Text tokens per sample, padding included."""
    image_grid: Positive
    """Side of the square of image tokens."""
    image_vocab_size: Positive
    """Entries of the image codec's codebook."""
    reversible: bool = True
    """Reversible layers (Bruegger et al. 2019): activations are recomputed from the output instead of kept."""
    rotary: bool = True
    """Rotary position embeddings (Su et al. 2021) for text, row and column."""
    shift_tokens: bool = True
    """Each block sees part of its channels from the previous token (text) or the tokens above and left (image)."""
    tied_embeddings: bool = True
    """Input and output embeddings are one matrix (Press and Wolf 2016)."""
    text_padding_id: Count = 0
    """Id that pads the text. 0: a different id for each position, which attention sees (dalle-pytorch 1.6.6). Otherwise
    this id, such as 1, T5's `</s>`, and attention ignores it (the 2021 run's fork, whose weights never saw the ids of
    positions)."""

    @property
    def image_seq_len(self) -> int:
        """Image tokens per sample."""
        return self.image_grid**2

    @property
    def seq_len(self) -> int:
        """T, tokens per sample, text and image together."""
        return self.text_seq_len + self.image_seq_len
