"""The answer to a question in a reader's own words, and the tables and fields that the page shows for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from calculator.choose import fit
from calculator.choose.devices import Device, device_named, smallest_first
from calculator.choose.inference import InferenceMemory, inference_memory, largest_batch, longest_context
from calculator.choose.stored import can_be_stored
from calculator.choose.techniques import FORWARD_SHARE
from calculator.errors import BadSetup
from calculator.models.architectures import PRESETS, Architecture
from calculator.page.advised import FREE, as_texts
from calculator.page.fitting import largest_in_words, models_on, with_applicable
from calculator.page.question.kinds import BATCH, COUNT, GPUS, LENGTH, MODELS, SAVING
from calculator.page.question.said import assumed, in_words, said
from calculator.page.question.understood import Question, understood
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.setups import DEFAULTS, Setup
from calculator.units import show_bytes, show_count

OFF: dict[str, object] = {"attention": "eager", "precision": "fp32"}
"""Values with which a technique is off, where that is not the calculator's default."""
SERVER = 8
"""GPUs of the usual server."""
STORED = {"bf16": "16 bits", "fp8": "8 bits (FP8)", "nf4": "4 bits (NF4)", "mxfp4": "4 bits (MXFP4)", "fp32": "32 bits"}
"""Types of weights in words, from the largest type used for generating text down."""


def answered(text: str, defaults: Mapping[str, object]) -> dict:
    """Answers a question.

    Args:
        text: The reader's words.
        defaults: The keys of a setup with which the page begins.

    Returns:
        `answer`, sentences that answer what the total and the verdict do not, or ""; `said`, what was understood and
        what is assumed; `values`, texts of the form's fields; `opens`, the name of a table of the page that belongs to
        the question, or ""; `fields`, the texts of that table's own fields; and `alone`, true if the rest of the page,
        which is about training the model in the form, does not answer the question.

    Raises:
        BadSetup: If the question is not understood, or the calculator has no answer.
    """
    found = understood(text)
    if found.kind == MODELS:
        return _models(found, defaults)
    if found.generating:
        return _generated(found)
    return _trained(found, defaults)


def _answer(
    found: Question,
    answer: str,
    more: str = "",
    *,
    values: Mapping[str, object],
    opens: str = "",
    fields: Mapping[str, object] | None = None,
    alone: bool = False,
) -> dict:
    return {
        "answer": answer,
        "said": " ".join(filter(None, [said(found), more])),
        "values": as_texts({"gpu": found.gpu, **values}),
        "opens": opens,
        "fields": as_texts(fields or {}),
        "alone": alone,
    }


def _models(found: Question, defaults: Mapping[str, object]) -> dict:
    device = device_named(found.gpu)
    settings = {**defaults, **found.setup}
    if int(settings.get("gpus", 1)) > 1 and "sharding" not in settings:
        settings |= {"optimizer": "adamw", "sharding": "zero-3"}
    words = in_words(settings)
    rest = f"The models are trained with: {', '.join(words)}." if words else ""
    if int(settings.get("gpus", 1)) > 1:
        rest = f"{rest} Generating is counted on one GPU.".strip()
    answer = f"On the {device.title}, {largest_in_words(models_on(device, settings))}"
    return _answer(found, answer, rest, values=settings, opens="models", alone=True)


def _trained(found: Question, defaults: Mapping[str, object]) -> dict:
    if found.kind == SAVING:
        return _saved(found)
    named = Setup(**found.setup)
    setup = with_applicable(named, {k: v for k, v in defaults.items() if k not in found.setup})
    estimate(setup)  # what excludes each other is said here: the form would leave one of them out
    rest = assumed(found, setup)
    if found.kind in (COUNT, LENGTH, BATCH) and not found.gpu:
        opens = f"{rest} Name a GPU for this question: the table below has all of them.".strip()
        return _answer(found, "", opens, values=found.setup, opens="gpus")
    if found.kind == COUNT:
        return _counted(found, setup)
    if found.kind in (LENGTH, BATCH):
        return _largest(found, setup, rest)
    answer = ""
    if not found.gpu:
        answer = _smallest(setup)
        rest = f"{rest} No GPU is named: the table below has all of them.".strip()
    opens = "gpus" if found.kind == GPUS or not found.gpu else ""
    return _answer(found, answer, rest, values=found.setup, opens=opens, fields=found.run)


def _smallest(setup: Setup) -> str:
    """A sentence on the smallest GPU that a setup fits with room to spare."""
    each = f" on each of {setup.gpus} GPUs" if setup.gpus > 1 else ""
    need = f"{setup.model} needs {show_bytes(estimate(setup).gpu.total)}{each}, without CUDA itself."
    verdicts = ((one, fit.verdict(setup, one)) for one in smallest_first() if not one.unified)
    smallest = next((one.title for one, judged in verdicts if judged.standing == "fits"), None)
    if smallest is None:
        return f"{need} No listed GPU has room for it."
    return f"{need} The smallest listed GPU with room for it is the {smallest}."


