"""Bytes of a model's weights as they lie on the device while text is generated: whole, or quantized.

- In 8 bits as transformers' FineGrainedFP8Config makes them and as DeepSeek-V3 is published: the linear layers and the
  experts have one byte a value, and a 32-bit scale for each square of 128 x 128 values.
- In 4 bits as bitsandbytes makes them (NF4 with double quantization; see `calculator.parts.adapters.quantized_parts`):
  the linear layers. Experts stay whole, because transformers keeps those of a layer in one tensor.
- In MXFP4 as gpt-oss is published: the experts have 4 bits a value, and an 8-bit scale for each 32 values.

Embeddings, norms, biases, the router of experts and the output head stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, ParameterTensor
from calculator.parts.adapters import quantized_parts
from calculator.parts.parameters import parameter_tensors
from calculator.tape.autograd import allocated_bytes

WHOLE = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a value of weights that are not quantized, by the name of their type."""
FP8, NF4, MXFP4 = "fp8", "nf4", "mxfp4"
STORED = (*WHOLE, FP8, NF4, MXFP4)
MXFP4_BLOCK = 32
"""Values that share a scale of 8 bits (Open Compute Project, Microscaling Formats 1.0, section 5.2)."""
SQUARE = 128
"""Rows and columns that share a scale (transformers 5.23, FineGrainedFP8Config.weight_block_size)."""


@lru_cache(maxsize=64)
def stored_bytes(architecture: Architecture, kind: str) -> int:
    """Bytes of all parameters and buffers, in the allocator's blocks.

    Args:
        architecture: The model.
        kind: One of `STORED`.

    Raises:
        BadSetup: If the kind is none of these, or not for this model.
    """
    if kind not in STORED:
        raise BadSetup(f"weights is one of {', '.join(STORED)}, not {kind!r:.60}.")
    if not can_be_stored(architecture, kind):
        raise BadSetup(f"{architecture.name} has no linear layers that {kind} quantizes; choose bf16 or {NF4}.")
    itemsize = WHOLE.get(kind, 2)
    held = sum(
        tensor.copies * sum(allocated_bytes(count, size) for count, size in _parts(tensor, kind, itemsize))
        for tensor in parameter_tensors(architecture)
    )
    return held + family_of(architecture).buffer_bytes(architecture, itemsize)


def can_be_stored(architecture: Architecture, kind: str) -> bool:
    """Returns True if a model's weights can be of a kind in `STORED`."""
    if kind == MXFP4:
        return architecture.mxfp4
    family = family_of(architecture)
    # FP8 looks for nn.Linear; a model whose weights are (in, out) has transformers' Conv1D in its place.
    return kind in WHOLE or (family.generates and not (kind == FP8 and family.input_first))


def unpacked_bytes(architecture: Architecture, kind: str) -> int:
    """Bytes that the largest layer takes for a moment while a prompt is read: bitsandbytes unpacks it to 16 bits."""
    if kind != NF4:
        return 0
    return max(2 * tensor.count for tensor in parameter_tensors(architecture) if _is_linear(tensor))


def _parts(tensor: ParameterTensor, kind: str, itemsize: int) -> Iterator[tuple[int, int]]:
    """Yields the number of values, and the bytes of one, of each tensor in which a parameter is stored."""
    linear = _is_linear(tensor)
    if kind == NF4 and linear:
        yield from quantized_parts(tensor.count)
    elif kind == MXFP4 and _is_of_experts(tensor):
        yield tensor.count // 2, 1
        yield tensor.count // MXFP4_BLOCK, 1
    elif kind == FP8 and (linear or _is_of_experts(tensor)):
        *experts, rows, columns = tensor.shape
        yield tensor.count, 1
        yield prod(experts) * -(-rows // SQUARE) * -(-columns // SQUARE), 4
    else:
        yield tensor.count, itemsize


def _is_linear(tensor: ParameterTensor) -> bool:
    """Returns True for the weight of a linear layer, except the head and the router of experts."""
    in_layer = tensor.part in ("attention", "feed-forward")
    return in_layer and len(tensor.shape) == 2 and tensor.name.endswith(".weight") and tensor.name != "router.weight"


def _is_of_experts(tensor: ParameterTensor) -> bool:
    return tensor.name.startswith("experts.") and len(tensor.shape) == 3
