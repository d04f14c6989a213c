"""Fit of a setup on a GPU: its margin, the largest micro-batch that fits, and techniques that make the setup fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from calculator.choose.devices import DEVICES, Device
from calculator.choose.techniques import BUS, BUS_IN_PASSES, OTHER_DATA, SMALLER_PASSES, Technique, choices
from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.parts.parameters import count_parameters
from calculator.step.answer import Estimate
from calculator.step.checks import shortest_sequence
from calculator.step.estimate import estimate
from calculator.step.resolve import resolve
from calculator.step.setups import Setup
from calculator.tape.eight_bit import tokens_at_once
from calculator.units import show_bytes, show_time

FP8_CAPABILITY = (8, 9)
"""NVIDIA's GPUs have units for FP8 from this compute capability on."""
TIGHT_PERCENT = 6
"""A margin below this percentage of the usable memory is called tight. It is the largest error that tests allow the
calculator (benchmarks/memory/memory_accuracy.py), and the uncounted fragmentation of the allocator needs room too."""
ADVISED_SHARE = 0.9
"""Advice on a run's settings fills at most this fraction of a GPU's memory, to leave room for what is not counted."""
MOST_SUGGESTIONS = 5
MORE_GPUS = tuple([2**power for power in range(1, 11)])
"""Numbers of GPUs that are tried for a model that fits none."""
LONGEST = 1_000_000
"""Longest sequence that is tried for a model without a limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Verdict on whether a setup fits a GPU."""

    gpu: str
    fits: bool
    standing: str
    """"fits", "tight" (margin below `TIGHT_PERCENT`) or "does not fit"."""
    need_bytes: int
    """Peak of the step, CUDA context and workspace; with unified memory, the peak and what the host holds."""
    usable_bytes: int
    margin_bytes: int
    """Usable bytes minus needed bytes; negative if the setup does not fit."""
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
    costs: str
    """Description of the costs, and of the changes to the training."""
    verdict: Fit
    sentence: str

    def as_dict(self) -> dict:
        """The suggestion as plain data."""
        return {**asdict(self), "techniques": list(self.techniques), "verdict": self.verdict.as_dict()}