def _counted(found: Question, setup: Setup) -> dict:
    """The least number of GPUs that divide a model."""
    device, one = device_named(found.gpu), replace(setup, gpus=1, sharding="none")
    if fit.verdict(one, device).standing == "fits":
        answer = f"1 is enough: it fits one {device.title}."
        return _answer(found, answer, assumed(found, one), values={**found.setup, "gpus": 1})
    changes, how = fit.dividing(one)
    try:
        gpus = fit.fewest_gpus(one, device)
    except BadSetup as error:
        answer = f"It does not fit one {device.title}, and a way to divide it is not counted. {error}"
        return _answer(found, answer, assumed(found, one), values=found.setup)
    rest = assumed(found, replace(one, gpus=gpus or fit.MORE_GPUS[-1], **changes))
    if gpus is None:
        answer = f"No number of the {device.title}, up to {fit.MORE_GPUS[-1]}, has room for it ({how})."
        return _answer(found, answer, rest, values=found.setup)
    answer = f"At least {gpus} of the {device.title} train {setup.model} if they divide it: {how}."
    if gpus > SERVER and gpus % SERVER:
        answer += f" In servers of {SERVER} these are {-(-gpus // SERVER) * SERVER}."
    return _answer(found, answer, rest, values={**found.setup, "gpus": gpus, **changes})


def _largest(found: Question, setup: Setup, rest: str) -> dict:
    """The longest sequence or the largest micro-batch that fits with room to spare."""
    device = device_named(found.gpu)
    room = fit.roomy_bytes(device)
    if found.kind == BATCH:
        name, size = "micro_batch_size", fit.largest_micro_batch(setup, device, most_bytes=room)
        largest, least = f"largest micro-batch on the {device.title} is {show_count(size)}", "a micro-batch of 1"
    else:
        name, size = "sequence_length", fit.longest_sequence(setup, device, most_bytes=room)
        largest, least = f"longest sequence on the {device.title} has {show_count(size or 0)} tokens", "one token"
    if size is None:
        return _answer(found, f"The length of {setup.model}'s sequences is fixed.", rest, values=found.setup)
    if not size:
        answer = f"Not even {least} fits the {device.title}; the table of what you could do has ways."
        return _answer(found, answer, rest, values=found.setup)
    return _answer(found, f"The {largest}, which {FREE}.", rest, values={**found.setup, name: size})


def _saved(found: Question) -> dict:
    """Compares the memory with and without each named technique, with nothing else changed."""
    base = _without(Setup(**found.setup), found.techniques)
    apart = [changes for changes in found.techniques if replace(base, **changes) != base]
    answer = " ".join(_compared(base, changes) for changes in apart)
    own = {name for changes in found.techniques for name in changes}
    same = {name: value for name, value in _described(base).items() if name not in own}
    rest = f"All else is the same in both: {', '.join(in_words(same))}."
    shown = replace(base, **apart[0]) if apart else base
    values = {name: getattr(shown, name) for name in (*same, *own, *found.setup)}
    return _answer(found, answer, rest, values=values)


def _compared(base: Setup, changes: dict[str, object]) -> str:
    """A sentence on the memory with a technique and without it: without accumulation, the micro-batch is as large."""
    name = ", ".join(in_words({key: value for key, value in changes.items() if getattr(base, key) != value}))
    apart, whole = "without", base
    if "accumulation_steps" in changes:
        size = base.micro_batch_size * changes["accumulation_steps"]
        apart, whole = f"as one micro-batch of {size}", replace(base, micro_batch_size=size)
    without, with_it = estimate(whole), estimate(replace(base, **changes))
    off, on = without.gpu.total, with_it.gpu.total
    cost = f" It costs about {100 * FORWARD_SHARE:.0f}\u00a0% more computation." if changes.get("checkpointing") else ""
    said = f"{name[0].upper()}{name[1:]}: {show_bytes(off)} {apart}, {show_bytes(on)} with"
    if on < off:
        return f"{said}: it saves {show_bytes(off - on)} ({100 * (off - on) / off:.0f}\u00a0%).{cost}"
    before, after = (_most_in_forward(one) for one in (without, with_it))
    where = "the optimizer's step" if without.peak.phase == "optimizer" else without.peak.phase
    return (
        f"{said}: it saves nothing here, as the peak is in {where}. At the end of forward, there are "
        f"{show_bytes(before)} {apart}, {show_bytes(after)} with.{cost}"
    )


def _most_in_forward(result: Estimate) -> int:
    return max(instant.bytes for instant in result.timeline if instant.phase == "forward")


def _without(setup: Setup, techniques: tuple[dict[str, object], ...]) -> Setup:
    """A setup in which these techniques are off."""
    names = {name for changes in techniques for name in changes}
    return replace(setup, **{name: OFF.get(name, DEFAULTS[name]) for name in names})


