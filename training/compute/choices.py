"""Choice of how a peer trains on its machine, with reasons. The volunteer's own settings take precedence.

A choice changes only the speed and the memory, and never what is trained: the recipe is equal for all peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from calculator.choose.advice import MOST_SAMPLES, sizes_to_advise
from calculator.choose.devices import Device
from calculator.choose.largest import Choice, largest_that_fits
from calculator.units import show_bytes, show_number, show_rate, show_time
from training.compute.machine import this_machine, torch_device
from training.compute.plan import PRECISIONS, Precision, known_models, peer_of
from training.compute.speed import matmul_flops_per_second, step_seconds
from training.errors import BadInput
from training.processes.notices import Setting
from training.tasks.task import Task, TrainedModel

MEASURING_SECONDS = 3.0
"""Seconds after which no further size is timed."""
LONGEST_STEP_SECONDS = 1.0
"""Longest expected time of one sample, in seconds, at which steps are timed."""
AS_GOOD = 0.95
"""Least share of the best throughput at which a smaller micro-batch is preferred: it takes less memory."""
WORTH_LOWER = 1.2
"""Least speed-up at which 16 bits are chosen."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Settings that the volunteer has asked for; None: chosen by `choose`."""

    device: str | None = None
    """Device by name; see `training.compute.machine.torch_device`."""
    micro_batch_size: int | None = None
    """Samples per forward pass."""
    precision: Precision | None = None
    """Type in which layers compute."""
    checkpointing: bool | None = None
    """True: activations are recomputed in backward; False: all are kept."""
    max_memory_bytes: int | None = None
    """Most memory that training may take on the device that computes."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Settings with which this peer trains."""

    machine: Device
    trained_parameters: int
    """Number of values that are averaged and updated."""
    micro_batch_size: int
    precision: Precision
    activation_budget_bytes: int | None
    """Bytes of activations that are kept; None: all are; see `TrainedModel.stored_layers`."""
    need_bytes: int
    """Memory that training takes on the device, by the calculator (`training.compute.plan`)."""
    settings: tuple[Setting, ...]
    """These choices in words, in the order in which they were made."""


@known_models()
def choose(
    task: Task,
    wishes: Wishes,
    *,
    machine: Device | None = None,
    build: Callable[[], TrainedModel] | None = None,
) -> Choices:
    """Chooses settings for this machine, by the calculator and by measurement; for another machine, by the calculator
    alone.

    Args:
        task: Task to train.
        wishes: Settings that the volunteer has asked for.
        machine: A GPU other than this machine's; then nothing is measured.
        build: Returns the model on its device, so that steps can be timed; without it, memory alone decides the
            micro-batch.

    Raises:
        BadInput: If the device does not exist, the calculator does not know the model, or training does not fit into
            the memory that it may take.
    """
    here = torch_device(wishes.device) if machine is None else None
    machine = machine or this_machine(wishes.device)
    free = f"it has {show_bytes(machine.usable_bytes)} {'free' if here else 'usable'}"
    if wishes.max_memory_bytes is not None:
        machine = replace(machine, usable_bytes=min(machine.usable_bytes, wishes.max_memory_bytes))
        free += f", of which this program may take {show_bytes(machine.usable_bytes)}"
        if here is not None and here.type == "cuda":  # PyTorch then says that memory has run out
            torch.cuda.set_per_process_memory_fraction(machine.usable_bytes / machine.memory_bytes, here)
    peer, swarm = peer_of(task, cache(task.on_paper)), task.run.swarm
    window = swarm.matchmaking_seconds
    sizes = partial(sizes_to_advise, swarm.target_batch_size, matchmaking_seconds=window)

    def largest(sizes: Sequence[int], precision: Precision) -> Choice:
        return largest_that_fits(
            peer, machine, sizes, precision=PRECISIONS[precision], checkpointing=wishes.checkpointing
        )

    timer = _Timer(task, here, largest, build)
    precision, why_precision = _precision(task, machine, wishes, timer)
    samples, why_samples = _micro_batch(sizes, window, wishes, precision, largest, timer)
    choice, layers = largest([samples], precision), task.num_layers
    kept, needed = choice.kept_layers, choice.need_bytes
    if wishes.max_memory_bytes is not None and not choice.fits:
        raise BadInput(
            f"--max-memory lets training take {show_bytes(wishes.max_memory_bytes)}; with {samples} at a time it takes "
            f"{show_bytes(needed)}, and a margin. Give more, or a smaller --micro-batch-size."
        )
    return Choices(
        machine=machine,
        trained_parameters=choice.trained_parameters,
        micro_batch_size=samples,
        precision=precision,
        activation_budget_bytes=choice.activation_budget_bytes,
        need_bytes=needed,
        settings=(
            _setting("device", machine.title, wishes.device, free),
            _setting("precision", precision, wishes.precision, why_precision),
            *([_kernels(build(), precision)] if build else []),
            _setting("micro-batch", f"{samples} sample{'s' * (samples > 1)}", wishes.micro_batch_size, why_samples),
            _setting(
                "activations",
                f"kept for {kept} layers, recomputed for {layers - kept}" if kept < layers else "all kept",
                wishes.checkpointing,
                f"so training takes {show_bytes(needed)} of {show_bytes(machine.usable_bytes)}",
            ),
        ),
    )


