"""Whether a setup fits a GPU and by how much, the largest one that fits, and the techniques that make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from calculator.architectures import Architecture
from calculator.devices import Device
from calculator.errors import BadSetup
from calculator.estimate import Estimate, estimate
from calculator.setups import Setup, resolve

TIGHT_PERCENT = 6
"""A margin below this percentage of the usable memory is called tight. It is the largest error that tests allow the
calculator (benchmarks/memory_accuracy.py), and the allocator's fragmentation, which is not counted, needs room too."""
ADVISED_SHARE = 0.9
"""Advice on a run's settings fills at most this fraction of a GPU's memory, to leave room for what is not counted."""
MOST_SUGGESTIONS = 5
LONGEST = 1_000_000
"""The limit of a search where the model has none."""
FORWARD_SHARE = 1 / 3
"""Forward's share of a step's computation; backward is twice forward (Kaplan et al. 2020, arXiv:2001.08361, section
2.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Whether a setup fits a GPU."""

    gpu: str
    fits: bool
    standing: str
    """"fits", "tight" (margin below `TIGHT_PERCENT`) or "does not fit"."""
    need_bytes: int
    """Peak of the step, CUDA context and workspace; with unified memory, the peak and what the host holds."""
    usable_bytes: int
    margin_bytes: int
    """Usable minus needed bytes; negative if the setup does not fit."""
    sentence: str
    notes: tuple[str, ...]
    """Other reasons for or against this GPU."""

    def as_dict(self) -> dict:
        """The verdict as plain data."""
        return {**asdict(self), "notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Techniques that together make a setup fit, and what they cost."""

    techniques: tuple[str, ...]
    changes: dict[str, object]
    """Keys of the setup with their new values."""
    extra_computation: float
    """Recomputation as a share of a step's computation: 0.33 is a third more."""
    seconds_per_update: float
    """Time of the transfer between host and GPU, once per optimizer step."""
    verdict: Fit
    sentence: str

    def as_dict(self) -> dict:
        """The suggestion as plain data."""
        return {**asdict(self), "techniques": list(self.techniques), "verdict": self.verdict.as_dict()}


def verdict(setup: Setup, device: Device, result: Estimate | None = None) -> Fit:
    """Whether a setup fits, and its margin.

    Args:
        setup: The setup to judge.
        device: The GPU that it should fit.
        result: The setup's estimate, if it has been computed already.

    Raises:
        BadSetup: If the setup is not possible.

    >>> from calculator.devices import device_named
    >>> verdict(Setup(model="gpt2-large", micro_batch_size=8), device_named("t4")).standing
    'does not fit'
    """
    result = result or estimate(setup)
    need = taken_bytes(result, device)
    margin = device.usable_bytes - need
    standing = "does not fit" if margin < 0 else "tight" if _is_tight(margin, device) else "fits"
    figures = f"it needs {_in_words(result, device)}, and {_gib(device.usable_bytes)} can be used"
    share = 100 * abs(margin) / device.usable_bytes
    sentence = {
        "fits": f"It fits the {device.title}: {figures}; {_gib(margin)} ({share:.0f} %) are left.",
        "tight": f"It is tight on the {device.title}: {figures}; fragmentation may take the {_gib(margin)} "
        f"({share:.1f} %) that are left.",
        "does not fit": f"It does not fit the {device.title}: {figures}; {_gib(-margin)} are missing.",
    }[standing]
    return Fit(
        gpu=device.name,
        fits=margin >= 0,
        standing=standing,
        need_bytes=need,
        usable_bytes=device.usable_bytes,
        margin_bytes=margin,
        sentence=sentence,
        notes=_notes(setup, device),
    )


def need_bytes(setup: Setup, device: Device) -> int:
    """Bytes that a setup needs on a device; see `taken_bytes`."""
    return taken_bytes(estimate(setup), device)


def taken_bytes(result: Estimate, device: Device) -> int:
    """Bytes that an estimated step takes on a device: the peak, and what PyTorch's figures do not include.

    With unified memory, what the host holds is in the same memory, and there is no CUDA context.
    """
    return result.gpu.total + (result.host.total if device.unified else result.overhead["total"])


def _in_words(result: Estimate, device: Device) -> str:
    """The peak, which every answer shows first, and what is added to it."""
    on_top = taken_bytes(result, device) - result.gpu.total
    what = "the host" if device.unified else "CUDA itself"
    return _gib(result.gpu.total) + (f" and {_gib(on_top)} for {what}" if on_top else "")


def largest_micro_batch(setup: Setup, device: Device) -> int:
    """The most sequences per forward pass that fit, with everything else unchanged; 0 if not even one does.

    >>> from calculator.devices import device_named
    >>> largest_micro_batch(Setup(model="gpt2", checkpointing=True), device_named("rtx-2060"))
    6
    """
    return _largest(lambda size: need_bytes(replace(setup, micro_batch_size=size), device), LONGEST, device)


def longest_sequence(setup: Setup, device: Device) -> int | None:
    """The most tokens per sequence that fit, with everything else unchanged; 0 if not even one does.

    None if the model's length is fixed. For a model with two stacks it is the encoder's length.
    """
    architecture = resolve(setup)
    if architecture.family == "text-to-image":
        return None
    most = architecture.max_positions or LONGEST
    return _largest(lambda length: need_bytes(replace(setup, sequence_length=length), device), most, device)


def _largest(need: Callable[[int], int], most: int, device: Device) -> int:
    """The largest number from 1 to `most` whose need fits.

    Doubling, then bisection: a larger number never needs less memory, and each trial costs an estimate.
    """
    if need(1) > device.usable_bytes:
        return 0
    fits, too_much = 1, 2
    while too_much <= most and need(too_much) <= device.usable_bytes:
        fits, too_much = too_much, 2 * too_much
    too_much = min(too_much, most + 1)
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if need(middle) <= device.usable_bytes:
            fits = middle
        else:
            too_much = middle
    return fits


@dataclass(frozen=True, slots=True)
class _Technique:
    """One way to save memory."""

    title: str
    changes: dict[str, object]
    extra_computation: float = 0.0
    rank: int = 0
    """0 takes no extra time, 1 makes passes smaller, 2 uses the bus once per update, 3 trains another model."""

    @property
    def level(self) -> float:
        """Its cost relative to the other options of the same choice."""
        return self.extra_computation + self.changes.get("accumulation_steps", 0)


def suggestions(setup: Setup, device: Device) -> list[Suggestion]:
    """Sets of techniques that make a setup fit, the cheapest in time first; none if it fits, or if nothing helps.

    Techniques that take no extra time come first (16-bit autocast, fused attention and update, 8-bit state), then
    smaller passes with as many samples per update, transfers over the bus, recomputation, and last what trains another
    model. A set that contains another set of the list is left out.

    Raises:
        BadSetup: If the setup is not possible.
    """
    if verdict(setup, device).standing == "fits":
        return []
    found: list[Suggestion] = []
    tight: list[Suggestion] = []
    taken: list[tuple[_Technique | None, ...]] = []
    # Cheapest first, so that a set which only adds techniques to one that fits already is skipped without an estimate.
    for techniques in sorted(product(*_techniques(setup, device)), key=_cost):
        if not any(techniques) or any(_is_more(techniques, enough) for enough in taken):
            continue
        suggestion = _suggestion(setup, device, [technique for technique in techniques if technique])
        if suggestion is None or not suggestion.verdict.fits:
            continue
        if suggestion.verdict.standing == "tight":
            tight.append(suggestion)
            continue
        taken.append(techniques)
        found.append(suggestion)
        if len(found) == MOST_SUGGESTIONS:
            break
    return found or tight[:MOST_SUGGESTIONS]


def _is_more(techniques: tuple[_Technique | None, ...], enough: tuple[_Technique | None, ...]) -> bool:
    """Whether a set has, for each choice, the technique of a set that is enough, or a costlier one of its kind."""
    return all(
        less is None or more == less or (more is not None and more.level > less.level)
        for more, less in zip(techniques, enough, strict=True)
    )


def answer(setup: Setup, device: Device) -> dict:
    """Verdict, largest micro-batch and longest sequence, as plain data."""
    return {
        **verdict(setup, device).as_dict(),
        "largest_micro_batch": largest_micro_batch(setup, device),
        "longest_sequence": longest_sequence(setup, device),
    }


def advice(setup: Setup, device: Device) -> dict:
    """What makes a setup fit, as plain data, with a sentence that introduces it."""
    standing = verdict(setup, device).standing
    found = suggestions(setup, device)
    if standing == "fits":
        sentence = f"It fits the {device.title} as it is."
    elif found:
        sentence = f"Ways to make it fit the {device.title}, the cheapest in time first:"
    else:
        sentence = f"No set of techniques makes it fit the {device.title}; choose a smaller model or a larger GPU."
    return {"sentence": sentence, "suggestions": [suggestion.as_dict() for suggestion in found]}


def _techniques(setup: Setup, device: Device) -> Iterator[list[_Technique | None]]:
    """For each choice of the setup, the techniques that could replace it; None keeps it."""
    architecture = resolve(setup)
    if setup.precision == "fp32":
        half = "bf16" if device.bfloat16 else "fp16"
        yield [None, _Technique(f"16-bit autocast ({half})", {"precision": f"amp-{half}"})]
    # GPT-J in transformers and the run's own model have one implementation of attention each.
    if setup.attention == "eager" and architecture.family not in ("gptj", "text-to-image"):
        yield [None, _Technique("fused attention", {"attention": "sdpa"})]
    eight_bit = {"adamw": "adamw8bit", "lamb": "lamb8bit", "lion": "lion8bit"}.get(setup.optimizer)
    if eight_bit:
        # `optimizer_impl` goes back to its default: any other is refused for optimizers but AdamW.
        other = [_Technique("8-bit optimizer state", {"optimizer": eight_bit, "optimizer_impl": "foreach"})]
        if setup.optimizer == "adamw" and setup.optimizer_impl != "fused":
            other.append(_Technique("fused update", {"optimizer_impl": "fused"}))
        yield [None, *other]
    yield [None, *_smaller_passes(setup)]
    if not setup.offload_optimizer and not setup.optimizer.startswith("paged") and not device.unified:
        yield [None, _Technique("optimizer on the host", {"offload_optimizer": True}, rank=2)]
    yield [None, *_recomputing(setup, architecture)]
    if not (setup.shared_groups or architecture.shared_groups) and architecture.num_layers > 4:
        yield [None, _Technique("4 groups of layers that share weights", {"shared_groups": 4}, rank=3)]


def _smaller_passes(setup: Setup) -> Iterator[_Technique]:
    size, steps = setup.micro_batch_size, setup.accumulation_steps
    while size % 2 == 0:
        size, steps = size // 2, steps * 2
        changes = {"micro_batch_size": size, "accumulation_steps": steps}
        yield _Technique(f"micro-batches of {size}, accumulated over {steps}", changes, rank=1)


def _recomputing(setup: Setup, architecture: Architecture) -> Iterator[_Technique]:
    reversible = architecture.reversible if setup.reversible is None else setup.reversible
    if reversible or setup.checkpointing is True or setup.checkpointing == 1:
        return
    layers = min(architecture.num_layers, architecture.num_decoder_layers or architecture.num_layers)
    # Without checkpointing, as if the interval were longer than the stack.
    every = int(setup.checkpointing) or layers + 1
    for k, title in ((4, "checkpointing every 4th block"), (2, "checkpointing every 2nd block")):
        if k < min(every, layers):
            yield _Technique(title, {"checkpointing": k}, FORWARD_SHARE / k)
    yield _Technique("checkpointing", {"checkpointing": True}, FORWARD_SHARE)
    if architecture.family == "text-to-image":
        yield _Technique("reversible layers", {"reversible": True, "checkpointing": False}, FORWARD_SHARE)


def _cost(techniques: tuple[_Technique | None, ...]) -> tuple:
    chosen = [technique for technique in techniques if technique is not None]
    ranks = [technique.rank for technique in chosen]
    return (
        # In this order: another model, recomputation, transfers, smaller passes, and how many techniques there are.
        3 in ranks,
        round(sum(technique.extra_computation for technique in chosen), 3),
        2 in ranks,
        max((technique.changes.get("accumulation_steps", 0) for technique in chosen), default=0),
        len(chosen),
    )


def _suggestion(setup: Setup, device: Device, chosen: list[_Technique]) -> Suggestion | None:
    changes: dict[str, object] = {}
    for technique in chosen:
        changes |= technique.changes
    if "shared_groups" in changes and changes.get("checkpointing", True) is not True:
        return None  # shared weights are suggested only with full checkpointing or without any
    changed = replace(setup, **changes)
    try:
        result = estimate(changed)
        judged = verdict(changed, device, result)
    except BadSetup:  # the techniques exclude each other
        return None
    changes = {name: value for name, value in changes.items() if value != getattr(setup, name)}
    extra = sum(technique.extra_computation for technique in chosen)
    seconds = 0.0
    if changed.offload_optimizer and not setup.offload_optimizer:
        seconds = result.transfer.seconds
    costs = []
    if extra:
        costs.append(f"about {100 * extra:.0f} % more computation")
    if seconds:
        costs.append(f"{seconds:.2f} s over the bus for each update")
    if any(technique.rank == 1 for technique in chosen):
        costs.append("smaller passes, which may use the GPU less efficiently")
    if any(technique.rank == 3 for technique in chosen):
        costs.append("another model: the layers of a group share their weights")
    titles = tuple(technique.title for technique in chosen)
    needs = f"{_in_words(result, device)}, of {_gib(judged.usable_bytes)}"
    return Suggestion(
        techniques=titles,
        changes=changes,
        extra_computation=extra,
        seconds_per_update=seconds,
        verdict=judged,
        sentence=f"With {_listed(titles)} it needs {needs}; cost: {_listed(costs) or 'no extra time'}.",
    )


def _notes(setup: Setup, device: Device) -> tuple[str, ...]:
    notes = []
    if setup.precision.endswith("bf16") and not device.bfloat16:
        other = setup.precision.replace("bf16", "fp16")
        notes.append(f"The {device.title} has no bfloat16 units; {other} takes as much memory and is faster.")
    if setup.precision.endswith("bf16") and device.assumed:
        notes.append("The card is assumed to be of Ampere (2020) or newer: older ones have no bfloat16 units.")
    if device.unified:
        notes.append("Host and GPU share this memory: the host's part is counted too, and offloading saves nothing.")
        if "8bit" in setup.optimizer:
            notes.append("bitsandbytes' 8-bit optimizers are made for CUDA; we do not know whether they run here.")
    return tuple(notes)


def _is_tight(margin: int, device: Device) -> bool:
    return 100 * margin < TIGHT_PERCENT * device.usable_bytes


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
