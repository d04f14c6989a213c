"""The answer to a setup: bytes on the device, on the host and over the bus, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Bytes on the device at the peak of the step."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    """Gradients of the parameters, as far as they exist at the peak."""
    optimizer_state: int
    activations: int
    """Tensors kept for backward, the inputs, and autocast's copies of weights."""
    temporary: int
    """Memory that the operation at the peak uses only while it runs."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.weights + self.gradients + self.optimizer_state + self.activations + self.temporary


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Bytes on the host, without the process itself and network buffers."""

    parameters: int
    """The 32-bit copy that the optimizer updates."""
    gradients: int
    """Gradients in 32 bits, averaged or accumulated."""
    optimizer_state: int
    delta_rule: int
    """The additional copy of the parameters that hivemind's delta rule keeps."""
    activations: int = 0
    """Tensors kept for backward, if the host keeps them."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.parameters + self.gradients + self.optimizer_state + self.delta_rule + self.activations


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The instant at which the device holds the most."""

    phase: str
    """"forward", "backward" or "optimizer"."""
    instant: str
    """One sentence: the instant and the largest parts."""


class StepInstant(NamedTuple):
    """The highest instant of one stretch of the step. The parts, as in `GpuMemory`, add up to `bytes`."""

    phase: str
    """"forward", "backward" or "optimizer"."""
    place: str
    """The place in the model, for people: "layer 12", "output head and loss"."""
    instant: str
    """The operation; empty if `place` says enough."""
    bytes: int
    """Everything that the device holds at that instant."""
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    temporary: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Bytes that cross the bus in one optimizer step."""

    bytes_per_step: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The answer to a setup. `as_dict` is its JSON form."""

    model: str
    gpus: int
    """GPUs that train together; all other figures are those of one, the fullest."""
    parameters: int
    """Number of all parameters, LoRA's adapters included."""
    parameters_by_part: dict[str, int]
    trained_parameters: int
    """Number of trained parameters: all, or LoRA's adapters."""
    gpu: GpuMemory
    saved_activations: int
    """Bytes kept for backward at the end of forward, without autocast's copies of weights."""
    autocast_weight_copies: int
    """16-bit copies of weights kept for backward at the end of forward."""
    gradient_bytes: int
    """All gradients of the parameters on the device."""
    optimizer_state_bytes: int
    """Optimizer state on the device."""
    host: HostMemory
    peak: Peak
    timeline: tuple[StepInstant, ...]
    transfer: Transfer
    overhead: dict[str, int]
    """Memory that no figure of PyTorch's allocator includes, by name; `gpu.total` does not include it."""
    notes: tuple[str, ...]
    """Sentences about what is counted differently than the setup may suggest."""

    def as_dict(self) -> dict:
        """The result as plain data."""
        result = as_plain(self)
        for name in ("gpu", "host"):
            part = result[name]
            result[name] = {**as_plain(part), "total": part.total}
        for name in ("peak", "transfer"):
            result[name] = as_plain(result[name])
        result["timeline"] = [instant._asdict() for instant in self.timeline]
        result["notes"] = list(self.notes)
        return result


def as_plain(record: object) -> dict:
    """Names and values of a dataclass; unlike `asdict`, it does not copy the values."""
    return {name: getattr(record, name) for name in record.__slots__}
