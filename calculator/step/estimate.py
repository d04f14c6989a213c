"""Setup -> Estimate: the memory of one training step on one device and its host. The parts add up by construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from calculator.families.family import Batch
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, ParameterTensor
from calculator.models.architectures import quantization_of
from calculator.parts.adapters import (
    Lora,
    adapter_tensors,
    adapter_values,
    frozen_adapter_values,
    frozen_blocks,
)
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.parts.optimizers import IN_32_BIT, Optimizer, chosen
from calculator.parts.parameters import (
    count_parameters,
    parameter_tensors,
    parameters_by_part,
)
from calculator.step.setups import DIVIDED, PCIE_BYTES_PER_SECOND, Setup, lora_of, resolve, sees_pictures
from calculator.step.sharding import Course, frozen_shards, gradient_bytes, largest_part, play_sharded, shards
from calculator.step.timeline import Instant, Options, Timeline, play
from calculator.tape.autograd import allocated_bytes
from calculator.tape.recording import Levels
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS, part_of_model

CUDA_CONTEXT_BYTES = 500 * 2**20
"""The driver's own memory, which no figure of PyTorch includes: 300 MiB to 1 GiB, depending on GPU and driver. Other
calculators assume 650 MB (RahulSChand/gpu_poor, src/App.js) and 1000 MiB (furiousteabag/vram-calculator, README)."""
CUBLAS_WORKSPACE_BYTES = 8_519_680
"""Workspace of cuBLAS, once per stream (pytorch, aten/src/ATen/cuda/CUDAContextLight.h, CUBLAS_WORKSPACE_CONFIG)."""

FUSED_4BIT_TOKENS = 1536
"""Rows up to which a kernel may read 4-bit weights as they are (bitsandbytes 0.50, backends/cuda/ops.py,
_gemm_4bit_custom_max_m)."""

SMALL_BLOCK, SMALL_SEGMENT = 1 << 20, 2 << 20
LARGE_BLOCK, LARGE_SEGMENT = 10 << 20, 20 << 20
SEGMENT_UNIT = 2 << 20
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
    activations: int = 0
    """What is saved for backward, if the host keeps it."""

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
    gpus: int
    """GPUs that train together; all other figures are those of one, the fullest."""
    parameters: int
    """All of them, with LoRA's adapters."""
    parameters_by_part: dict[str, int]
    trained_parameters: int
    """Those that are trained: all, or LoRA's adapters."""
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
    optimizer = chosen(setup.optimizer, implementation=setup.optimizer_impl, rank=setup.optimizer_rank)
    lora = lora_of(setup, architecture)
    course, fixed, timeline, gradients = _played(setup, architecture, shared, optimizer, lora)

    inputs = _input_bytes(setup, architecture)
    state = 0 if setup.offload_optimizer else fixed.state_bytes
    weights = fixed.frozen_bytes + fixed.trained_bytes + _buffer_bytes(setup, architecture)
    # With FSDP2, the timeline has them.
    accumulated = gradients if setup.accumulation_steps > 1 and not course else 0
    trained_itemsize = lora.adapter_itemsize if lora else _itemsize(setup)
    together = setup.sharding in TENSOR_SHARDINGS
    buckets = 0 if course or together or setup.gpus == 1 else allocated_bytes(fixed.values, trained_itemsize)
    step = 0 if setup.offload_optimizer else fixed.step_bytes
    timeline, moved = _activations_moved(setup, timeline)
    after = timeline.after_backward
    # In the update, activations are gone; `after.live` without its gradients is the loss, which stays until the end.
    live = gradients + step + after.live - after.gradients
    updating = Instant("optimizer", "the update", Levels(live=live, gradients=gradients))
    instants = [_step_instant(instant, weights, state, inputs, accumulated, buckets) for instant in timeline.instants]
    instants.append(_step_instant(updating, weights, state, inputs, 0, buckets))
    highest = max(instants, key=lambda instant: instant.bytes)
    gpu = GpuMemory(**{part: getattr(highest, part) for part in GpuMemory.__slots__})
    return Estimate(
        model=architecture.name,
        gpus=setup.gpus,
        **_counts(architecture, shared, lora),
        gpu=gpu,
        saved_activations=timeline.after_forward.activations,
        autocast_weight_copies=timeline.after_forward.weight_copies,
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        host=_host(setup, fixed, optimizer, moved),
        peak=Peak(phase=highest.phase, instant=_sentence(highest, gpu)),
        timeline=tuple(instants),
        transfer=_transfer(setup, fixed, moved),
        overhead=_overhead(fixed),
        notes=(
            *_notes(setup, architecture),
            *_adapter_notes(setup, architecture, lora),
            *_text_notes(setup, architecture),
            *_low_rank_notes(setup),
            *_group_notes(setup, architecture, buckets),
        ),
    )


