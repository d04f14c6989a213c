"""How a peer trains on its machine: what is chosen, and why; what the volunteer says goes before.

A choice never changes what is trained, only how fast and in how much memory: the recipe is the same for all peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from calculator.advice import MOST_SAMPLES, advised_micro_batch, sizes_to_advise
from calculator.devices import Device
from calculator.fit import ADVISED_SHARE
from calculator.page.words import show_bytes
from training.compute.machine import this_machine, torch_device
from training.compute.plan import Precision, built_on_paper, dtype_of, needed_bytes, setup_of
from training.compute.speed import matmul_flops_per_second, step_seconds
from training.config import RunConfig
from training.model.pointwise import PLAIN
from training.model.transformer import TextToImageTransformer

HOST_SHARE = 0.5
"""Of a processor's free memory, activations that could be computed again are kept up to this: it is shared with the
volunteer's other programs."""
MEASURING_SECONDS = 3.0
"""No further size is timed when so much time has gone."""
LONGEST_STEP_SECONDS = 1.0
"""Steps are timed only where one sample should take no longer."""
AS_GOOD = 0.95
"""A size that gives this share of the fastest one's samples a second is as good, and takes less memory."""
WORTH_LOWER = 1.2
"""16 bit are chosen where they are so many times faster."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the volunteer has said; None: chosen here."""

    device: str | None = None
    """See `training.compute.machine.torch_device`."""
    micro_batch_size: int | None = None
    """Samples computed at once."""
    precision: Precision | None = None
    """In which layers compute."""
    checkpointing: bool | None = None
    """True: activations are computed again in backward; False: all are kept."""
    compiled: bool = False
    """Whether `torch.compile` makes kernels of what is computed between products of matrices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting and why it is so."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How this peer trains."""

    machine: Device
    micro_batch_size: int
    precision: Precision
    activation_budget_bytes: int | None
    """What is kept of activations; see `TextToImageTransformer.stored_layers`."""
    need_bytes: int
    """Of the device, as the calculator has it."""
    settings: tuple[Setting, ...]
    """What people are told of these choices, in the order in which they were made."""


def choose(
    run: RunConfig,
    wishes: Wishes,
    *,
    machine: Device | None = None,
    build: Callable[[], TextToImageTransformer] | None = None,
) -> Choices:
    """Settings for this machine, by the calculator and by what is measured now; for another one, by the calculator.

    Args:
        run: The recipe.
        wishes: What the volunteer has said.
        machine: Another machine than this one, a GPU; nothing is measured then.
        build: Gives the model on its device, for steps to be timed on it; without it, memory alone decides the
            micro-batch.

    Raises:
        BadInput: If there is no such device, or the calculator does not know such a model.
    """
    here = torch_device(wishes.device) if machine is None else None
    machine = machine or this_machine(wishes.device)
    memory = _Memory(run, machine, wishes)
    timer = _Timer(run, here, memory, build)
    free = f"it has {show_bytes(machine.usable_bytes)} {'free' if here else 'that can be used'}"
    precision, why_precision = _precision(machine, wishes, timer)
    samples, why_samples = _micro_batch(run, wishes, precision, memory, timer)
    budget, kept = memory.most_generous(samples, precision)
    layers, needed = run.model.num_layers, memory.need(samples, precision, budget)
    return Choices(
        machine=machine,
        micro_batch_size=samples,
        precision=precision,
        activation_budget_bytes=budget,
        need_bytes=needed,
        settings=(
            _said("device", machine.title, wishes.device, free),
            _said("precision", precision, wishes.precision, why_precision),
            *(_kernels(build(), precision, wishes) if build else []),
            _said("micro-batch", f"{samples} sample{'s' * (samples > 1)}", wishes.micro_batch_size, why_samples),
            _said(
                "activations",
                f"kept of {kept} layers, computed again in {layers - kept}" if kept < layers else "all kept",
                wishes.checkpointing,
                f"so the whole takes {show_bytes(needed)} of {show_bytes(machine.usable_bytes)}",
            ),
        ),
    )


class _Memory:
    """What the calculator says of this recipe on this machine."""

    def __init__(self, run: RunConfig, machine: Device, wishes: Wishes):
        self._run, self._machine, self._checkpointing = run, machine, wishes.checkpointing
        self._model = built_on_paper(run.model)

    def need(self, samples: int, precision: Precision, budget: int | None) -> int:
        """With activations kept within this budget; see `TextToImageTransformer.stored_layers`."""
        return needed_bytes(self._run, self._machine, self._model, samples, budget, precision=precision)

    def largest(self, sizes: list[int], precision: Precision) -> int:
        """Of these sizes, the largest that is advised, with as few activations as can be kept; 0 if none is."""
        least = None if self._checkpointing is False else 0
        return advised_micro_batch(sizes, lambda samples: self.need(samples, precision, least), self._machine)

    def fits(self, samples: int, precision: Precision) -> bool:
        """Whether so many would be advised."""
        return bool(self.largest([samples], precision))

    def most_generous(self, samples: int, precision: Precision) -> tuple[int | None, int]:
        """The largest budget of activations that fits, and how many layers it keeps."""
        most = int((HOST_SHARE if self._machine.unified else ADVISED_SHARE) * self._machine.usable_bytes)
        if self._checkpointing is not None:
            budget = 0 if self._checkpointing else None
        elif self.need(samples, precision, None) <= most:
            budget = None
        elif self._run.model.reversible:
            budget = max(0, most - self.need(samples, precision, 0))
        else:
            budget = 0
        dtype = dtype_of(setup_of(self._run, self._machine, samples, precision=precision))
        kept = self._model.stored_layers(samples, budget, dtype)
        return (budget if kept else 0), kept


