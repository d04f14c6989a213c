"""Text-to-image transformer of the run (paper, section 3.1): the function that dalle-pytorch 1.6.6 computes.

See `training.model.layout` for the legend of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, cycle, islice

import torch
from torch import Tensor, nn
from torch.nn import functional

from calculator.choose.advice import KEPT_ACTIVATION_BYTES
from training.errors import BadInput
from training.model.attention import AttentionPattern
from training.model.blocks import AttentionBlock, FeedForwardBlock
from training.model.config import AttentionType, ModelConfig
from training.model.kernels.fused import FusedPattern
from training.model.kernels.kernel_choice import KernelChoice, Kernels, choose_kernels
from training.model.kernels.pointwise import NORM_EPS
from training.model.layout import Layout
from training.model.reversible import Layer, run_reversible, run_sequential
from training.model.rotary import rotary_angles, rotation_table
from training.model.vocabulary import TiedGradient, embed_tied, output_losses

IMAGE_LOSS_WEIGHT = 7.0
"""Weight of the image tokens' loss; the text's weight is 1, and the sum is divided by the two weights' sum."""
FEED_FORWARD_MULTIPLIER = 4
"""F / D, inner width of the GEGLU feed-forward over the hidden size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """Mean losses of a micro-batch, in nats per token; differentiable scalars."""

    loss: Tensor
    """(text_loss + w * image_loss) / (1 + w) with w = `IMAGE_LOSS_WEIGHT`."""
    text_loss: Tensor
    """Cross entropy of the text tokens, padding included."""
    image_loss: Tensor
    """Cross entropy of the image tokens."""


def initial_layer_scale(layer: int) -> float:
    """Initial value of the layer scales (Touvron et al. 2021, CaiT, table 1) of a layer, counted from 0."""
    return 0.1 if layer < 18 else 1e-5 if layer < 24 else 1e-6


class SharedAttention(nn.Module):
    """Attention matrices that all layers of a group share."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        inner_size = config.num_heads * config.head_dim
        self.qkv = nn.Linear(config.hidden_size, 3 * inner_size, bias=False)
        self.out = nn.Linear(inner_size, config.hidden_size)

    def weights(self) -> tuple[Tensor, ...]:
        """Returns the weights in the order of `AttentionBlock`, between norm and scale."""
        return self.qkv.weight, self.out.weight, self.out.bias