def _counts(architecture: Architecture, shared: int, lora: Lora | None) -> dict[str, object]:
    """How many parameters the whole model has, on all GPUs together, and how many of them are trained."""
    whole, by_part = count_parameters(architecture, shared), parameters_by_part(architecture, shared)
    if lora is None:
        return {"parameters": whole, "parameters_by_part": by_part, "trained_parameters": whole}
    trained = adapter_values(architecture, lora)
    added = trained + frozen_adapter_values(architecture, lora)
    by_part = by_part | {"adapters": added}
    return {"parameters": whole + added, "parameters_by_part": by_part, "trained_parameters": trained}


def _itemsize(setup: Setup) -> int:
    return 2 if setup.precision in ("bf16", "fp16") else 4


def _itemsize_without_adapters(setup: Setup) -> int:
    return 2 if setup.base_bits == 16 else _itemsize(setup)


def _played(
    setup: Setup, architecture: Architecture, shared: int, optimizer: Optimizer, lora: Lora | None
) -> tuple[Course | None, _Fixed, Timeline, int]:
    """FSDP2's course if it divides the weights, the sizes that the step does not change, the step, all gradients."""
    itemsize = _itemsize(setup)
    options = _options(setup, architecture, shared, lora.rest_itemsize if lora else itemsize, lora)
    course = _course(setup, itemsize, lora)
    if course:
        # The whole gradients of a micro-batch are always new ones; only their sums are added to those of earlier ones.
        options = replace(options, accumulating=False, autocast=False)
        if course.cast:
            cast = {"adapter_itemsize": course.cast, "rest_itemsize": course.cast, "base_bits": 16}
            gathered = lora and replace(lora, **cast, in_32_bits=frozenset())
            options = replace(options, itemsize=course.cast, lora=gathered)
        fixed = _fixed_shards(architecture, setup.gpus, course.stored, optimizer, lora)
        # The gradients of a layer are parts of one block.
        return course, fixed, play_sharded(architecture, options, course), gradient_bytes(architecture, course)
    if setup.sharding in TENSOR_SHARDINGS:
        architecture = part_of_model(architecture, setup.gpus)
        options = replace(options, together=setup.gpus, by_tokens=setup.sharding == "tensor-sequence")
    trained_itemsize = lora.adapter_itemsize if lora else itemsize
    fixed = _fixed(architecture, shared, trained_itemsize, optimizer, setup.embeddings_32bit, lora)
    # A gradient has its parameter's shape and type, so the gradients of all take as many bytes as what is trained.
    gradients = fixed.trained_bytes
    more = family_of(architecture).more_gradient_bytes
    if more and lora is None:
        gradients += more(architecture, setup.micro_batch_size, itemsize)
    if options.together:
        # That of the embedding is whole on every GPU.
        table = architecture.vocab_size * architecture.hidden_size
        gradients += allocated_bytes(table * setup.gpus, itemsize) - allocated_bytes(table, itemsize)
    if setup.sharding == "zero-1":
        trained = adapter_tensors(architecture, lora) if lora else parameter_tensors(architecture, shared)
        fixed = _with_largest_state(fixed, trained, setup.gpus, trained_itemsize, optimizer)
    return None, fixed, play(architecture, options), gradients