def verdict(setup: Setup, device: Device, result: Estimate | None = None) -> Fit:
    """Judges whether a setup fits a GPU, and by what margin.

    Args:
        setup: The setup to judge.
        device: The GPU that it should fit.
        result: The setup's estimate, if it has been computed already.

    Raises:
        BadSetup: If the setup is not possible.

    >>> from calculator.choose.devices import device_named
    >>> verdict(Setup(model="gpt2-large", micro_batch_size=8), device_named("t4")).standing
    'does not fit'
    """
    result = result or estimate(setup)
    need = taken_bytes(result, device)
    margin = device.usable_bytes - need
    standing = "does not fit" if margin < 0 else "tight" if _is_tight(margin, device) else "fits"
    figures = f"it needs {_in_words(result, device)}, and {show_bytes(device.usable_bytes)} can be used"
    share = 100 * abs(margin) / device.usable_bytes
    sentence = {
        "fits": f"It fits the {device.title}: {figures}; {show_bytes(margin)} ({share:.0f} %) are left.",
        "tight": f"It is tight on the {device.title}: {figures}; fragmentation may take the {show_bytes(margin)} "
        f"({share:.1f} %) that are left.",
        "does not fit": f"It does not fit the {device.title}: {figures}; {show_bytes(-margin)} are missing.",
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

    With unified memory, the host's data are in the same memory, and there is no CUDA context.
    """
    return result.gpu.total + (result.host.total if device.unified else result.overhead["total"])


def _in_words(result: Estimate, device: Device) -> str:
    """Describes in words the peak, which every answer shows first, and the bytes that are added to it."""
    on_top = taken_bytes(result, device) - result.gpu.total
    what = "the host" if device.unified else "CUDA itself"
    return show_bytes(result.gpu.total) + (f" and {show_bytes(on_top)} for {what}" if on_top else "")


def roomy_bytes(device: Device) -> int:
    """The most that a setup may need on a device without being tight there."""
    return device.usable_bytes * (100 - TIGHT_PERCENT) // 100


def largest_micro_batch(setup: Setup, device: Device, *, most_bytes: int | None = None) -> int:
    """The most sequences per forward pass that fit, with everything else unchanged; 0 if not even one does.

    Args:
        setup: Setup whose other fields stay.
        device: The GPU that it should fit.
        most_bytes: The memory that it may take; None: all that is usable.

    >>> from calculator.choose.devices import device_named
    >>> largest_micro_batch(Setup(model="gpt2", checkpointing=True), device_named("rtx-2060"))
    6
    """
    step = tokens_at_once(setup.sequence_length or resolve(setup).sequence_length) if setup.fp8 else 1
    most_bytes = device.usable_bytes if most_bytes is None else most_bytes
    return step * _largest(
        lambda parts: need_bytes(replace(setup, micro_batch_size=step * parts), device), LONGEST // step, most_bytes
    )


def longest_sequence(setup: Setup, device: Device, *, most_bytes: int | None = None) -> int | None:
    """The most tokens per sequence that fit, with everything else unchanged; 0 if not even one does.

    Arguments as for `largest_micro_batch`. None if the model's length is fixed. For a model with two stacks it is the
    encoder's length. Lengths that are refused do not fit, and those for which the model was not trained are not tried,
    unless the setup has one.
    """
    architecture = resolve(setup)
    if architecture.fixed_length:
        return None
    most = max(architecture.max_positions or LONGEST, setup.sequence_length or 0)
    step = setup.gpus if setup.sharding == "tensor-sequence" else 1  # each GPU has as many tokens of a sequence
    if setup.fp8:
        step = tokens_at_once(setup.micro_batch_size)
    shortest = shortest_sequence(setup)  # if this does not fit, nothing does
    most_bytes = device.usable_bytes if most_bytes is None else most_bytes

    def need(parts: int) -> int:
        try:
            return need_bytes(replace(setup, sequence_length=max(step * parts, shortest)), device)
        except BadSetup:  # from some length on: a window then needs a mask, which not all heads can have
            return device.usable_bytes + 1

    return step * _largest(need, most // step, most_bytes)


def _largest(need: Callable[[int], int], most: int, most_bytes: int) -> int:
    """The largest number from 1 to `most` whose need fits.

    Doubling, then bisection: a larger number never needs less memory, and each trial costs an estimate.
    """
    if need(1) > most_bytes:
        return 0
    fits, too_much = 1, 2
    while too_much <= most and need(too_much) <= most_bytes:
        fits, too_much = too_much, 2 * too_much
    too_much = min(too_much, most + 1)
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if need(middle) <= most_bytes:
            fits = middle
        else:
            too_much = middle
    return fits


def suggestions(
    setup: Setup, device: Device, *, allowed: Callable[[Technique], bool] = lambda technique: True
) -> list[Suggestion]:
    """Sets of techniques that make a setup fit, the cheapest first; none if it fits, or if nothing helps.

    Sets that leave the training as it is come first, ordered by transfers of activations over the bus, recomputation,
    transfers in each update and smaller passes; then those that change its rounding or optimizer, its data, and last
    its model. A set that contains another set of the list is left out. If all train adapters alone, the last one makes
    room for the cheapest set that trains the whole model.

    Args:
        setup: The setup that is too large.
        device: The GPU that it should fit.
        allowed: Whether a technique may be part of a set.

    Raises:
        BadSetup: If the setup is not possible.
    """
    if verdict(setup, device).standing == "fits":
        return []
    found = _cheapest_sets(setup, device, allowed)
    if setup.lora_rank is None and found and all("lora_rank" in one.changes for one in found):
        whole = _cheapest_sets(setup, device, lambda one: "lora_rank" not in one.changes and allowed(one), most=1)
        found = [*found[: MOST_SUGGESTIONS - len(whole)], *whole]
    return found


def _cheapest_sets(
    setup: Setup, device: Device, allowed: Callable[[Technique], bool], most: int = MOST_SUGGESTIONS
) -> list[Suggestion]:
    """Lists the cheapest sets of techniques that fit, in the order of `suggestions`."""
    found: list[Suggestion] = []
    tight: list[Suggestion] = []
    taken: list[tuple[Technique | None, ...]] = []
    nearly: list[tuple[Technique | None, ...]] = []
    offered = [[one for one in choice if one is None or allowed(one)] for choice in choices(setup, device)]
    hopeless: dict[tuple, bool] = {}
    # Cheapest first, so that a set which only adds techniques to one that fits already is skipped without an estimate.
    for techniques in sorted(product(*offered), key=_cost):
        if not any(techniques) or any(_is_more(techniques, enough) for enough in taken):
            continue
        changing = tuple([i for i, technique in enumerate(techniques) if _changes_training(technique)])
        key = (changing, *[techniques[i].title for i in changing])
        if key not in hopeless:
            hopeless[key] = _is_hopeless(setup, device, offered, techniques)
        if hopeless[key]:
            continue
        suggestion = _suggestion(setup, device, [technique for technique in techniques if technique])
        if suggestion is None or not suggestion.verdict.fits:
            continue
        if suggestion.verdict.standing == "tight":
            # It may still be part of a set that fits with room to spare, so only the list of tight ones omits it.
            if not any(_is_more(techniques, enough) for enough in nearly):
                nearly.append(techniques)
                tight.append(suggestion)
            continue
        taken.append(techniques)
        found.append(suggestion)
        if len(found) == most:
            break
    return found or tight[:most]


def _is_hopeless(setup: Setup, device: Device, offered: list, techniques: tuple[Technique | None, ...]) -> bool:
    """Returns True if a set does not suffice even with every technique that leaves the training as it is.

    This spares the estimates of hundreds of sets where a model is much too large.
    """
    strongest = [
        [chosen] if _changes_training(chosen) else [t for t in choice if not _changes_training(t)][-2:]
        for choice, chosen in zip(offered, techniques, strict=True)
    ]
    needs = [_need(setup, device, [t for t in chosen if t]) for chosen in product(*strongest)]
    return min((need for need in needs if need is not None), default=0) > device.usable_bytes


def _changes_training(technique: Technique | None) -> bool:
    return technique is not None and technique.rank > BUS_IN_PASSES


def _need(setup: Setup, device: Device, chosen: Sequence[Technique]) -> int | None:
    """Bytes that a setup needs with these techniques; None if they exclude each other."""
    try:
        return need_bytes(_changed(setup, chosen), device)
    except BadSetup:
        return None


def _changed(setup: Setup, chosen: Sequence[Technique]) -> Setup:
    changes: dict[str, object] = {}
    for technique in chosen:
        changes |= technique.changes
    return replace(setup, **changes)


def _is_more(techniques: tuple[Technique | None, ...], enough: tuple[Technique | None, ...]) -> bool:
    """Returns True if a set has, for each choice, the technique of a sufficient set, or a costlier one of its kind."""
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
    """Techniques that make a setup fit, as plain data, with a sentence that introduces them."""
    standing = verdict(setup, device).standing
    found = suggestions(setup, device)
    if standing == "fits":
        sentence = f"It fits the {device.title} as it is."
    elif found:
        sentence = f"Ways to make it fit the {device.title}, those first that change least about the training:"
    else:
        sentence = f"No set of the techniques counted here makes it fit the {device.title}; {_larger(setup, device)}."
        sentence += _among_more(setup, device) + _in_4_bits(setup, device)
    return {"sentence": sentence, "suggestions": [suggestion.as_dict() for suggestion in found]}


def _in_4_bits(setup: Setup, device: Device) -> str:
    """A sentence about weights of 4 bits, if they would fit but the calculator has no rule for this model;
    else empty."""
    architecture = resolve(setup)
    family = family_of(architecture)
    if family.modules is None or family.in_4_bits or not architecture.released:
        return ""
    # Experts stay in 16 bits, see `calculator.choose.stored`.
    if architecture.num_experts or count_parameters(architecture) / 2 > device.usable_bytes:
        return ""
    return f" QLoRA, with weights of 4 bits, may fit; it is not counted for {architecture.name}."


def _cost(techniques: tuple[Technique | None, ...]) -> tuple:
    chosen = [technique for technique in techniques if technique is not None]
    ranks = [technique.rank for technique in chosen]
    changing = sorted([rank for rank in ranks if rank > BUS_IN_PASSES], reverse=True)
    return (
        # In this order: changes of the training, the largest first; how far data are cut; transfers in each pass,
        # recomputation, transfers in each update, smaller passes, and how many techniques there are.
        changing,
        sum(technique.level for technique in chosen if technique.rank == OTHER_DATA),
        BUS_IN_PASSES in ranks,
        round(sum(technique.extra_computation for technique in chosen), 3),
        BUS in ranks,
        max((technique.changes.get("accumulation_steps", 0) for technique in chosen), default=0),
        len(chosen),
    )


def _suggestion(setup: Setup, device: Device, chosen: list[Technique]) -> Suggestion | None:
    changed = _changed(setup, chosen)
    if changed.shared_groups and not isinstance(changed.checkpointing, bool):
        return None  # shared weights are suggested only with full checkpointing or without any
    try:
        result = estimate(changed)
        judged = verdict(changed, device, result)
    except BadSetup:  # the techniques exclude each other
        return None
    changes = {name: getattr(changed, name) for technique in chosen for name in technique.changes}
    changes = {name: value for name, value in changes.items() if value != getattr(setup, name)}
    moves = any(technique.rank in (BUS, BUS_IN_PASSES) for technique in chosen)
    seconds = result.transfer.seconds if moves else 0.0
    titles = tuple(technique.title for technique in chosen)
    needs, costs = (
        f"{_in_words(result, device)}, of {show_bytes(judged.usable_bytes)}",
        _costs(changed, chosen, seconds),
    )
    return Suggestion(
        techniques=titles,
        changes=changes,
        extra_computation=sum(technique.extra_computation for technique in chosen),
        seconds_per_update=seconds,
        costs=costs,
        verdict=judged,
        sentence=f"With {_listed(titles)} it needs {needs}; cost: {costs}.",
    )


def _costs(changed: Setup, chosen: Sequence[Technique], seconds: float) -> str:
    """Describes the costs of a set of techniques."""
    costs = []
    extra = sum(technique.extra_computation for technique in chosen)
    if extra:
        costs.append(f"about {100 * extra:.0f} % more computation")
    if seconds:
        costs.append(f"{show_time(seconds)} over the bus for each update")
    if any(technique.rank == SMALLER_PASSES for technique in chosen):
        costs.append("smaller passes, which may use the GPU less efficiently")
    for technique in chosen:
        caveat = technique.offloaded_caveat if changed.offload_optimizer else ""
        costs += [caveat or technique.caveat] if caveat or technique.caveat else []
    return ", ".join(costs) or "no extra time"


def _larger(setup: Setup, device: Device) -> str:
    """Advice if no set of techniques suffices: the smallest GPU that the strongest set fits, at full length."""
    # What the setup's own choices exclude, such as LoRA beside Muon, is no way for it.
    possible = [
        [t for t in choice if t is None or (t.rank < OTHER_DATA and _need(setup, device, [t]) is not None)]
        for choice in choices(setup, device)
    ]
    sets = [[t for t in chosen if t] for chosen in product(*(choice[-2:] for choice in possible))]
    larger = sorted(
        [other for other in DEVICES.values() if other.usable_bytes > device.usable_bytes and not other.unified],
        key=lambda other: other.usable_bytes,
    )
    for other in larger:
        needs = [need for need in (_need(setup, other, chosen) for chosen in sets) if need is not None]
        if needs and min(needs) <= other.usable_bytes:
            return (
                f"choose a smaller model, or a larger GPU: with all of them, the smallest listed is the {other.title}"
            )
    listed = "single GPU" if setup.gpus == 1 else f"{setup.gpus} equal GPUs"
    return f"choose a smaller model: with all of them, it fits no {listed} of the list"


def _among_more(setup: Setup, device: Device) -> str:
    """A sentence on how many of these GPUs would do if they divide the model, or what each needs if no number does.

    Empty if FSDP2 is not counted for the setup.
    """
    changes, how = dividing(setup)
    tried: dict[int, Estimate] = {}
    for gpus in _more_gpus(setup, device):
        try:
            tried[gpus] = estimate(replace(setup, gpus=gpus, **changes))
        except BadSetup:
            return ""
        if taken_bytes(tried[gpus], device) <= device.usable_bytes:
            return f" Divided among {gpus} of the {device.title}, it fits ({how})."
    if not tried:
        return ""
    gpus, least = min(tried.items(), key=lambda one: taken_bytes(one[1], device))
    undivided = show_bytes(least.gpu.activations + least.gpu.temporary)
    return (
        f" More GPUs are not enough: divided among {gpus} of the {device.title}, it needs {_in_words(least, device)} "
        f"on each ({how}); {undivided} of it are activations and temporary buffers, which are not divided further."
    )


def dividing(setup: Setup) -> tuple[dict[str, object], str]:
    """Changes to a setup with which many GPUs divide its model, and a description of the changes."""
    changes = {"sharding": "zero-3", "checkpointing": True, "offload_optimizer": False, "delta_rule": False}
    how = "FSDP2, ZeRO-3, with checkpointing"
    if setup.optimizer != "sgd":
        changes |= {"optimizer": "adamw", "optimizer_impl": "fused", "optimizer_rank": None}
        how += " and fused AdamW"
    return changes, how


def fewest_gpus(setup: Setup, device: Device) -> int | None:
    """The least number of GPUs that, dividing a setup's model, have room to spare for it; None if no number has.

    Raises:
        BadSetup: If FSDP2 is not counted for the setup.

    >>> from calculator.choose.devices import device_named
    >>> fewest_gpus(Setup(model="gpt3-13b"), device_named("a100-80gb"))
    3
    """
    changes, _ = dividing(setup)

    def fits(gpus: int) -> bool:
        return need_bytes(replace(setup, gpus=gpus, **changes), device) <= roomy_bytes(device)

    lower = 1
    for gpus in _more_gpus(replace(setup, gpus=1), device):
        if fits(gpus):
            break
        lower = gpus
    else:
        return None
    while gpus - lower > 1:
        middle = (lower + gpus) // 2
        lower, gpus = (lower, middle) if fits(middle) else (middle, gpus)
    return gpus


def _more_gpus(setup: Setup, device: Device) -> list[int]:
    """Numbers of GPUs beyond a setup's own among which its model may be divided."""
    if device.unified:
        return []
    # Beyond one GPU for each expert, more GPUs need more memory: FSDP2 pads a layer's experts to their number.
    return [gpus for gpus in sorted({*MORE_GPUS, resolve(setup).num_experts}) if gpus > setup.gpus]


def _notes(setup: Setup, device: Device) -> tuple[str, ...]:
    notes = []
    if setup.precision.endswith("bf16") and not device.bfloat16:
        other = setup.precision.replace("bf16", "fp16")
        notes.append(f"The {device.title} has no bfloat16 units; {other} takes as much memory and is faster.")
    if setup.precision.endswith("bf16") and device.assumed:
        notes.append("The card is assumed to be of Ampere (2020) or newer: older ones have no bfloat16 units.")
    if setup.fp8 and (device.unified or (device.capability or FP8_CAPABILITY) < FP8_CAPABILITY):
        notes.append(f"The {device.title} has no units for FP8, which came with Ada and Hopper (2022); omit fp8.")
    if setup.loss == "liger" and not device.bfloat16 and setup.lora_rank is None and setup.precision != "fp32":
        architecture = resolve(setup)
        # The gradient of a piece in 16 bits, and its copy in 32 (Liger 0.8.5, before compute capability 8.0).
        more = show_bytes(6 * architecture.vocab_size * architecture.hidden_size)
        notes.append(f"On the {device.title}, a piece of the loss takes up to {more} more than is counted.")
    if device.unified:
        notes.append("Host and GPU share this memory: the host's part is counted too, and offloading saves nothing.")
        if "8bit" in setup.optimizer:
            notes.append("bitsandbytes' 8-bit optimizers are made for CUDA; we do not know whether they run here.")
    return tuple(notes)


def _is_tight(margin: int, device: Device) -> bool:
    return 100 * margin < TIGHT_PERCENT * device.usable_bytes


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