class _Timer:
    """Measures this machine's FLOP/s and times its steps; a step is timed only if it is expected to be short."""

    def __init__(
        self,
        task: Task,
        device: torch.device | None,
        largest: Callable[[Sequence[int], Precision], Choice],
        build: Callable[[], TrainedModel] | None,
    ):
        self._task, self._largest, self._device, self._build = task, largest, device, build
        # 2 FLOPs for each weight and token in forward and 4 in backward (Kaplan et al. 2020, arXiv:2001.08361, section
        # 2.1).
        self._flops_per_sample = 6 * task.computing_parameters * task.seq_len
        self._deadline: float | None = None
        self._rates: dict[Precision, float] = {}
        self._steps: dict[tuple[int, Precision], float | None] = {}
        self.is_here = device is not None
        """True if there is a machine to measure."""

    def rate(self, precision: Precision) -> float:
        """FLOP/s of matrix multiplication."""
        if precision not in self._rates:
            self._rates[precision] = matmul_flops_per_second(self._device, precision)
        return self._rates[precision]

    def expected_seconds(self, precision: Precision) -> float:
        """Seconds of one sample (forward twice, backward once) at the rate of large matrices; 0 if nothing is
        measured."""
        if not self.is_here:
            return 0.0
        # 4 / 3: a layer that does not keep its activations computes forward twice, which takes 8 FLOPs instead of 6.
        return self._flops_per_sample * 4 / 3 / self.rate(precision)

    def step(self, samples: int, precision: Precision) -> float | None:
        """Seconds of a step that keeps as many activations as fit, timed once; None if it takes too long, or memory or
        time has run out."""
        if (samples, precision) not in self._steps:
            self._steps[samples, precision] = self._timed(samples, precision)
        return self._steps[samples, precision]

    def _timed(self, samples: int, precision: Precision) -> float | None:
        if self._build is None or self.expected_seconds(precision) > LONGEST_STEP_SECONDS:
            return None
        choice = self._largest([samples], precision)
        if not choice.fits:
            return None
        model = self._build()
        # The time starts with the first step, after the model is built: building alone can take longer than all steps.
        self._deadline = self._deadline or time.monotonic() + MEASURING_SECONDS
        if time.monotonic() > self._deadline:
            return None
        return step_seconds(
            model, self._task.example(samples), precision, activation_budget_bytes=choice.activation_budget_bytes
        )