def estimate_around(
    gpu: GpuMemory,
    setup: Setup,
    trained: tuple[ParameterTensor, ...],
    frozen_bytes: tuple[int, ...] = (),
    *,
    saved_activations: int,
    peak: Peak,
    note: str,
) -> Estimate:
    """An estimate of an unknown model, for which the peak of forward and backward was measured.

    Args:
        gpu: The peak.
        setup: Its optimizer counts, on the host, and the name of its model.
        trained: The model's trained tensors, in 32 bits.
        frozen_bytes: Of each tensor that is not trained.
        saved_activations: Kept at the end of forward.
        peak: Where the peak is.
        note: How it was measured, a sentence.
    """
    optimizer = chosen(setup.optimizer, implementation=setup.optimizer_impl, rank=setup.optimizer_rank)
    fixed = _sizes(trained, [(1, size) for size in frozen_bytes], 4, optimizer)
    return Estimate(
        model=str(setup.config["model_type"]),
        gpus=setup.gpus,
        parameters=fixed.values,
        parameters_by_part={"model": fixed.values},
        trained_parameters=fixed.values,
        gpu=gpu,
        saved_activations=saved_activations,
        autocast_weight_copies=0,
        gradient_bytes=fixed.trained_bytes,
        optimizer_state_bytes=0,
        host=_host(setup, fixed, optimizer),
        peak=peak,
        timeline=(),
        transfer=_transfer(setup, fixed),
        overhead=_overhead(fixed),
        notes=(note,),
    )


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Sizes that depend only on the parameters."""

    values: int
    """Trained parameters."""
    frozen_bytes: int
    """Parameters that LoRA does not train."""
    trained_bytes: int
    copy_bytes: int
    """A 32-bit copy of all that is trained."""
    state_bytes: int
    host_state_bytes: int
    """State of the same optimizer when it updates the 32-bit copy on the host."""
    paged_bytes: int
    step_bytes: int
    unused_bytes: int
    """The part of the allocator's segments that weights and gradients leave unused."""


def _course(setup: Setup, itemsize: int, lora: Lora | None) -> Course | None:
    """How FSDP2 divides the model; None if it does not."""
    if setup.sharding not in DIVIDED:
        return None
    return Course(
        gpus=setup.gpus,
        reshard=setup.sharding == "zero-3",
        stored=lora.adapter_itemsize if lora else itemsize,
        cast=2 if setup.precision.startswith("amp-") else None,
        accumulating=setup.accumulation_steps > 1,
        lora=lora,
        waits=lora is not None and not setup.checkpointing,
    )


@lru_cache(maxsize=1024)
def _fixed_shards(
    architecture: Architecture, gpus: int, itemsize: int, optimizer: Optimizer, lora: Lora | None
) -> _Fixed:
    """The sizes of the first GPU's shares."""
    divided = frozen_shards(architecture, gpus, lora) if lora else ()
    frozen = [(tensor.copies, allocated_bytes(tensor.count, size)) for tensor, size in divided]
    return _sizes(shards(architecture, gpus, lora), frozen, itemsize, optimizer, again=lora is not None)


@lru_cache(maxsize=1024)
def _with_largest_state(
    fixed: _Fixed, tensors: tuple[ParameterTensor, ...], gpus: int, itemsize: int, optimizer: Optimizer
) -> _Fixed:
    """The same with the optimizer's state on the GPU that keeps the most of it."""
    part = _sizes(largest_part(tensors, gpus, optimizer, itemsize), [], itemsize, optimizer)
    return replace(fixed, state_bytes=part.state_bytes, step_bytes=part.step_bytes)


