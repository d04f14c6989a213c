"""LoRA: a frozen model with small trained matrices beside its linear layers (Hu et al. 2021, arXiv:2106.09685).

peft adds to a linear layer y = W x the term (alpha / r) B A dropout(x), where A has the shape (r, in) and B (out, r).
W stays as it is, in 32 or 16 bits, or in 4 bits as bitsandbytes quantizes it for QLoRA (Dettmers et al. 2023,
arXiv:2305.14314): NF4 in blocks of 64 values, whose scales are quantized again (double quantization).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from calculator.families.family import DECODER_MODULES
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, ParameterTensor
from calculator.parts.parameters import parameter_tensors
from calculator.tape.autograd import allocated_bytes

ALL_LINEAR = "all-linear"
NF4_BLOCK, SCALES_BLOCK = 64, 256
"""Values that share a scale, and scales that share one of their own (bitsandbytes 0.50, functional.quantize_4bit)."""
NF4_CODE, DYNAMIC_CODE = 16, 256
"""32-bit values of the two maps from codes to numbers; each weight has its own copies."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Settings with which adapters are trained beside a frozen model."""

    rank: int
    targets: frozenset[str]
    """Linear modules that have an adapter, by our names."""
    dropout: float
    """Probability with which the adapters' inputs are dropped."""
    adapter_itemsize: int
    """Bytes of a trained value."""
    base_bits: int
    """Bits of a frozen value in a layer's linear modules."""
    rest_itemsize: int
    """Bytes of any other frozen value: embeddings, norms and head."""
    freeze_a: bool = False
    """True if A stays as it was drawn, and only B is trained (arXiv:2308.03303, arXiv:2403.12313)."""
    input_first: bool = False
    """True if the weights are stored as (in, out)."""
    in_32_bits: frozenset[str] = frozenset()
    """Frozen modules that are in 32 bits whatever the others are."""

    def itemsize(self, name: str) -> int:
        """Bytes of a value with which a frozen parameter computes."""
        if name.removesuffix(".weight") in self.in_32_bits:
            return 4
        # bitsandbytes' forward casts a bias to the precision in which it multiplies, for good (Linear4bit.forward).
        return 2 if self.base_bits == 4 and name.rpartition(".")[0] in DECODER_MODULES else self.rest_itemsize

    def is_quantized(self, name: str) -> bool:
        """Returns True if a parameter is stored in 4 bits."""
        return self.base_bits == 4 and name.endswith(".weight") and name.rpartition(".")[0] in DECODER_MODULES

    def widths(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Values of a module's input and of its output, from the shape of its weight."""
        first, second = shape
        return (first, second) if self.input_first else (second, first)

    def has_adapter(self, name: str) -> bool:
        """Returns True for the weight of a module with an adapter."""
        return name.removesuffix(".weight") in self.targets  # T5's have no biases, and no names that tell weights apart


def modules_of(architecture: Architecture) -> dict[str, tuple[str, ...]]:
    """The linear modules: their names in transformers or diffusers, each with ours, in the model's order.

    Those of a decoder are its layers', of a mixture those of attention; of a diffusion transformer they are all, as
    peft's "all-linear" means.
    """
    matrices = [t.name.removesuffix(".weight") for t in parameter_tensors(architecture) if len(t.shape) == 2]
    names = family_of(architecture).modules(architecture)
    modules: dict[str, tuple[str, ...]] = {}
    for own in matrices:
        if own in names:
            modules[names[own]] = (*modules.get(names[own], ()), own)
    return modules


@lru_cache(maxsize=256)
def chosen_modules(architecture: Architecture, targets: str) -> frozenset[str]:
    """Our names of the modules that get an adapter.

    Args:
        architecture: The model.
        targets: "all-linear", or ends of modules' paths with commas between them, which peft compares in the same way.

    Raises:
        KeyError: If one of the targets matches no module.
    """
    modules = modules_of(architecture)
    chosen: set[str] = set()
    for target in modules if targets == ALL_LINEAR else targets.split(","):
        end = f".{target.strip()}"
        found = [own for path, names in modules.items() if f".{path}".endswith(end) for own in names]
        if not found:
            raise KeyError(target)
        chosen.update(found)
    return frozenset(chosen)


def frozen_blocks(tensor: ParameterTensor, lora: Lora) -> list[int]:
    """Bytes of each block that one frozen parameter takes: one, or six if it is quantized; and of its A, if frozen."""
    parts = [(tensor.count, lora.itemsize(tensor.name))]
    if lora.is_quantized(tensor.name):
        parts = list(quantized_parts(tensor.count))
    if keeps_a(tensor, lora):
        parts.append((adapter_matrices(tensor, lora)[0].count, lora.adapter_itemsize))
    return [allocated_bytes(count, itemsize) for count, itemsize in parts]


def quantized_parts(count: int) -> Iterator[tuple[int, int]]:
    """Values and bytes of a value of each tensor of an NF4 weight with double quantization.

    Args:
        count: Values of the weight.
    """
    blocks = -(-count // NF4_BLOCK)
    yield -(-count // 2), 1  # two codes in a byte
    yield blocks, 1  # scales
    yield -(-blocks // SCALES_BLOCK), 4  # scales of the scales
    yield 1, 4  # the mean of the scales, which is subtracted before they are quantized
    yield NF4_CODE, 4
    yield DYNAMIC_CODE, 4


def adapter_tensors(architecture: Architecture, lora: Lora) -> tuple[ParameterTensor, ...]:
    """Every kind of trained tensor, in the order of the real model: A and B of each module, layer by layer."""
    tensors = []
    for tensor in parameter_tensors(architecture):
        if lora.has_adapter(tensor.name):
            tensors += adapter_matrices(tensor, lora)[lora.freeze_a :]
    return tuple(tensors)


def adapter_values(architecture: Architecture, lora: Lora) -> int:
    """The number of values that are trained."""
    return sum(tensor.copies * tensor.count for tensor in adapter_tensors(architecture, lora))


def frozen_adapter_values(architecture: Architecture, lora: Lora) -> int:
    """The number of values of the matrices A that are not trained."""
    kept = [tensor for tensor in parameter_tensors(architecture) if keeps_a(tensor, lora)]
    return sum(tensor.copies * adapter_matrices(tensor, lora)[0].count for tensor in kept)


def keeps_a(tensor: ParameterTensor, lora: Lora) -> bool:
    """Returns True if a parameter's adapter has a matrix A that is not trained."""
    return lora.freeze_a and lora.has_adapter(tensor.name)


def adapter_matrices(tensor: ParameterTensor, lora: Lora) -> tuple[ParameterTensor, ParameterTensor]:
    """A and B beside the weight of a module, which is `tensor`."""
    inner, outer = lora.widths(tensor.shape)
    module = tensor.name.removesuffix(".weight")
    return (
        ParameterTensor(f"{module}.lora_a", "adapters", (lora.rank, inner), tensor.copies),
        ParameterTensor(f"{module}.lora_b", "adapters", (outer, lora.rank), tensor.copies),
    )
