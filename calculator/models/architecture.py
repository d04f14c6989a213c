"""The sizes that decide a model's memory, and its parameters as groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that belong together: those outside of the layers, or those in each layer of a stack."""

    stack: str
    """"layers", "encoder" or "decoder"; empty outside of the layers."""
    shapes: Mapping[str, tuple[int, ...]]
    shareable: bool = True
    """True if layers that share weights use the same copy."""
    only: str = ""
    """A word in the kinds of the layers that have these parameters; empty: all layers have them."""


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """A parameter, and how many layers have one like it."""

    name: str
    part: str
    """One of `calculator.parts.parameters.PARTS`."""
    shape: tuple[int, ...]
    copies: int
    """Number of stored copies: one for each layer, or fewer where layers share weights."""

    @property
    def count(self) -> int:
        """Number of values of one copy."""
        return prod(self.shape)

    @property
    def is_embedding(self) -> bool:
        """True if it is the table of a `torch.nn.Embedding`, T5's relative position bias included."""
        # Patches of a picture, and a diffusion model's inputs, are embedded by products.
        is_table = self.part == "embeddings" and self.name.startswith("embedding.")
        return is_table or "relative_bias" in self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearAttention:
    """Attention that keeps a state of constant size in place of past keys and values (gated delta net)."""

    key_heads: int
    """Heads of keys, and of queries."""
    value_heads: int
    """Heads of values, several of which may use a head of keys."""
    key_dim: int
    """Width of a head of keys."""
    value_dim: int
    """Width of a head of values."""
    kernel_size: int
    """Tokens that the convolution of queries, keys and values sees."""
    joined: bool
    """True if one matrix makes queries, keys, values and gate of the input (Qwen3-Next), not two."""

    @property
    def channels(self) -> int:
        """Numbers per token that go through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerCache:
    """Cache of one layer for a sequence while text is generated."""

    values_per_token: int = 0
    """Values cached for each token."""
    window: int = 0
    """The most tokens that are cached; 0: all."""
    state_values: int = 0
    """Values of a state of constant size, in the precision of the model."""
    precise_values: int = 0
    """Values of a state of constant size, in 32 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedLayer:
    """A kind of layer of a model whose training is not counted: its parameters and its cache."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes of its parameters; the names follow `calculator.parts.parameters.part_of`."""
    cache: LayerCache = LayerCache()
    buffers: int = 0
    """32-bit values of its tables that are not trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Parameters and caches of a model whose training is not counted, as its reader lists them."""

    outside: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes of the parameters outside of the layers."""
    layers: tuple[tuple[str, ListedLayer], ...]
    """The kinds of layers, by their names in `Architecture.attention_cycle`."""
    rotations: tuple[int, ...]
    """Rotated channels of each set of frequencies of rotary embeddings."""
    scales: int = 0
    """Single numbers that are stored in the precision of the model."""

    def layer(self, kind: str) -> ListedLayer:
        """The layer of a kind."""
        return dict(self.layers)[kind]


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The sizes that decide a model's memory."""

    name: str
    family: str
    """A name of `calculator.families.registry.FAMILIES`."""
    hidden_size: int
    """D, width of the residual stream."""
    num_layers: int
    """L, layers; of the encoder, if there are two stacks."""
    num_heads: int
    """N, attention heads."""
    head_dim: int
    """H, width of a head."""
    intermediate_size: int
    """F, inner width of the feed-forward."""
    vocab_size: int
    """V, rows of the token embedding."""
    sequence_length: int
    """Tokens per sequence, unless a setup says otherwise; of the encoder, if there are two stacks."""
    max_positions: int = 0
    """Rows of the position table. Without a table: tokens for which the model was trained;
    0 if it has no such length."""
    num_decoder_layers: int = 0
    """Layers of the decoder (T5)."""
    target_length: int = 0
    """Tokens per sequence of the decoder (T5), unless a setup says otherwise."""
    num_key_value_heads: int = 0
    """K, heads of keys and values, each of which several query heads use; 0: as many as query heads."""
    activation: str = "gelu_new"
    """The feed-forward's function: "relu", "silu", "gelu", "gelu_tanh" (one kernel each) or "gelu_new" (composed of
    separate operations)."""
    gated: bool = False
    """True if the feed-forward multiplies by a second projection (GEGLU, T5 v1.1)."""
    projection_bias: bool = False
    """True if the projections to queries, keys and values have a bias (Qwen2)."""
    output_bias: bool = False
    """True if the projection of the attended values has a bias."""
    feed_forward_bias: bool = False
    """True if the feed-forward has biases (of families where that is a choice)."""
    head_norms: bool = False
    """True if queries and keys are normalized head by head (Qwen3)."""
    norms_after: bool = False
    """True if the results of attention and feed-forward are normalized before they are added (Gemma 2)."""
    softcap: bool = False
    """True if a tanh bounds attention scores (Gemma 2)."""
    fusable: bool = True
    """True if the model's code has fused attention."""
    logit_softcap: bool = False
    """True if a tanh bounds the logits."""
    logit_scale: bool = False
    """True if the logits are multiplied by a number (Command R)."""
    joined_projections: bool = False
    """True if queries, keys and values come from one matrix, and gate and values of the feed-forward too (Phi-3)."""
    sliding_window: int = 0
    """Tokens that a "sliding" layer attends to."""
    spare_mask: bool = False
    """True if there is a mask for "full" layers, too, though all are "sliding" (Qwen2, Qwen3, SmolLM3)."""
    linear: LinearAttention | None = None
    """The attention of "linear" layers (Qwen3-Next, Qwen3.5)."""
    listing: Listing | None = None
    """Parameters and caches of a model whose training is not counted; None: its family counts them."""
    dropout: float = 0.1
    """The model's own probability in the residual stream."""
    attention_dropout: float = 0.1
    """The model's own probability on attention weights."""
    tied_embeddings: bool = True
    """True if the output head is the token embedding."""
    token_types: int = 0
    """Rows of the token type embedding (BERT)."""
    rotary_dim: int = 0
    """Channels of a head that are rotated."""
    long_rotation: bool = False
    """True if rotary embeddings have other frequencies for long sequences (longrope)."""
    num_experts: int = 0
    """E, experts of a layer."""
    experts_per_token: int = 0
    """Experts that compute each token."""
    expert_size: int = 0
    """Inner width of an expert."""
    shared_experts: int = 0
    """Experts that compute every token (DeepSeek)."""
    shared_size: int = 0
    """Inner width of the expert that computes every token, if it is not `expert_size` (Qwen2-MoE)."""
    mxfp4: bool = False
    """True if the experts are published in MXFP4 (gpt-oss)."""
    expert_groups: int = 0
    """Groups of experts, of which only some are open to a token (DeepSeek)."""
    open_groups: int = 0
    """Groups of experts that are open to a token."""
    query_rank: int = 0
    """Width to which queries are compressed (DeepSeek); 0: they are not."""
    latent_dim: int = 0
    """Width to which keys and values are compressed together (DeepSeek)."""
    value_dim: int = 0
    """Width of a head of values, if it is not `head_dim`."""
    interleaved: bool = True
    """True if rotation pairs neighbouring channels (DeepSeek)."""
    scaled_choice: bool = True
    """True if the weights of a token's experts are divided by their sum."""
    relative_buckets: int = 0
    """Rows of the relative position bias (T5)."""
    text_length: int = 0
    """Text tokens per sample (text-to-image); the rest of the sequence is image tokens."""
    image_vocab_size: int = 0
    """Entries of the codebook (text-to-image)."""
    released: bool = True
    """True if trained weights are published, which a changed model cannot use."""
    shared_groups: int = 0
    """Distinct layer groups of the model itself; 0 where every layer has its own weights."""
    own_last_layer: bool = False
    """True if the last layer has its own weights in addition to the shared groups (text-to-image)."""
    reversible: bool = False
    """True if the model's layers are reversible."""
    attention_cycle: tuple[str, ...] = ()
    """Kinds of layers, repeated over all layers (text-to-image: over all but the last)."""
    last_attention: str = ""
    """Attention mask of the last layer (text-to-image)."""
    image_height: int = 0
    """Pixels of a picture, of models that read pictures."""
    image_width: int = 0
    """Width of a picture in pixels."""
    patch_size: int = 0
    """Pixels of a patch's side; each patch is a token."""
    channels: int = 0
    """Numbers per pixel of a picture that a model reads; for a diffusion model, per pixel of the latents (Stable
    Diffusion 3) or per token (Flux)."""
    output_channels: int = 0
    """Numbers that a diffusion model predicts for each token of the picture."""
    text_width: int = 0
    """Width of the embedded text that a diffusion model reads."""
    pooled_width: int = 0
    """Width of the one vector for the whole text."""
    position_grid: int = 0
    """Rows and columns of the position table, from which a picture's positions are cut (Stable Diffusion 3)."""
    guided: bool = False
    """True if the strength of guidance is an input (Flux-dev)."""
    num_labels: int = 0
    """Classes among which a model chooses (ViT)."""
    conv_kernel_size: int = 0
    """Rows of image tokens that a convolution-like layer attends to (text-to-image)."""

    def attention_kind(self, layer: int) -> str:
        """The kind of a layer, which is its attention mask; empty where all are alike."""
        if not self.attention_cycle:
            return ""
        if self.last_attention and layer == self.num_layers - 1:
            return self.last_attention
        return self.attention_cycle[layer % len(self.attention_cycle)]

    @property
    def fixed_length(self) -> bool:
        """True if a setup cannot choose the number of tokens, apart from those of a diffusion model's text."""
        return bool(self.text_length or self.patch_size)

    @property
    def diffuses(self) -> bool:
        """True if it is a diffusion model of the library diffusers, which reads a text beside noisy latents."""
        return bool(self.output_channels)

    @property
    def image_tokens(self) -> int:
        """Patches of a picture."""
        return (self.image_height // self.patch_size) * (self.image_width // self.patch_size)

    @property
    def mixed(self) -> bool:
        """Returns True if layers have different kinds of weights, so that they cannot share them."""
        return self.diffuses or len({"experts" in kind for kind in self.attention_cycle}) > 1

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_heads