@lru_cache(maxsize=1024)
def _fixed(
    architecture: Architecture,
    shared_groups: int,
    itemsize: int,
    optimizer: Optimizer,
    embeddings_32bit: bool,
    lora: Lora | None,
) -> _Fixed:
    model = parameter_tensors(architecture, shared_groups)
    trained = adapter_tensors(architecture, lora) if lora else model
    frozen = [(tensor.copies, block) for tensor in model for block in frozen_blocks(tensor, lora)] if lora else []
    again = lora is not None
    return _sizes(trained, frozen, itemsize, optimizer, embeddings_32bit=embeddings_32bit, again=again)


def _sizes(
    trained: tuple[ParameterTensor, ...],
    frozen: list[tuple[int, int]],
    itemsize: int,
    optimizer: Optimizer,
    *,
    embeddings_32bit: bool = False,
    again: bool = False,
) -> _Fixed:
    """The sizes of these tensors; of the frozen ones, how many there are of each size, and their bytes."""
    blocks = [(tensor.copies, allocated_bytes(tensor.count, itemsize)) for tensor in trained]
    values = tensors = copies = paged = shared = state = host = 0
    for tensor in trained:
        times, count = tensor.copies, tensor.count
        values += times * count
        tensors += times
        copies += times * allocated_bytes(count, 4)
        if tensor.count >= optimizer.eight_bit_from:
            shared = optimizer.shared_bytes
        chosen, size = optimizer, itemsize
        if embeddings_32bit and optimizer.name in IN_32_BIT and tensor.is_embedding:
            chosen, size = IN_32_BIT[optimizer.name], 4
        state += times * chosen.state_bytes(tensor, size)
        host += times * chosen.state_bytes(tensor, 4)
        if chosen.paged is not None:
            paged += times * (chosen.paged.bytes_of(count, size) - chosen.state_bytes(tensor, size))
    if optimizer.step_counters:
        host += tensors * allocated_bytes(1, 4)
    return _Fixed(
        values=values,
        frozen_bytes=sum(times * block for times, block in frozen),
        trained_bytes=sum(times * block for times, block in blocks),
        copy_bytes=copies,
        state_bytes=state + shared,
        host_state_bytes=host + shared,
        paged_bytes=paged,
        step_bytes=_step_bytes(trained, optimizer, itemsize, again=again),
        unused_bytes=_unused_bytes(frozen + blocks) + _unused_bytes(blocks),
    )


def _step_bytes(trained: tuple[ParameterTensor, ...], optimizer: Optimizer, itemsize: int, *, again: bool) -> int:
    """Bytes that the update takes temporarily.

    Args:
        trained: In the order of the model.
        optimizer: Whose update it is.
        itemsize: Bytes of a value of the parameters.
        again: Whether the first tensor's next copy follows the last tensor, as a layer's adapters follow those of the
            layer before.
    """
    if optimizer.all_step_bytes:
        return optimizer.all_step_bytes(trained, itemsize)
    steps = [optimizer.step_bytes(tensor, itemsize) for tensor in trained]
    if optimizer.whole_step:
        return sum(tensor.copies * step for tensor, step in zip(trained, steps, strict=True))
    # An optimizer that loops over tensors keeps the last one's temporary under its local name until the next one's is
    # assigned to it, so the two exist at once: the order of the tensors decides the peak.
    largest, previous = 0, 0
    if again and trained[0].copies > 1:
        previous = optimizer.kept_bytes(trained[-1], itemsize)
    for tensor, step in zip(trained, steps, strict=True):
        largest = max(largest, step + max(previous, optimizer.later_bytes(tensor, itemsize)))
        previous = optimizer.kept_bytes(tensor, itemsize)
    return largest


