"""Adds up a played step to the answer. The parts add up to the totals by construction."""

from __future__ import annotations

from calculator.models.architecture import Architecture
from calculator.parts.adapters import Lora, adapter_values, frozen_adapter_values
from calculator.parts.optimizers import Optimizer
from calculator.parts.parameters import count_parameters, parameters_by_part
from calculator.step.answer import Estimate, GpuMemory, HostMemory, Peak, StepInstant, Transfer, as_plain
from calculator.step.fixed import FixedSizes
from calculator.step.notes import notes_of
from calculator.step.play import Played
from calculator.step.resolve import Training, itemsize_of
from calculator.step.setups import DEEPSPEED, DIVIDED, PCIE_BYTES_PER_SECOND, Setup
from calculator.step.timeline import Instant
from calculator.tape.autograd import allocated_bytes
from calculator.tape.recording import Levels
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS
from calculator.units import show_bytes

CUDA_CONTEXT_BYTES = 500 * 2**20
"""The driver's own memory, which no figure of PyTorch includes: 300 MiB to 1 GiB, depending on GPU and driver. Other
calculators assume 650 MB (RahulSChand/gpu_poor, src/App.js) and 1000 MiB (furiousteabag/vram-calculator, README)."""
CUBLAS_WORKSPACE_BYTES = 8_519_680
"""Workspace of cuBLAS, once per stream (pytorch, aten/src/ATen/cuda/CUDAContextLight.h, CUBLAS_WORKSPACE_CONFIG)."""


def added_up(training: Training, played: Played) -> Estimate:
    """The answer to a checked setup whose step was played."""
    setup, architecture, fixed = training.setup, training.architecture, played.fixed
    state = 0 if setup.offload_optimizer else fixed.state_bytes
    buckets = _bucket_bytes(training, fixed)
    instants = _instants(setup, played, state, buckets)
    highest = max(instants, key=lambda instant: instant.bytes)
    gpu = GpuMemory(**{part: getattr(highest, part) for part in GpuMemory.__slots__})
    return Estimate(
        model=architecture.name,
        gpus=setup.gpus,
        **_counts(architecture, training.shared_groups, training.lora),
        gpu=gpu,
        saved_activations=played.timeline.after_forward.activations,
        autocast_weight_copies=played.timeline.after_forward.weight_copies,
        gradient_bytes=played.gradient_bytes,
        optimizer_state_bytes=state,
        host=host_memory(setup, fixed, training.optimizer, played.moved_bytes),
        peak=Peak(phase=highest.phase, instant=_sentence(highest, gpu)),
        timeline=tuple(instants),
        transfer=transfer(setup, fixed, played.moved_bytes),
        overhead=overhead(fixed),
        notes=notes_of(training, buckets),
    )


def _bucket_bytes(training: Training, fixed: FixedSizes) -> int:
    """Bytes of the buckets in which DistributedDataParallel sends gradients; 0 where it is not used."""
    setup, lora = training.setup, training.lora
    if setup.gpus == 1 or setup.sharding in (*DIVIDED, *TENSOR_SHARDINGS, *DEEPSPEED):
        return 0
    return allocated_bytes(fixed.values, lora.adapter_itemsize if lora else itemsize_of(setup))


def _instants(setup: Setup, played: Played, state: int, buckets: int) -> list[StepInstant]:
    """The highest instants of the micro-batch, then the update, unless backward makes it."""
    fixed, gradients = played.fixed, played.gradient_bytes
    weights = fixed.frozen_bytes + fixed.trained_bytes + played.buffer_bytes
    # With FSDP2, the timeline has them.
    accumulated = gradients if setup.accumulation_steps > 1 and setup.sharding not in DIVIDED else 0
    inputs = played.input_bytes
    instants = [_step_instant(one, weights, state, inputs, accumulated, buckets) for one in played.timeline.instants]
    if setup.optimizer_in_backward:
        return instants
    step = 0 if setup.offload_optimizer else fixed.step_bytes
    after = played.timeline.after_backward
    if setup.sharding in DEEPSPEED:
        gradients = after.gradients  # of this GPU's share
    # In the update, activations are gone; `after.live` without its gradients is the loss, which stays until the end.
    live = gradients + step + after.live - after.gradients
    updating = Instant("optimizer", "the update", Levels(live=live, gradients=gradients))
    return [*instants, _step_instant(updating, weights, state, inputs, 0, buckets)]


def _counts(architecture: Architecture, shared: int, lora: Lora | None) -> dict[str, object]:
    """Numbers of all parameters and of the trained ones, on all GPUs together."""
    whole, by_part = count_parameters(architecture, shared), parameters_by_part(architecture, shared)
    if lora is None:
        return {"parameters": whole, "parameters_by_part": by_part, "trained_parameters": whole}
    trained = adapter_values(architecture, lora)
    added = trained + frozen_adapter_values(architecture, lora)
    by_part = by_part | {"adapters": added}
    return {"parameters": whole + added, "parameters_by_part": by_part, "trained_parameters": trained}


def _step_instant(
    instant: Instant, weights: int, state: int, inputs: int, accumulated: int = 0, buckets: int = 0
) -> StepInstant:
    """The memory of the device at an instant, part by part.

    Args:
        instant: An instant of one micro-batch, or the update.
        weights: Parameters and buffers.
        state: Optimizer state on the device.
        inputs: Token ids and labels.
        accumulated: Gradients of earlier micro-batches; those of this one are added to them in place.
        buckets: Buckets in which DistributedDataParallel sends gradients to other GPUs.
    """
    phase, place, levels, gathered = instant
    kept = levels.activations + levels.weight_copies
    gradients = (accumulated or levels.gradients) + buckets
    live = levels.live + accumulated + buckets
    total = weights + state + inputs + live
    temporary = live - kept - gradients - gathered
    weights += gathered
    return StepInstant(phase, place, levels.instant, total, weights, gradients, state, inputs + kept, temporary)


def host_memory(setup: Setup, fixed: FixedSizes, optimizer: Optimizer, activations: int = 0) -> HostMemory:
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


def transfer(setup: Setup, fixed: FixedSizes, activations: int = 0) -> Transfer:
    """Bytes and seconds on the bus: gradients to the host, parameters back, and each pass's activations both ways.

    Args:
        setup: The setup.
        fixed: Its parameters.
        activations: Bytes that the host keeps of a micro-batch.
    """
    crossing = 2 * fixed.trained_bytes if setup.offload_optimizer else 0
    crossing += 2 * activations * setup.accumulation_steps
    return Transfer(bytes_per_step=crossing, seconds=crossing / PCIE_BYTES_PER_SECOND[setup.pcie_generation])


def overhead(fixed: FixedSizes) -> dict[str, int]:
    """Memory besides what PyTorch has allocated; of segments, only those of weights and gradients are counted."""
    parts = {
        "cuda_context": CUDA_CONTEXT_BYTES,
        "cublas_workspace": CUBLAS_WORKSPACE_BYTES,
        "allocator_rounding": fixed.unused_bytes,
    }
    return {**parts, "total": sum(parts.values())}


def _sentence(instant: StepInstant, gpu: GpuMemory) -> str:
    parts = sorted(as_plain(gpu).items(), key=lambda part: -part[1])
    largest = " and ".join(f"{name.replace('_', ' ')} ({show_bytes(size)})" for name, size in parts[:2])
    if instant.phase == "optimizer":
        where = "the optimizer's update"
    else:
        what = f", at the {instant.instant}" if instant.instant else ""
        where = f"{instant.phase}, {instant.place}{what}"
    return f"The peak is in {where}; the largest parts are {largest}."