def _described(setup: Setup) -> dict[str, object]:
    """The fields by which a comparison is described."""
    names = ("optimizer", "precision", "checkpointing", "micro_batch_size")
    given = {k: v for k, v in asdict(setup).items() if k not in ("model", "config") and v != DEFAULTS[k]}
    return given | {name: getattr(setup, name) for name in names}


def _generated(found: Question) -> dict:
    """The memory of generating text with a model, and what fits the GPU if one is named."""
    architecture = PRESETS[str(found.setup["model"])]
    fields: dict[str, object] = {
        "batch": found.setup.get("micro_batch_size", 1),
        "length": found.setup.get("sequence_length", architecture.sequence_length),
        "weights": _weights(architecture, found.stored.get("weights")),
        "cache": found.stored.get("cache", "bf16"),
    }
    memory = inference_memory(architecture, **fields)
    answer = (
        f"{architecture.name}, {_sequences(fields['batch'])} of {show_count(fields['length'])} tokens: cached keys and "
        f"values {show_bytes(memory.cache)}, weights in {STORED[fields['weights']]} {show_bytes(memory.weights)}, with "
        f"CUDA itself {show_bytes(memory.total)}."
    )
    if found.gpu:
        answer = f"{answer} {_on_device(found, architecture, memory, fields, device_named(found.gpu))}"
    shown = {k: v for k, v in fields.items() if k != "batch" or v != 1}
    named = {"length": "sequence_length" in found.setup, "weights": "weights" in found.stored}
    usual = {"length": f"{show_count(fields['length'])} tokens", "weights": f"weights in {STORED[fields['weights']]}"}
    parts = [words for name, words in usual.items() if not named[name]]
    rest = f"Not named, so the table begins with {' and '.join(parts)}." if parts else ""
    return _answer(found, answer, rest, values={"model": architecture.name}, opens="generate", fields=shown, alone=True)


def _weights(architecture: Architecture, kind: str | None) -> str:
    """The type of weights that is asked for, or else that the model is published in; MXFP4 stands for any 4 bits."""
    if kind in (None, "nf4") and can_be_stored(architecture, "mxfp4"):
        return "mxfp4"
    return kind or "bf16"


def _on_device(
    found: Question, architecture: Architecture, memory: InferenceMemory, fields: dict[str, object], device: Device
) -> str:
    """Sentences on whether a GPU, or several of them, have room, and what else would fit."""
    smaller = {
        kind: inference_memory(architecture, **{**fields, "weights": kind})
        for kind in ("fp8", "mxfp4", "nf4")
        if kind != fields["weights"] and can_be_stored(architecture, kind)
    }
    smaller = {kind: other for kind, other in smaller.items() if other.total < memory.total}
    gpus = int(found.setup.get("gpus", 1))
    if found.kind == COUNT or gpus > 1:
        return _on_several(memory, smaller, device, None if found.kind == COUNT else gpus)
    others = {name: fields[name] for name in ("weights", "cache")}
    left = device.usable_bytes - memory.total_on(device)
    if left >= 0:
        longest = longest_context(architecture, device, batch=fields["batch"], **others)
        most = largest_batch(architecture, device, length=fields["length"], **others)
        return (
            f"It fits the {device.title}, {show_bytes(left)} left. At most: {_sequences(fields['batch'])} of "
            f"{show_count(longest)} tokens, or {show_count(most)} of {show_count(fields['length'])}."
        )
    missing = f"It does not fit the {device.title}, {show_bytes(-left)} missing."
    for kind, other in smaller.items():
        if other.total_on(device) <= device.usable_bytes:
            longest = longest_context(architecture, device, batch=fields["batch"], **{**others, "weights": kind})
            return (
                f"{missing} With weights in {STORED[kind]} it fits: {show_bytes(other.total_on(device))}, up to "
                f"{show_count(longest)} tokens."
            )
    return f"{missing} No listed type of weights makes it fit."


def _on_several(memory: InferenceMemory, smaller: dict[str, InferenceMemory], device: Device, gpus: int | None) -> str:
    """Sentences on GPUs that would divide weights and cache evenly, which is the best case."""

    def least(one: InferenceMemory) -> int:
        each = device.usable_bytes - (0 if device.unified else one.overhead)
        return -(-(one.weights + one.cache) // each)

    ways = [("", memory), *((f", with weights in {STORED[kind]}", other) for kind, other in smaller.items())]
    if gpus is None:
        numbers = "; ".join(f"{least(one)}{how}" for how, one in ways)
        return f"Of the {device.title}, it needs at least {numbers}, if they divide weights and cache evenly."
    for how, one in ways:
        if least(one) <= gpus:
            share = show_bytes((one.weights + one.cache) // gpus + (0 if device.unified else one.overhead))
            return f"{gpus} of the {device.title} have room{how}: {share} on each, if they divide it evenly."
    enough = least(ways[-1][1])
    return f"{gpus} of the {device.title} have no room, even if they divide it evenly: it takes at least {enough}."


def _sequences(count: object) -> str:
    return "1 sequence" if count == 1 else f"{show_count(count)} sequences"
