"""Speed of this machine, measured within a few seconds before it trains."""

from __future__ import annotations

import time

import torch

from training.compute.micro_batches import MicroBatches, is_out_of_memory
from training.compute.plan import Precision
from training.data.stream.stream import Batch, TextBatch
from training.errors import TrainingError
from training.tasks.task import TrainedModel

_FIRST_SIDE, _LARGEST_SIDE, _LONG_ENOUGH_SECONDS = 256, 8192, 0.03
"""Sides of the first and the largest square matrix, and the least seconds of a multiplication that is timed. The sides
grow until one multiplication takes that long."""


def matmul_flops_per_second(device: torch.device, precision: Precision) -> float:
    """Measures the FLOP/s of matrix multiplication, within a third of a second."""
    side, dtype, most = _FIRST_SIDE, getattr(torch, precision), 0.0
    while True:
        try:
            # Ones: sums of a whole row stay finite in 16 bits, and no time is spent on random numbers.
            matrix = torch.ones(side, side, dtype=dtype, device=device)
            # The first product also loads the library's kernels, so the faster of two counts.
            seconds = min(_timed(lambda m=matrix: m @ m, device) for _ in range(2))
        except (RuntimeError, MemoryError) as error:
            if most and is_out_of_memory(error):  # the GPU is nearly full; the time of smaller matrices is used
                return most
            raise
        most = max(most, 2 * side**3 / seconds)
        if seconds >= _LONG_ENOUGH_SECONDS or side >= _LARGEST_SIDE:
            return most
        side *= 2


def step_seconds(
    model: TrainedModel, batch: Batch | TextBatch, precision: Precision, *, activation_budget_bytes: int | None
) -> float | None:
    """Measures the time of forward and backward of one micro-batch. Leaves no gradient. Times the second of two.

    Args:
        model: Model on its device.
        batch: Micro-batch to compute; see `Task.example`.
        precision: Type in which layers compute.
        activation_budget_bytes: Bytes of activations to keep; see `TrainedModel.stored_layers`.

    Returns:
        Seconds; None if memory is not enough.
    """
    samples, device = len(batch), next(model.parameters()).device
    micro_batches = MicroBatches(
        model, micro_batch_size=samples, activation_budget_bytes=activation_budget_bytes, precision=precision
    )

    def step() -> None:
        for _ in micro_batches.gradients_of(batch):
            model.zero_grad(set_to_none=True)

    try:
        _timed(step, device)
        seconds = _timed(step, device)
    except TrainingError:  # memory is not enough for even one sample
        return None
    # `MicroBatches` computes less at once when memory runs out; then the time is not that of the given size.
    less = micro_batches.micro_batch_size, micro_batches.activation_budget_bytes
    return seconds if less == (samples, activation_budget_bytes) else None


def _timed(work, device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        # Kernels run in the background: without this, only their launch would be timed.
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
