"""Setup -> Estimate: the memory of one training step on one device and its host, in three stages."""

from __future__ import annotations

from calculator.models.architecture import ParameterTensor
from calculator.parts.optimizers import chosen
from calculator.step.add_up import added_up, host_memory, overhead, transfer
from calculator.step.answer import Estimate, GpuMemory, Peak
from calculator.step.fixed import sizes_of
from calculator.step.play import played
from calculator.step.resolve import training_of
from calculator.step.setups import Setup


def estimate(setup: Setup) -> Estimate:
    """Resolves a setup, plays its step and adds up what the device, the host and the bus hold.

    Raises:
        BadSetup: If the setup names something unknown or a combination that cannot exist.

    >>> result = estimate(Setup(model="gpt2", precision="fp32", attention="eager"))
    >>> result.parameters, result.gpu.total == max(instant.bytes for instant in result.timeline)
    (124439808, True)
    """
    training = training_of(setup)
    return added_up(training, played(training))


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
    fixed = sizes_of(trained, [(1, size) for size in frozen_bytes], 4, optimizer)
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
        host=host_memory(setup, fixed, optimizer),
        peak=peak,
        timeline=(),
        transfer=transfer(setup, fixed),
        overhead=overhead(fixed),
        notes=(note,),
    )