class SharedFeedForward(nn.Module):
    """Feed-forward matrices that all layers of a group share."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        inner_size = config.hidden_size * FEED_FORWARD_MULTIPLIER
        self.inner = nn.Linear(config.hidden_size, 2 * inner_size)
        self.out = nn.Linear(inner_size, config.hidden_size)

    def weights(self) -> tuple[Tensor, ...]:
        """Returns the weights in the order of `FeedForwardBlock`, between norm and scale."""
        return self.inner.weight, self.inner.bias, self.out.weight, self.out.bias


class Branch(nn.Module):
    """Weights that each layer has for itself around a shared block: the norm before it and the scale after it."""

    def __init__(self, hidden_size: int, scale: float):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, eps=NORM_EPS)
        self.scale = nn.Parameter(torch.full((hidden_size,), scale))

    def weights(self, shared: SharedAttention | SharedFeedForward) -> tuple[Tensor, ...]:
        """Returns the weights of one block, in its order."""
        return self.norm.weight, self.norm.bias, *shared.weights(), self.scale


class TextToImageTransformer(nn.Module):
    """Predicts the codes of an image, one by one, from a caption.

    A weight that layers share is one parameter, so that `parameters()` has no duplicates. Build it with `build_model`.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        _check(config)
        self.config = config
        self.layout = Layout(text_len=config.text_seq_len + 1, grid=config.image_grid)
        self.attention_kernels: Kernels | None = None
        """Kernels of attention; None: `choose_kernels` chooses them for the weights' device."""
        self.attention_kinds: tuple[AttentionType, ...] = (
            *islice(cycle(config.attention_cycle), config.num_layers - 1),
            config.last_attention,
        )
        self.group_of_layer = _groups(config)
        """Index of the shared matrices that each layer uses."""
        groups = max(self.group_of_layer) + 1
        width, layers = config.hidden_size, range(config.num_layers)
        self.attention = nn.ModuleList(SharedAttention(config) for _ in range(groups))
        self.feed_forward = nn.ModuleList(SharedFeedForward(config) for _ in range(groups))
        self.attention_branches = nn.ModuleList(Branch(width, initial_layer_scale(layer)) for layer in layers)
        self.feed_forward_branches = nn.ModuleList(Branch(width, initial_layer_scale(layer)) for layer in layers)
        self.final_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.output = nn.Linear(width, self.text_rows + config.image_vocab_size)
        if not config.tied_embeddings:
            self.text_embedding = nn.Embedding(self.text_rows, width)
            self.image_embedding = nn.Embedding(config.image_vocab_size, width)
        if not config.rotary:
            self.text_positions = nn.Parameter(torch.randn(self.layout.text_len, width))
            self.row_positions = nn.Parameter(torch.randn(config.image_grid, width))
            self.column_positions = nn.Parameter(torch.randn(config.image_grid, width))
        self._kernel_choices: dict[tuple, KernelChoice] = {}
        self._patterns: dict[tuple, dict[AttentionType, AttentionPattern]] = {}
        self._rotations: dict[tuple, Tensor] = {}

    def get_output_embeddings(self) -> nn.Linear:
        """Returns the output layer; models of transformers have this method too; see `training.optim.groups`."""
        return self.output

    @property
    def text_rows(self) -> int:
        """Number of vocabulary rows of text: the tokenizer's ids, then one padding id per position."""
        return self.config.text_vocab_size + self.config.text_seq_len

    def forward(self, text: Tensor, codes: Tensor, *, stored_layers: int | None = None) -> Losses:
        """Computes the losses of a micro-batch.

        Args:
            text: Token ids (B, text_seq_len), where 0 is padding.
            codes: Image codes (B, I), row by row.
            stored_layers: Number of layers, counted from the last, that keep their activations for backward (see the
                method `stored_layers`); None: as many as fit `usual_activation_budget`.

        Raises:
            BadInput: If a shape does not fit the recipe.
        """
        self._check_input(text, codes)
        tied = TiedGradient() if self.config.tied_embeddings else None
        hidden = self._run_layers(text, self.embed(text, codes, tied=tied), stored_layers)
        text_loss, image_loss = output_losses(
            self.final_norm(hidden),
            self.output.weight,
            self.output.bias,
            self.text_ids(text),
            codes,
            text_rows=self.text_rows,
            dtype=self._compute_dtype(),
            tied=tied,
        )
        weight = IMAGE_LOSS_WEIGHT
        return Losses(loss=(text_loss + weight * image_loss) / (1 + weight), text_loss=text_loss, image_loss=image_loss)

    def logits(self, text: Tensor, codes: Tensor) -> Tensor:
        """Computes the logits (B, text_seq_len + I, V) of each next token, text rows before image rows.

        Text positions cannot predict image codes, nor image positions text: those logits are `-finfo.max`.
        """
        hidden = self.final_norm(self.hidden_states(text, codes))[:, :-1]
        split = self.config.text_seq_len
        logits = hidden.new_full((*hidden.shape[:2], self.output.out_features), -torch.finfo(hidden.dtype).max)
        logits[:, :split, : self.text_rows] = self.text_logits(hidden[:, :split])
        logits[:, split:, self.text_rows :] = self.image_logits(hidden[:, split:])
        return logits

    def hidden_states(self, text: Tensor, codes: Tensor | None, *, stored_layers: int | None = None) -> Tensor:
        """Computes the residual stream after the last layer, before the final norm.

        Args:
            text: Token ids (B, text_seq_len).
            codes: Image codes (B, I), or None for the text alone.
            stored_layers: Number of layers that keep their activations; see `forward`.

        Returns:
            Hidden states (B, X + I, D) or (B, X, D): bos, text, image. The last one predicts nothing if the image is
            whole.
        """
        self._check_input(text, codes)
        return self._run_layers(text, self.embed(text, codes), stored_layers)

    def _run_layers(self, text: Tensor, hidden: Tensor, stored_layers: int | None) -> Tensor:
        layers, weights = self.layers(text, self._compute_dtype())
        if stored_layers is None:
            stored_layers = self.stored_layers(text.shape[0], usual_activation_budget(self.config))
        run = run_reversible if self.config.reversible else run_sequential
        with torch.autocast(hidden.device.type, enabled=False):  # blocks cast by themselves
            return run(hidden.to(self.final_norm.weight.dtype), layers, weights, stored_layers=stored_layers)

    def activation_bytes(self, micro_batch_size: int, dtype: torch.dtype | None = None) -> list[int]:
        """Bytes that each layer keeps for backward if its activations are kept.

        Args:
            micro_batch_size: B, samples per forward pass.
            dtype: Type in which layers compute; None: that of the current autocast.
        """
        config, length, dtype = self.config, self.layout.length, dtype or self._compute_dtype()
        inner, feed_forward = config.num_heads * config.head_dim, config.hidden_size * FEED_FORWARD_MULTIPLIER
        # For each token: the inputs of both blocks, and two numbers from each norm.
        streams = length * (2 * config.hidden_size + 4)
        # The norms' outputs; qkv and the merged heads; values, gates, gelu and product of the feed-forward.
        computed = length * (2 * config.hidden_size + 4 * inner + 4 * feed_forward)
        patterns = self.patterns(dtype)
        return [
            micro_batch_size
            * (
                streams * self.final_norm.weight.element_size()
                + (computed + config.num_heads * patterns[kind].score_count) * dtype.itemsize
            )
            for kind in self.attention_kinds
        ]

    def text_ids(self, text: Tensor) -> Tensor:
        """Returns vocabulary ids of the text: padding becomes `text_padding_id`, or text_vocab_size + i at position
        i."""
        padding = self.config.text_padding_id
        if not padding:
            padding = torch.arange(text.shape[1], device=text.device) + self.config.text_vocab_size
        return torch.where(text == 0, padding, text)

    def embed(self, text: Tensor, codes: Tensor | None, *, tied: TiedGradient | None = None) -> Tensor:
        """Computes the input of the first layer: embeddings of bos (id 0), text and codes.

        Args:
            text: Token ids (B, text_seq_len).
            codes: Image codes (B, I), or None for the text alone.
            tied: Receives the gradient of the output matrix in a training step; None: no training.
        """
        ids = functional.pad(self.text_ids(text), (1, 0))
        positions = None if self.config.rotary else self.text_positions
        if codes is None:
            hidden = functional.embedding(ids, self._embedding_tables()[0])
        else:
            if self.config.tied_embeddings:
                ids = torch.cat([ids, codes + self.text_rows], dim=1)
                hidden = embed_tied(ids, self.output.weight, tied or TiedGradient())
            else:
                hidden = torch.cat([self.text_embedding(ids), self.image_embedding(codes)], dim=1)
            if positions is not None:
                positions = torch.cat([positions, self._image_positions()])
        return hidden if positions is None else hidden + positions

    def embed_codes(self, codes: Tensor, start: int) -> Tensor:
        """Computes embeddings (B, n, D) of codes (B, n) whose positions in the image begin at `start`."""
        hidden = functional.embedding(codes, self._embedding_tables()[1])
        if not self.config.rotary:
            hidden = hidden + self._image_positions()[start : start + codes.shape[1]]
        return hidden

    def _image_positions(self) -> Tensor:
        return (self.row_positions[:, None] + self.column_positions).flatten(0, 1)

    def text_logits(self, normed: Tensor) -> Tensor:
        """Computes the logits (..., text_rows) of the next text token."""
        return functional.linear(normed, self.output.weight[: self.text_rows], self.output.bias[: self.text_rows])

    def image_logits(self, normed: Tensor) -> Tensor:
        """Computes the logits (..., image_vocab_size) of the next image code."""
        return functional.linear(normed, self.output.weight[self.text_rows :], self.output.bias[self.text_rows :])

    def layers(self, text: Tensor, dtype: torch.dtype) -> tuple[list[Layer], list[Tensor]]:
        """Returns the layers as the stacks run them, and the list of all weights without duplicates.

        Args:
            text: Token ids (B, text_seq_len).
            dtype: Type in which blocks compute.
        """
        shift = self.layout if self.config.shift_tokens else None
        patterns, rotation = self.patterns(dtype), self.rotation()
        bias = self._text_key_bias(text, dtype)
        weights: list[Tensor] = []
        index_of: dict[int, int] = {}

        def indices(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
            # By identity: layers share tensors, and the stack takes each of them once.
            for tensor in tensors:
                if id(tensor) not in index_of:
                    index_of[id(tensor)] = len(weights)
                    weights.append(tensor)
            return tuple(index_of[id(tensor)] for tensor in tensors)

        feed_forward = FeedForwardBlock(shift, dtype)
        attention = {
            kind: AttentionBlock(pattern, shift, rotation, self.config.num_heads, bias, dtype)
            for kind, pattern in patterns.items()
        }
        layers = [
            Layer(
                attention[kind],
                indices(self.attention_branches[layer].weights(self.attention[group])),
                feed_forward,
                indices(self.feed_forward_branches[layer].weights(self.feed_forward[group])),
            )
            for layer, (kind, group) in enumerate(zip(self.attention_kinds, self.group_of_layer, strict=True))
        ]
        return layers, weights

    def patterns(self, dtype: torch.dtype) -> dict[AttentionType, AttentionPattern]:
        """Returns the attention masks in use, on the weights' device."""
        kernels = self.kernel_choice(dtype).kernels
        key = (self.final_norm.weight.device, dtype, kernels)
        if key not in self._patterns:
            with torch.inference_mode(False):  # sampling may make them first, and training uses the same masks
                reference = self.final_norm.weight.new_empty((), dtype=dtype)
                common = (self.layout, reference)
                self._patterns[key] = {
                    kind: FusedPattern(kind, *common, self.config.num_heads)
                    if kernels == "fused"
                    else AttentionPattern(kind, *common)
                    for kind in set(self.attention_kinds)
                }
        return self._patterns[key]

    def kernel_choice(self, dtype: torch.dtype) -> KernelChoice:
        """Kernels of attention in this type on the weights' device; chosen at the first call."""
        if self.attention_kernels is not None:
            return KernelChoice(kernels=self.attention_kernels, reason="as it was set")
        reference, config = self.final_norm.weight.new_empty((), dtype=dtype), self.config
        key = (reference.device, dtype)
        if key not in self._kernel_choices:
            self._kernel_choices[key] = choose_kernels(
                reference,
                self.attention_kinds,
                self.layout,
                num_heads=config.num_heads,
                head_dim=config.head_dim,
            )
        return self._kernel_choices[key]

    def rotation(self) -> Tensor:
        """Returns the `rotation_table`, on the device and in the type of the weights."""
        reference = self.final_norm.weight
        key = (reference.device, reference.dtype)
        if key not in self._rotations:
            angles = rotary_angles(self.layout, self.config.head_dim) if self.config.rotary else None
            table = rotation_table(angles, self.layout, self.config.head_dim, reference.dtype)
            self._rotations[key] = table.to(reference.device)
        return self._rotations[key]

    def _embedding_tables(self) -> tuple[Tensor, Tensor]:
        if self.config.tied_embeddings:
            return self.output.weight[: self.text_rows], self.output.weight[self.text_rows :]
        return self.text_embedding.weight, self.image_embedding.weight

    def stored_layers(
        self, micro_batch_size: int, activation_budget_bytes: int | None, dtype: torch.dtype | None = None
    ) -> int:
        """Counts the layers, from the last, that can keep their activations within a budget; see `activation_bytes`.

        Backward needs the activations. A layer that keeps its own saves a fourth of its time. The other layers are
        computed again: reversible layers from their outputs, others from their inputs, which are kept (activation
        checkpointing).

        Args:
            micro_batch_size: B, samples per forward pass.
            activation_budget_bytes: Bytes that may be kept; None keeps all activations, 0 none.
            dtype: Type in which layers compute; None: that of the current autocast.
        """
        if activation_budget_bytes is None:
            return self.config.num_layers
        totals = accumulate(reversed(self.activation_bytes(micro_batch_size, dtype)))
        return sum(total <= activation_budget_bytes for total in totals)

    def _compute_dtype(self) -> torch.dtype:
        """Type of the weights, or a lower one under autocast."""
        reference = self.final_norm.weight
        if reference.device.type != "meta" and torch.is_autocast_enabled(reference.device.type):
            return torch.get_autocast_dtype(reference.device.type)
        return reference.dtype

    def _text_key_bias(self, text: Tensor, dtype: torch.dtype) -> Tensor | None:
        if not self.config.text_padding_id:
            return None
        padding = functional.pad(text == 0, (1, 0))
        bias = torch.zeros(padding.shape, device=text.device, dtype=dtype)
        return bias.masked_fill_(padding, float("-inf")).repeat_interleave(self.config.num_heads, dim=0)[:, None]

    def _check_input(self, text: Tensor, codes: Tensor | None) -> None:
        config = self.config
        if text.dim() != 2 or text.shape[1] != config.text_seq_len:
            raise BadInput(
                f"Text of shape {tuple(text.shape)}; the model takes (B, {config.text_seq_len}).",
                cure="Prepare the shards again with the run's recipe.",
            )
        if codes is not None and codes.shape != (text.shape[0], config.image_seq_len):
            raise BadInput(
                f"Codes of shape {tuple(codes.shape)}; with this text the model takes "
                f"({text.shape[0]}, {config.image_seq_len}).",
                cure="Prepare the shards again with the run's recipe.",
            )


def usual_activation_budget(config: ModelConfig) -> int | None:
    """Default budget of activations in bytes, None for all; see `TextToImageTransformer.stored_layers`."""
    return KEPT_ACTIVATION_BYTES if config.reversible else None


def build_model(config: ModelConfig, seed: int) -> TextToImageTransformer:
    """Builds the model with initial weights that depend only on the seed; the global random state does not change.

    Matrices and biases are uniform within +-1 / sqrt(inputs), norms 1 and 0, as in dalle-pytorch 1.6.6.

    Raises:
        BadInput: If the recipe's sizes do not fit together.
    """
    # No devices: the weights are made on the CPU, and forking a GPU's random state would initialize CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TextToImageTransformer(config)


def _groups(config: ModelConfig) -> list[int]:
    """Index of each layer's group: layers use the shared groups in turn, and the last layer has its own group."""
    last = config.num_layers - 1
    if config.shared_groups is None:
        return list(range(config.num_layers))
    return [layer % config.shared_groups for layer in range(last)] + [min(config.shared_groups, last)]


def _check(config: ModelConfig) -> None:
    if config.text_padding_id >= config.text_vocab_size:
        raise BadInput(
            f"model.text_padding_id is {config.text_padding_id}; give one of the {config.text_vocab_size} text ids."
        )
    if config.hidden_size % 4:
        raise BadInput(
            f"model.hidden_size is {config.hidden_size}; the token shift needs a multiple of 4.",
            cure="Change it in the recipe.",
        )
    if config.head_dim % 2 or config.head_dim < 6:
        raise BadInput(
            f"model.head_dim is {config.head_dim}; rotary embeddings need an even number of at least 6.",
            cure="Change it in the recipe.",
        )