def _unused_bytes(blocks: list[tuple[int, int]]) -> int:
    """What blocks leave unused in the allocator's segments; each is a number of equal ones, and their bytes."""
    small = medium = unused = 0
    for times, block in blocks:
        if block <= SMALL_BLOCK:
            small += times * block
        elif block < LARGE_BLOCK:
            medium += times * block
        else:
            unused += times * (-block % SEGMENT_UNIT)
    return unused + -small % SMALL_SEGMENT + -medium % LARGE_SEGMENT


def _options(setup: Setup, architecture: Architecture, shared: int, itemsize: int, lora: Lora | None) -> Options:
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
        moving=setup.offload_activations,
        loss=setup.loss,
        packed=setup.packed,
        fp8=setup.fp8,
        lora=lora,
    )


def _input_bytes(setup: Setup, architecture: Architecture) -> int:
    batch = Batch(
        samples=setup.micro_batch_size,
        length=setup.sequence_length or architecture.sequence_length,
        target_length=setup.target_length or architecture.target_length,
        packed=setup.packed,
        itemsize=_itemsize_without_adapters(setup),
    )
    return family_of(architecture).input_bytes(architecture, batch)


def _buffer_bytes(setup: Setup, architecture: Architecture) -> int:
    """Bytes of tables that belong to the model but are not trained."""
    itemsize = 4 if setup.precision == "fp32" else 2
    if architecture.diffuses:
        itemsize = _itemsize_without_adapters(setup)
    return family_of(architecture).buffer_bytes(architecture, itemsize)


def _step_instant(
    instant: Instant, weights: int, state: int, inputs: int, accumulated: int = 0, buckets: int = 0
) -> StepInstant:
    """What the device holds at an instant.

    Args:
        instant: Of one micro-batch, or the update.
        weights: Parameters and buffers.
        state: Of the optimizer, on the device.
        inputs: Token ids and labels.
        accumulated: Gradients of earlier micro-batches; those of this one are added to them in place.
        buckets: In which DistributedDataParallel sends gradients to other GPUs.
    """
    phase, place, levels, gathered = instant
    kept = levels.activations + levels.weight_copies
    gradients = (accumulated or levels.gradients) + buckets
    live = levels.live + accumulated + buckets
    total = weights + state + inputs + live
    temporary = live - kept - gradients - gathered
    weights += gathered
    return StepInstant(phase, place, levels.instant, total, weights, gradients, state, inputs + kept, temporary)


def _activations_moved(setup: Setup, timeline: Timeline) -> tuple[Timeline, int]:
    """The step as the GPU sees it, and the bytes of activations that the host keeps, if it does."""
    if not setup.offload_activations:
        return timeline, 0
    moved = timeline.after_forward.activations
    instants = [i._replace(levels=i.levels._replace(activations=0, weight_copies=0)) for i in timeline.instants]
    after = timeline.after_forward._replace(activations=0, weight_copies=0)
    return Timeline(tuple(instants), after, timeline.after_backward), moved


def _host(setup: Setup, fixed: _Fixed, optimizer: Optimizer, activations: int = 0) -> HostMemory:
    if not setup.offload_optimizer:
        state = fixed.paged_bytes
        return HostMemory(parameters=0, gradients=0, optimizer_state=state, delta_rule=0, activations=activations)
    return HostMemory(
        parameters=fixed.copy_bytes,
        gradients=fixed.copy_bytes,
        optimizer_state=fixed.host_state_bytes,
        delta_rule=fixed.copy_bytes if setup.delta_rule else 0,
        activations=activations,
    )


def _transfer(setup: Setup, fixed: _Fixed, activations: int = 0) -> Transfer:
    """Gradients to the host and parameters to the device, in the device's precision; each pass's activations both ways.

    Args:
        setup: The setup.
        fixed: Its parameters.
        activations: Bytes that the host keeps of a micro-batch.
    """
    crossing = 2 * fixed.trained_bytes if setup.offload_optimizer else 0
    crossing += 2 * activations * setup.accumulation_steps
    return Transfer(bytes_per_step=crossing, seconds=crossing / PCIE_BYTES_PER_SECOND[setup.pcie_generation])