class _Timer:
    """Rates and steps of this machine; a step is timed only where it should be short."""

    def __init__(
        self,
        run: RunConfig,
        device: torch.device | None,
        memory: _Memory,
        build: Callable[[], TextToImageTransformer] | None,
    ):
        self._memory, self._device, self._build = memory, device, build
        self._flops_per_sample = 6 * _computing_parameters(run) * run.model.seq_len
        self._deadline: float | None = None
        self._rates: dict[Precision, float] = {}
        self.is_here = device is not None
        """Whether there is a machine to measure."""

    def rate(self, precision: Precision) -> float:
        """Of products of matrices, FLOP/s."""
        if precision not in self._rates:
            self._rates[precision] = matmul_flops_per_second(self._device, precision)
        return self._rates[precision]

    def expected_seconds(self, precision: Precision) -> float:
        """Of one sample, forward twice and backward, at the rate of large matrices; 0 where none was measured."""
        if not self.is_here:
            return 0.0
        return self._flops_per_sample * 4 / 3 / self.rate(precision)

    def step(self, samples: int, precision: Precision) -> float | None:
        """Seconds of a step with as many activations as fit kept; None if it is too long, or memory or time is out."""
        too_long = self.expected_seconds(precision) > LONGEST_STEP_SECONDS
        if self._build is None or too_long or not self._memory.fits(samples, precision):
            return None
        model, (budget, _) = self._build(), self._memory.most_generous(samples, precision)
        self._deadline = self._deadline or time.monotonic() + MEASURING_SECONDS
        if time.monotonic() > self._deadline:
            return None
        return step_seconds(model, samples, precision, activation_budget_bytes=budget)


def _precision(machine: Device, wishes: Wishes, timer: _Timer) -> tuple[Precision, str]:
    if wishes.precision is not None:
        return wishes.precision, "nothing else was tried"
    lower: Precision = "bfloat16" if machine.bfloat16 else "float16"
    if not timer.is_here:
        taken = ", and this one is taken to be of Ampere (2020) or newer" if machine.assumed else ""
        return lower, f"GPUs are faster in 16 bit{taken}; nothing was measured"
    faster = timer.rate(lower) / timer.rate("float32")
    rates = f"matrices multiply at {_tera(timer.rate(lower))} in {lower}, {_tera(timer.rate('float32'))} in float32"
    if faster < WORTH_LOWER:
        return "float32", rates
    samples = min(wishes.micro_batch_size or 1, MOST_SAMPLES)
    plain, low = timer.step(samples, "float32"), timer.step(samples, lower)
    if plain and low:
        steps = f"a step of {samples} takes {low:.3f} s in {lower}, {plain:.3f} s in float32"
        return (lower if plain / low >= WORTH_LOWER else "float32"), steps
    return lower, rates


def _kernels(model: TextToImageTransformer, precision: Precision, wishes: Wishes) -> list[Setting]:
    dtype = getattr(torch, precision)
    choice = model.kernel_choice(dtype)
    words = {"fused": "fused kernels", "products": "single products of matrices"}
    choices = [Setting(name="attention", value=words[choice.kernels], reason=choice.reason)]
    if wishes.compiled:
        outcome = model.compile_pointwise(dtype)
        used = "not used" if model.pointwise is PLAIN else "used"
        choices.append(_said("torch.compile", used, True, outcome))
    return choices


def _micro_batch(
    run: RunConfig, wishes: Wishes, precision: Precision, memory: _Memory, timer: _Timer
) -> tuple[int, str]:
    if wishes.micro_batch_size is not None:
        fits = memory.fits(wishes.micro_batch_size, precision)
        return wishes.micro_batch_size, "it fits" if fits else "by the calculator it does not fit"
    a_sample = timer.expected_seconds(precision)
    target, window = run.swarm.target_batch_size, run.swarm.matchmaking_seconds
    sizes = sizes_to_advise(target, matchmaking_seconds=window, sample_seconds=a_sample)
    largest = memory.largest(sizes, precision)
    fitting = [size for size in sizes if size <= largest]
    if not fitting:
        return 1, "by the calculator not even one fits, so it is only tried"
    speeds: dict[int, float] = {}
    for size in fitting:
        seconds = timer.step(size, precision)
        if seconds is None or (speeds and size / seconds < max(speeds.values()) / 2):
            break
        speeds[size] = size / seconds
        if size > 2 and speeds[size] < 1.02 * max(speeds[size // 2], speeds[size // 4]):
            break
    if speeds:
        chosen = min(size for size, speed in speeds.items() if speed >= AS_GOOD * max(speeds.values()))
        timed = ", ".join(f"{size}: {speed:.3g}" for size, speed in speeds.items())
        return chosen, f"the smallest that is nearly the fastest of those timed, in samples a second ({timed})"
    if fitting[-1] < sizes[-1]:
        bound = f"it fits, {2 * fitting[-1]} would not"
    elif 2 * sizes[-1] * a_sample > window:
        bound = f"more would take longer than the {window:g} s in which peers find each other"
    else:
        bound = "it fits"
    time_of_it = f", a sample should take about {a_sample:.2g} s" if a_sample else ""
    return fitting[-1], f"{bound}; no step was timed{time_of_it}"


def _computing_parameters(run: RunConfig) -> int:
    """Weights that a sample runs through; shared ones count each time."""
    model = built_on_paper(run.model.model_copy(update={"shared_groups": None}))
    return sum(parameter.numel() for parameter in model.parameters())


def _tera(flops_per_second: float) -> str:
    return f"{flops_per_second / 1e12:.3g} TFLOP/s"


def _said(name: str, value: str, wish: object, reason: str) -> Setting:
    """A setting; where the volunteer has made it, that is its reason, and what was found follows."""
    return Setting(name=name, value=value, reason=f"as you said; {reason}" if wish is not None else reason)
