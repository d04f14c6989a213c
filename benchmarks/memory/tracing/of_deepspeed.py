"""Traces a training step on one of several GPUs under DeepSpeed's ZeRO, as DeepSpeed's own code runs it.

DeepSpeed runs on the processor with tensors that have a content and a process group whose collectives return at once.
The fourth step counts: stage 3 learns in the first ones in which order modules run.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from benchmarks.memory.models import build
from benchmarks.memory.optimizers import kind_of
from benchmarks.memory.tracing.held import Held
from benchmarks.memory.tracing.several_gpus import group_of
from calculator.parts.parameters import count_parameters, parameter_tensors
from calculator.step.resolve import resolve
from calculator.step.setups import Setup
from calculator.tape.autograd import rounded

STAGES = {f"deepspeed-{stage}": stage for stage in (1, 2, 3)}
PERSISTENT = 100
"""Values of a parameter that stage 3 does not divide."""


def limits_of(setup: Setup) -> dict[str, int]:
    """DeepSpeed's limits in a traced step, which a small model fills as a large one fills DeepSpeed's own."""
    counts = [tensor.count for tensor in parameter_tensors(resolve(setup))]
    bucket = max(*counts, count_parameters(resolve(setup)) // 5)
    return {"bucket": bucket, "live": 2 * bucket, "persistent": PERSISTENT}


@contextmanager
def on_processor(rank: int) -> Iterator[None]:
    """Lets DeepSpeed run on the processor, without the collectives that it would compile there."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(rank)}
    import deepspeed

    with ExitStack() as changed:
        changed.enter_context(patch("deepspeed.comm.torch.build_shm_op", lambda: None))
        deepspeed.init_distributed(dist_init_required=False)
        yield
        deepspeed.comm.comm.cdb = None
        importlib.reload(deepspeed.utils.groups)  # which keeps the groups of a step


class OnDevice(Held):
    """Follows all storages but those of tensors that have only a shape."""

    def follow(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage at its present size from now on."""
        if tensor.device.type != "meta":
            super().follow(tensor)


def configuration(setup: Setup, limits: dict[str, int]) -> dict:
    """DeepSpeed's configuration of a setup; all else has its defaults."""
    stage = STAGES[setup.sharding]
    zero = {"stage": stage, "reduce_bucket_size": limits["bucket"]}
    if stage == 3:
        zero |= {
            "stage3_max_live_parameters": limits["live"],
            "stage3_max_reuse_distance": limits["live"],
            "stage3_param_persistence_threshold": limits["persistent"],
            "stage3_prefetch_bucket_size": limits["bucket"] // 10,
        }
    config = {
        "train_micro_batch_size_per_gpu": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.accumulation_steps,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    if setup.precision.startswith("amp-"):
        config[setup.precision.removeprefix("amp-")] = {"enabled": True}
    return config


def trace(setup: Setup) -> dict:
    """Counts what the GPU that is counted holds in a step of a setup."""
    limits = limits_of(setup)
    rank = 0 if setup.sharding == "deepspeed-3" else setup.gpus - 1
    held = OnDevice(steps_on_device=setup.optimizer_impl == "fused")
    with group_of(setup.gpus, rank), on_processor(rank), held:
        import deepspeed

        held.phase = "before"
        model = build(setup)
        parameters = sum(p.numel() for p in model.parameters())
        kind, given = kind_of(setup)
        made = kind(model.parameters(), **given)
        engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=made, config=configuration(setup, limits))
        length = setup.sequence_length or resolve(setup).sequence_length
        for last in (False, False, False, True):
            held.peak, held.peaks = (0, {}) if last else (held.peak, held.peaks)
            _step(setup, held, engine, length)
        state = [value for one in optimizer.optimizer.state.values() for value in one.values()]
        state = [tensor for tensor in state if isinstance(tensor, torch.Tensor)]
        return {
            "limits": limits,
            "parameters": parameters,
            "optimizer_state_bytes": sum(rounded(t.nbytes) for t in state if held.steps_on_device or t.dim()),
            "peak": held.peak,
            "peak_phase": held.peak_phase,
            "peaks": {phase: held.peaks[phase] for phase in ("forward", "backward", "optimizer")},
        }


def _step(setup: Setup, held: Held, engine, length: int) -> None:
    ids = torch.zeros((setup.micro_batch_size, length), dtype=torch.long)
    labels = torch.zeros((setup.micro_batch_size, setup.target_length or length), dtype=torch.long)
    for _ in range(setup.accumulation_steps):
        loss = None
        held.phase = "forward"
        loss = engine(input_ids=ids, labels=labels).loss
        held.phase = "backward"
        engine.backward(loss)
        held.phase = "optimizer"
        engine.step()