def _overhead(fixed: _Fixed) -> dict[str, int]:
    """Memory besides what PyTorch has allocated; of segments, only those of weights and gradients are counted."""
    parts = {
        "cuda_context": CUDA_CONTEXT_BYTES,
        "cublas_workspace": CUBLAS_WORKSPACE_BYTES,
        "allocator_rounding": fixed.unused_bytes,
    }
    return {**parts, "total": sum(parts.values())}


def _in_32_bits(architecture: Architecture) -> str:
    """Names of the modules that transformers keeps in 32 bits."""
    family = family_of(architecture)
    return ", ".join(name for own, name in family.modules(architecture).items() if own in family.in_32_bits)


def _notes(setup: Setup, architecture: Architecture) -> tuple[str, ...]:
    family, notes = family_of(architecture), []
    if not architecture.fusable and setup.attention == "sdpa":
        notes.append(f"The code of {architecture.name} has no fused attention: its separate operations are counted.")
    if family.in_32_bits and setup.precision == "fp16" and setup.lora_rank is None:
        notes.append(
            "The estimate is that of a model whose weights are all in float16, as half() makes them. With "
            f"dtype=float16, transformers loads the modules {_in_32_bits(architecture)} in 32 bits, which takes more."
        )
    if architecture.num_experts:
        notes.append(
            "Tokens are sorted by expert, so that the most uneven routing takes as much memory as an even one "
            "(transformers' grouped_mm)."
        )
    if method := quantization_of(setup.config):
        notes.append(
            f"The config says that its weights are quantized ({method}). That is not read: weights count in the "
            "precision that is asked for."
        )
    if sees_pictures(setup):
        notes.append("Only the text model is counted, not the vision tower that is published with it.")
    if family.attention_note and (family.own_trainer or setup.attention == "eager"):
        notes.append(family.attention_note)
    if architecture.reversible if setup.reversible is None else setup.reversible:
        notes.append("Reversible layers are counted as recomputing all activations (activation budget 0).")
    if architecture.diffuses:
        notes.append("Of the pipeline, only the transformer is counted, not what encodes texts and pictures.")
    if setup.offload_optimizer:
        notes.append(
            "While the optimizer is created, its gradients take host memory for a moment. The trainer returns this "
            "memory to the system; other programs may keep up to 4 bytes per parameter of it "
            "(benchmarks/memory/memory_on_host.py)."
        )
    if setup.shared_groups is not None and not architecture.own_last_layer:
        notes.append("Layers i and j share all weights if i mod shared_groups equals j mod shared_groups.")
    return tuple(notes)


def _adapter_notes(setup: Setup, architecture: Architecture, lora: Lora | None) -> Iterator[str]:
    if lora is None:
        return
    yield "LoRA as peft computes it: the model is frozen, so that a layer without adapters keeps no input for backward."
    if lora.in_32_bits:
        yield (
            f"The modules {_in_32_bits(architecture)} are in 32 bits, as transformers loads them where the others are "
            "in float16."
        )
    if architecture.num_experts:
        yield (
            "Only the linear modules of attention have adapters. By all-linear, peft also means the router and the "
            "experts of a mixture, which it makes anew in every pass; that is not counted."
        )
    if architecture.num_labels:
        trained = "is trained through its own adapter" if "head" in lora.targets else "stays as it is"
        yield f"The classifier {trained}; a whole new one beside the adapters (peft's modules_to_save) is not counted."
    tokens = setup.micro_batch_size * (setup.sequence_length or architecture.sequence_length)
    if lora.base_bits == 4 and tokens <= FUSED_4BIT_TOKENS:
        yield (
            f"With at most {FUSED_4BIT_TOKENS} tokens in a pass, bitsandbytes may multiply without making a weight's "
            "16-bit copy in forward, depending on the GPU; the copy is counted."
        )