def _precision(task: Task, machine: Device, wishes: Wishes, timer: _Timer) -> tuple[Precision, str]:
    if task.computes_in_16_bits and wishes.precision == "float32":
        raise BadInput(
            "--precision is float32, and the recipe's frozen weights are stored in no more than 16 bits; give bfloat16 "
            "or float16, or omit it."
        )
    if wishes.precision is not None:
        return wishes.precision, "no other was tried"
    lower: Precision = "bfloat16" if machine.bfloat16 else "float16"
    if task.computes_in_16_bits:
        return lower, "the recipe's frozen weights are stored in no more than 16 bits"
    if not timer.is_here:
        taken = ", and this one is assumed to be Ampere (2020) or newer" if machine.assumed else ""
        return lower, f"GPUs are faster in 16 bits{taken}; nothing was measured"
    faster = timer.rate(lower) / timer.rate("float32")
    rates = f"matrices multiply at {_flops(timer, lower)} in {lower}, {_flops(timer, 'float32')} in float32"
    # 16 bits speed up large products the most: if they gain little there, a whole step gains even less.
    if faster < WORTH_LOWER:
        return "float32", rates
    samples = min(wishes.micro_batch_size or 1, MOST_SAMPLES)
    # Large products promise too much: casts and the operations in between may take the time that the products save.
    plain, low = timer.step(samples, "float32"), timer.step(samples, lower)
    if plain and low:
        steps = (
            f"a step of {samples} sample{'s' * (samples > 1)} takes {show_time(low)} in {lower}, "
            f"{show_time(plain)} in float32"
        )
        return (lower if plain / low >= WORTH_LOWER else "float32"), steps
    return lower, rates


def _kernels(model: TrainedModel, precision: Precision) -> Setting:
    choice = model.kernel_choice(getattr(torch, precision))
    words = {"fused": "fused kernels", "products": "separate matrix multiplications"}
    return Setting(name="attention", value=words[choice.kernels], reason=choice.reason)


def _micro_batch(
    sizes_in_time: Callable[..., Sequence[int]],
    window: float,
    wishes: Wishes,
    precision: Precision,
    largest: Callable[[Sequence[int], Precision], Choice],
    timer: _Timer,
) -> tuple[int, str]:
    if wishes.micro_batch_size is not None:
        choice = largest([wishes.micro_batch_size], precision)
        return choice.micro_batch_size, "it fits" if choice.fits else "according to the calculator it does not fit"
    a_sample = timer.expected_seconds(precision)
    sizes = sizes_in_time(sample_seconds=a_sample)
    choice = largest(sizes, precision)
    if not choice.fits:
        return 1, "according to the calculator not even one fits; it is tried all the same"
    fitting = [size for size in sizes if size <= choice.micro_batch_size]
    speeds: dict[int, float] = {}
    for size in fitting:
        seconds = timer.step(size, precision)
        # Much slower than a smaller size, as when memory is swapped: larger sizes would only take longer to time.
        if seconds is None or (speeds and size / seconds < max(speeds.values()) / 2):
            break
        speeds[size] = size / seconds
        # No longer faster than the two smaller sizes: to time more sizes would only delay the volunteer.
        if size > 2 and speeds[size] < 1.02 * max(speeds[size // 2], speeds[size // 4]):
            break
    if speeds:
        chosen = min(size for size, speed in speeds.items() if speed >= AS_GOOD * max(speeds.values()))
        timed = ", ".join(f"{size}: {show_number(speed)}" for size, speed in speeds.items())
        return (
            chosen,
            f"the smallest of those timed that nearly reaches the best speed, in samples per second ({timed})",
        )
    if fitting[-1] < sizes[-1]:
        bound = f"it fits, {2 * fitting[-1]} would not"
    elif 2 * sizes[-1] * a_sample > window:
        bound = f"more would take longer than the {window:g} s in which peers form a group"
    else:
        bound = "it fits"
    time_of_it = f"; a sample should take about {show_time(a_sample)}" if a_sample else ""
    return fitting[-1], f"{bound}; no step was timed{time_of_it}"


def _flops(timer: _Timer, precision: Precision) -> str:
    return show_rate(timer.rate(precision), "FLOP")


def _setting(name: str, value: str, wish: object, reason: str) -> Setting:
    """Makes a setting to show; if the volunteer asked for it, the reason begins with that."""
    return Setting(name=name, value=value, reason=f"as you said; {reason}" if wish is not None else reason)
