"""Setup -> Estimate: the memory of one training step on one device and its host. The parts add up by construction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from calculator.architectures import Architecture
from calculator.autograd import allocated_bytes
from calculator.devices import MIB
from calculator.optimizers import ADAMW, IN_32_BIT, OPTIMIZERS, Optimizer
from calculator.parameters import FAMILIES, count_parameters, parameter_tensors, parameters_by_part
from calculator.recording import Levels
from calculator.setups import PCIE_BYTES_PER_SECOND, Setup, resolve
from calculator.timeline import Instant, Options, play

CUDA_CONTEXT_BYTES = 500 * 2**20
"""The driver's own memory, which no figure of PyTorch includes: 300 MiB to 1 GiB, depending on GPU and driver. Other
calculators assume 650 MB (RahulSChand/gpu_poor, src/App.js) and 1000 MiB (furiousteabag/vram-calculator, README)."""
CUBLAS_WORKSPACE_BYTES = 8_519_680
"""Workspace of cuBLAS, once per stream (pytorch, aten/src/ATen/cuda/CUDAContextLight.h, CUBLAS_WORKSPACE_CONFIG)."""

SMALL_BLOCK, SMALL_SEGMENT = MIB, 2 * MIB
LARGE_BLOCK, LARGE_SEGMENT = 10 * MIB, 20 * MIB
SEGMENT_UNIT = 2 * MIB
"""The allocator puts blocks up to `SMALL_BLOCK` into segments of `SMALL_SEGMENT`, and those below `LARGE_BLOCK` into
segments of `LARGE_SEGMENT`; each larger block has a segment of its own, rounded up to `SEGMENT_UNIT` (pytorch,
c10/cuda/CUDACachingAllocator.cpp, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Bytes on the device at the peak of the step."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    """Gradients of the parameters, as far as they exist at the peak."""
    optimizer_state: int
    activations: int
    """Kept for backward, with the inputs and autocast's copies of weights."""
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
    """In 32 bits, averaged or accumulated."""
    optimizer_state: int
    delta_rule: int
    """The additional copy of the parameters that hivemind's delta rule keeps."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.parameters + self.gradients + self.optimizer_state + self.delta_rule


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
    """Where in the model, for people: "layer 12", "output head and loss"."""
    instant: str
    """The operation; empty where it is the place itself."""
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
    parameters: int
    parameters_by_part: dict[str, int]
    gpu: GpuMemory
    saved_activations: int
    """Kept for backward at the end of forward, without autocast's copies of weights."""
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
    """Not in `gpu.total`: memory that no figure of PyTorch's allocator includes."""
    notes: tuple[str, ...]
    """Sentences about what is counted differently than the setup may suggest."""

    def as_dict(self) -> dict:
        """The result as plain data."""
        result = _plain(self)
        for name in ("gpu", "host"):
            part = result[name]
            result[name] = {**_plain(part), "total": part.total}
        for name in ("peak", "transfer"):
            result[name] = _plain(result[name])
        result["timeline"] = [instant._asdict() for instant in self.timeline]
        result["notes"] = list(self.notes)
        return result


def _plain(record: object) -> dict:
    """Names and values of a dataclass; unlike `asdict`, it does not copy the values."""
    return {name: getattr(record, name) for name in record.__slots__}


def estimate(setup: Setup) -> Estimate:
    """The memory of one training step.

    Raises:
        BadSetup: If the setup names something unknown or a combination that cannot exist.

    >>> result = estimate(Setup(model="gpt2", precision="fp32", attention="eager"))
    >>> result.parameters, result.gpu.total == max(instant.bytes for instant in result.timeline)
    (124439808, True)
    """
    architecture = resolve(setup)
    shared = architecture.shared_groups if setup.shared_groups is None else setup.shared_groups
    itemsize = 2 if setup.precision in ("bf16", "fp16") else 4
    optimizer = ADAMW[setup.optimizer_impl] if setup.optimizer == "adamw" else OPTIMIZERS[setup.optimizer]
    fixed = _fixed(architecture, shared, itemsize, optimizer, setup.embeddings_32bit)
    timeline = play(architecture, _options(setup, architecture, shared, itemsize))

    inputs = _input_bytes(setup, architecture)
    state = 0 if setup.offload_optimizer else fixed.state_bytes
    weights = fixed.weight_bytes + _buffer_bytes(setup, architecture)
    # A gradient has its parameter's shape and type, so the gradients of all take as many bytes as the weights.
    accumulated = fixed.weight_bytes if setup.accumulation_steps > 1 else 0
    step = 0 if setup.offload_optimizer else fixed.step_bytes
    after = timeline.after_backward
    # In the update, activations are gone; `after.live` without its gradients is the loss, which stays until the end.
    live = fixed.weight_bytes + step + after.live - after.gradients
    updating = Instant("optimizer", "the update", Levels(live=live, gradients=fixed.weight_bytes))
    instants = [_step_instant(instant, weights, state, inputs, accumulated) for instant in timeline.instants]
    instants.append(_step_instant(updating, weights, state, inputs))
    highest = max(instants, key=lambda instant: instant.bytes)
    gpu = GpuMemory(**{part: getattr(highest, part) for part in GpuMemory.__slots__})
    return Estimate(
        model=architecture.name,
        parameters=count_parameters(architecture, shared),
        parameters_by_part=parameters_by_part(architecture, shared),
        gpu=gpu,
        saved_activations=timeline.after_forward.activations,
        autocast_weight_copies=timeline.after_forward.weight_copies,
        gradient_bytes=fixed.weight_bytes,
        optimizer_state_bytes=state,
        host=_host(setup, fixed, optimizer),
        peak=Peak(phase=highest.phase, instant=_sentence(highest, gpu)),
        timeline=tuple(instants),
        transfer=_transfer(setup, fixed),
        overhead=_overhead(fixed),
        notes=_notes(setup, architecture),
    )


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Sizes that depend only on the parameters."""

    values: int
    tensors: int
    weight_bytes: int
    copy_bytes: int
    """A 32-bit copy of all parameters."""
    state_bytes: int
    host_state_bytes: int
    """State of the same optimizer when it updates the 32-bit copy on the host."""
    paged_bytes: int
    step_bytes: int
    unused_bytes: int
    """The part of the allocator's segments that the weights leave unused."""


@lru_cache(maxsize=1024)
def _fixed(
    architecture: Architecture, shared_groups: int, itemsize: int, optimizer: Optimizer, embeddings_32bit: bool
) -> _Fixed:
    values = tensors = weights = copies = host = paged = whole = largest = 0
    previous = small = medium = unused = 0
    state = optimizer.shared_bytes
    host = optimizer.shared_bytes
    for tensor in parameter_tensors(architecture, shared_groups):
        times, count = tensor.copies, tensor.count
        block = allocated_bytes(count, itemsize)
        values += times * count
        tensors += times
        weights += times * block
        if block <= SMALL_BLOCK:
            small += times * block
        elif block < LARGE_BLOCK:
            medium += times * block
        else:
            unused += times * (-block % SEGMENT_UNIT)
        copies += times * allocated_bytes(count, 4)
        chosen, size = optimizer, itemsize
        if embeddings_32bit and optimizer.name in IN_32_BIT and tensor.is_embedding:
            chosen, size = IN_32_BIT[optimizer.name], 4
        state += times * chosen.state_bytes(tensor, size)
        host += times * chosen.state_bytes(tensor, 4)
        if chosen.paged is not None:
            paged += times * (chosen.paged.bytes_of(count, size) - chosen.state_bytes(tensor, size))
        step = optimizer.step_bytes(tensor, itemsize)
        whole += times * step
        # An optimizer that loops over tensors keeps the last one's temporary under its local name until the next
        # one's is assigned to it, so the two exist at once: the order of the tensors decides the peak.
        largest = max(largest, step + max(previous, optimizer.later_bytes(tensor, itemsize)))
        previous = optimizer.kept_bytes(tensor, itemsize)
    if optimizer.step_counters:
        host += tensors * allocated_bytes(1, 4)
    unused += -small % SMALL_SEGMENT + -medium % LARGE_SEGMENT
    step_bytes = whole if optimizer.whole_step else largest
    return _Fixed(values, tensors, weights, copies, state, host, paged, step_bytes, unused)


def _options(setup: Setup, architecture: Architecture, shared: int, itemsize: int) -> Options:
    return Options(
        batch=setup.micro_batch_size,
        length=setup.sequence_length or architecture.sequence_length,
        target_length=setup.target_length or architecture.target_length,
        autocast=setup.precision.startswith("amp-"),
        itemsize=itemsize,
        half="" if setup.precision == "fp32" else setup.precision.removeprefix("amp-"),
        fused_attention=setup.attention == "sdpa",
        dropout=architecture.dropout if setup.dropout is None else setup.dropout,
        attention_dropout=architecture.attention_dropout if setup.dropout is None else setup.dropout,
        checkpoint_every=int(setup.checkpointing),
        shared_groups=shared,
        reversible=architecture.reversible if setup.reversible is None else setup.reversible,
        accumulating=setup.accumulation_steps > 1,
    )


def _input_bytes(setup: Setup, architecture: Architecture) -> int:
    """Bytes of token ids and labels, 64-bit integers."""
    length = setup.sequence_length or architecture.sequence_length
    ids = allocated_bytes(setup.micro_batch_size * length, 8)
    if architecture.family == "text-to-image":
        text = allocated_bytes(setup.micro_batch_size * architecture.text_length, 8)
        return text + allocated_bytes(setup.micro_batch_size * (length - architecture.text_length), 8)
    labels = setup.target_length or architecture.target_length or length
    return ids + allocated_bytes(setup.micro_batch_size * labels, 8)


def _buffer_bytes(setup: Setup, architecture: Architecture) -> int:
    """Bytes of tables that belong to the model but are not trained."""
    return FAMILIES[architecture.family].buffer_bytes(architecture, 4 if setup.precision == "fp32" else 2)


def _step_instant(instant: Instant, weights: int, state: int, inputs: int, accumulated: int = 0) -> StepInstant:
    """What the device holds at an instant.

    Args:
        instant: Of one micro-batch, or the update.
        weights: Parameters and buffers.
        state: Of the optimizer, on the device.
        inputs: Token ids and labels.
        accumulated: Gradients of earlier micro-batches; those of this one are added to them in place.
    """
    phase, place, levels = instant
    kept = levels.activations + levels.weight_copies
    gradients = accumulated or levels.gradients
    live = levels.live + accumulated
    total = weights + state + inputs + live
    temporary = live - kept - gradients
    return StepInstant(phase, place, levels.instant, total, weights, gradients, state, inputs + kept, temporary)


def _host(setup: Setup, fixed: _Fixed, optimizer: Optimizer) -> HostMemory:
    if not setup.offload_optimizer:
        return HostMemory(parameters=0, gradients=0, optimizer_state=fixed.paged_bytes, delta_rule=0)
    return HostMemory(
        parameters=fixed.copy_bytes,
        gradients=fixed.copy_bytes,
        optimizer_state=fixed.host_state_bytes,
        delta_rule=fixed.copy_bytes if setup.delta_rule else 0,
    )


def _transfer(setup: Setup, fixed: _Fixed) -> Transfer:
    """Gradients to the host and parameters to the device, in the device's precision."""
    moved = 2 * fixed.weight_bytes if setup.offload_optimizer else 0
    return Transfer(bytes_per_step=moved, seconds=moved / PCIE_BYTES_PER_SECOND[setup.pcie_generation])


def _overhead(fixed: _Fixed) -> dict[str, int]:
    """Memory besides what PyTorch has allocated; of segments, only those of weights and gradients are counted."""
    parts = {
        "cuda_context": CUDA_CONTEXT_BYTES,
        "cublas_workspace": CUBLAS_WORKSPACE_BYTES,
        "allocator_rounding": 2 * fixed.unused_bytes,
    }
    return {**parts, "total": sum(parts.values())}


def _notes(setup: Setup, architecture: Architecture) -> tuple[str, ...]:
    notes = []
    if architecture.family == "gptj" and setup.attention == "sdpa":
        notes.append("GPT-J's code has no fused attention, so its separate operations are counted.")
    if architecture.family == "text-to-image":
        notes.append("The run's model has its own attention: eager and sdpa make no difference.")
        if architecture.reversible if setup.reversible is None else setup.reversible:
            notes.append("Reversible layers are counted as recomputing all activations (activation budget 0).")
    if setup.offload_optimizer:
        notes.append(
            "While the optimizer is created, its gradients take host memory for a moment. The trainer returns this "
            "memory to the system; other programs may keep up to 4 bytes per parameter of it "
            "(benchmarks/memory_on_host.py)."
        )
    shared = setup.shared_groups is not None and architecture.family != "text-to-image"
    if shared:
        notes.append("Layers i and j share all weights if i mod shared_groups equals j mod shared_groups.")
    return tuple(notes)


def _sentence(instant: StepInstant, gpu: GpuMemory) -> str:
    parts = sorted(_plain(gpu).items(), key=lambda part: -part[1])
    largest = " and ".join(f"{name.replace('_', ' ')} ({size / 2**30:.2f} GiB)" for name, size in parts[:2])
    if instant.phase == "optimizer":
        when = "In the optimizer's update"
    else:
        what = f", at the {instant.instant}" if instant.instant else ""
        when = f"In {instant.phase}, {instant.place}{what}"
    return f"{when}; the largest parts are {largest}."