def _text_notes(setup: Setup, architecture: Architecture) -> Iterator[str]:
    """Notes on the loss in pieces and its GPUs, and on the mask of packs."""
    if setup.loss == "liger":
        yield (
            "The loss in pieces is Liger's fused linear cross-entropy, on GPUs of Ampere (2020) and newer. Forward "
            "makes the gradients of the output head and of its input, and keeps them in place of logits."
        )
    if setup.fp8:
        yield (
            "FP8 is torchao's, with one scale for each tensor, and without torch.compile, which fuses its casts: a "
            "compiled step is not counted. The output head stays as it is. The kernels need a GPU of Ada or Hopper "
            "(2022) or newer."
        )
    if setup.packed and setup.attention == "sdpa" and architecture.fusable:
        yield (
            "Of packs, fused attention needs a mask, which each layer turns into numbers anew and keeps for backward. "
            "The package flash-attn needs none: count its packs as one longer sequence that is not packed."
        )


def _low_rank_notes(setup: Setup) -> Iterator[str]:
    """Which update is counted of GaLore and APOLLO, and what of it is not known."""
    if setup.optimizer not in DEFAULT_RANKS:
        return
    yield (
        "The matrices of attention and feed-forward are projected, everything else has plain AdamW. Counted is every "
        "200th update, which finds new projections and takes the most."
    )
    if setup.optimizer == "galore":
        yield "The workspace that cuSOLVER takes to decompose a matrix, one at a time, is not known and not counted."
        if _itemsize(setup) == 4:
            yield (
                "Of gradients in 32 bits, galore-torch keeps all singular vectors of a matrix, not only those of the "
                "rank; with precision bf16 or fp16 it does not."
            )


def _group_notes(setup: Setup, architecture: Architecture, buckets: int) -> Iterator[str]:
    """What is counted on each of several GPUs."""
    if setup.gpus == 1:
        return
    if setup.sharding in ("none", "zero-1"):
        yield (
            f"Each GPU has the whole model. Of its gradients, {buckets / 2**30:.2f} GiB are the buckets in which "
            "DistributedDataParallel sends them; gradient_as_bucket_view=True would save these."
        )
    if setup.sharding == "zero-1":
        yield "ZeroRedundancyOptimizer deals out whole parameters; counted is the GPU with the largest state."
    if setup.sharding in TENSOR_SHARDINGS:
        yield (
            "The GPUs compute each micro-batch together (Megatron's division, by torch.distributed.tensor.parallel). "
            "PyTorch makes the embedding's gradient whole on every GPU."
        )
    if setup.sharding in DIVIDED:
        yield (
            "FSDP2 divides every layer, and the rest of the model, by rows; counted is the first GPU, whose shares are "
            "the largest. Weights include those that are gathered at the peak."
        )
        if setup.gpus > architecture.num_experts > 0:
            yield (
                f"transformers keeps a layer's {architecture.num_experts} experts in one tensor, of which FSDP2 gives "
                f"each GPU at least one: gathered, they take as much as {setup.gpus} experts."
            )
        if setup.precision.startswith("amp-"):
            half = "bfloat16" if setup.precision.endswith("bf16") else "float16"
            yield (
                f"Mixed precision is FSDP2's own: weights are gathered in {half}, without autocast, and gradients are "
                "summed over the GPUs in 32 bits."
            )
    yield "NCCL's own buffers are not counted: some hundred MiB on each GPU."


def _sentence(instant: StepInstant, gpu: GpuMemory) -> str:
    parts = sorted(_plain(gpu).items(), key=lambda part: -part[1])
    largest = " and ".join(f"{name.replace('_', ' ')} ({size / 2**30:.2f} GiB)" for name, size in parts[:2])
    if instant.phase == "optimizer":
        when = "In the optimizer's update"
    else:
        what = f", at the {instant.instant}" if instant.instant else ""
        when = f"In {instant.phase}, {instant.place}{what}"
    return f"{when}; the largest parts are {largest}."
