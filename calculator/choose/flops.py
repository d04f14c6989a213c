"""Floating-point operations per sample, and the samples per second that a GPU reaches."""

from __future__ import annotations

from functools import lru_cache

from calculator.choose.devices import Device
from calculator.errors import BadSetup
from calculator.families.pictures.text_to_image import Layout, layout
from calculator.models.architectures import Architecture
from calculator.parts.parameters import parameter_tensors

DECODERS = ("gpt2", "gptj", "llama", "gemma", "mixture", "deepseek")
"""Families that generate text token by token with one stack."""
UTILISATION = 0.3
"""Fraction of a GPU's published peak that training reaches. The INTELLECT-1 run reached 36 to 41 % on data-centre GPUs
(arXiv:2412.01152, abstract). A reversible model computes its layers four times where three are counted, and 3/4 of that
is 27 to 31 %. Measure yours: the trainer prints its samples per second."""
LAYER_SECONDS = 1e-3
"""Time to launch a layer's kernels in forward, backward and recomputation: some 200 kernels of 5 microseconds each.
Assumed; it limits small models on large GPUs."""


@lru_cache(maxsize=64)
def forward_flops(architecture: Architecture, length: int | None = None) -> int:
    """Operations of one sample's forward pass: 2 for each weight and token, and those of each attended pair of tokens.

    Masked pairs and recomputation do not count, and of a mixture's experts only those that compute a token.

    Args:
        architecture: The model.
        length: Tokens of a sequence, of a diffusion model those of its text; None: the model's own length.

    Raises:
        BadSetup: For families other than the run's own and decoders.
    """
    if architecture.family == "text-to-image":
        return _text_to_image_flops(architecture)
    if architecture.family == "vit":
        return _vit_flops(architecture)
    if architecture.diffuses:
        return _diffusion_flops(architecture, length or architecture.sequence_length)
    if architecture.family not in DECODERS:
        raise BadSetup(
            f"Operations are counted for text-to-image and diffusion models, vision transformers and decoders, not for "
            f"{architecture.name}."
        )
    return _decoder_flops(architecture, length or architecture.sequence_length)


def _decoder_flops(a: Architecture, length: int) -> int:
    weights = a.vocab_size * a.hidden_size if a.tied_embeddings else 0
    for tensor in parameter_tensors(a):
        if len(tensor.shape) < 2 or tensor.part == "embeddings":
            continue
        used = tensor.count
        if tensor.name.startswith("experts."):
            used = tensor.count // a.num_experts * a.experts_per_token
        weights += tensor.copies * used
    widths = a.num_heads * (a.head_dim + (a.value_dim or a.head_dim))
    kinds = [a.attention_kind(layer) for layer in range(a.num_layers)]
    pairs = sum(_causal_pairs(length, a.sliding_window if "sliding" in kind else length) for kind in kinds)
    return 2 * weights * length + 2 * widths * pairs


def _causal_pairs(length: int, window: int) -> int:
    """Pairs of tokens of which one sees the other, itself and at most `window` - 1 before it.

    >>> _causal_pairs(4, 4), _causal_pairs(4, 2)
    (10, 7)
    """
    window = min(window, length)
    return window * (window + 1) // 2 + (length - window) * window


def _vit_flops(a: Architecture) -> int:
    """Every token sees every other; the class's token is not a patch, and it alone is classified."""
    shapes = [tensor for tensor in parameter_tensors(a) if len(tensor.shape) >= 2]
    layers = sum(tensor.copies * tensor.count for tensor in shapes if tensor.part in ("attention", "feed-forward"))
    patches = a.hidden_size * a.channels * a.patch_size**2 * (a.sequence_length - 1)
    pairs = a.num_layers * a.sequence_length**2
    return 2 * (layers * a.sequence_length + patches + a.num_labels * a.hidden_size) + (
        4 * a.num_heads * a.head_dim * pairs
    )


def _diffusion_flops(a: Architecture, length: int) -> int:
    """Text and picture have weights of their own or share some; what makes scales and shifts runs once a sample."""
    both = length + a.image_tokens
    streams = {"picture": a.image_tokens, "alone": a.image_tokens, "text": length}
    total = 0
    for tensor in parameter_tensors(a):
        if len(tensor.shape) < 2:
            continue
        part, stream, *_ = tensor.name.split(".")
        times = streams.get(stream, both)
        if part in ("condition", "norm"):
            times = 1
        elif part in ("patches", "head"):
            times = a.image_tokens
        elif part == "text":
            times = length
        total += 2 * tensor.copies * tensor.count * times
    alone = sum(kind in ("dual", "end") for kind in a.attention_cycle)
    return total + 4 * a.hidden_size * (a.num_layers * both**2 + alone * a.image_tokens**2)


def _text_to_image_flops(a: Architecture) -> int:
    place, inner, tokens = layout(a), a.num_heads * a.head_dim, a.sequence_length
    # Queries, keys, values and output; the two halves of the gated inner matrix, and the outer one.
    weights = 4 * a.hidden_size * inner + 3 * a.hidden_size * a.intermediate_size
    pairs = [_pairs(place, a.attention_kind(layer), a.conv_kernel_size) for layer in range(a.num_layers)]
    # Text positions compute only logits of text, image positions only those of the image.
    text = a.text_length * (a.vocab_size - a.image_vocab_size)
    head = 2 * a.hidden_size * (text + place.image * a.image_vocab_size)
    return sum(2 * weights * tokens + 4 * inner * seen for seen in pairs) + head


@lru_cache(maxsize=256)
def _pairs(place: Layout, kind: str, kernel: int) -> int:
    """Pairs of tokens of which one attends to the other; the last token predicts nothing and is left out.

    Each token attends to the text up to itself; image tokens attend to the image as the mask says
    (training/model/attention.py, `allowed_pairs`).
    """
    text, grid = place.text, place.grid
    seen = text * (text + 1) // 2 + (place.image - 1) * text
    for number in range(place.image - 1):
        row, column = divmod(number, grid)
        if kind == "row":
            seen += column + 1
        elif kind == "column":
            seen += row + 1
        elif kind == "conv":
            seen += (min(row, kernel - 1) + 1) * (min(column, kernel - 1) + 1)
        else:
            seen += number + 1
    return seen


def samples_per_second(
    architecture: Architecture,
    device: Device,
    utilisation: float = UTILISATION,
    micro_batch_size: float | None = None,
    *,
    length: int | None = None,
    frozen: bool = False,
) -> float:
    """Samples per second, each with the operations of three forward passes, at a fraction of the published peak.

    Backward computes the gradients of activations and those of weights, each with the operations of a forward pass; of
    frozen weights it computes none.

    Args:
        architecture: A model whose operations `forward_flops` counts.
        device: A GPU with a published peak.
        utilisation: The fraction of the peak that training reaches.
        micro_batch_size: Samples per pass, which share the time to launch kernels, or this GPU's part of them; None: so
            many that it is negligible.
        length: See `forward_flops`.
        frozen: Whether only adapters are trained, whose own operations are few.

    Raises:
        BadSetup: If no peak is published for the device.
    """
    if device.teraflops is None:
        raise BadSetup(f"No speed is published for {device.title} in 16-bit products; give samples a second instead.")
    if not 0 < utilisation <= 1:
        raise BadSetup(f"The share of a GPU's peak is above 0 and at most 1, not {utilisation}.")
    starting = architecture.num_layers * LAYER_SECONDS / micro_batch_size if micro_batch_size else 0.0
    passes = 2 if frozen else 3
    return 1 / (passes * forward_flops(architecture, length) / (device.teraflops * 1e12 * utilisation) + starting)
