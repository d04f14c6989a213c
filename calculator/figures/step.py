"""The figure of a training step's memory over its course: each technique is a switch, and what it saves an area.

The curve has the instants of the calculator's estimate. Its model is one of a list, or the reader's own setup, which
the calculator's page puts into the address (`address_of`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from calculator.errors import BadSetup
from calculator.figures.kit.controls import Choice, Given, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.thousandfold import SHARED_GROUPS
from calculator.parts.optimizers import OPTIMIZERS
from calculator.reports.json_text import parsed
from calculator.step.answer import Estimate, StepInstant
from calculator.step.estimate import estimate
from calculator.step.resolve import check_layers, plain, resolve
from calculator.step.setups import DEFAULTS, Setup, setup_from
from calculator.units import show_bytes, show_share

MODELS = ("dalle-2021", "bert-large", "gpt2-large", "gpt2-xl", "llama-3.2-1b", "llama-3.1-8b", "t5-3b")
CLOSER = 0.5
"""The step is drawn a second time, on an axis of its own, if its peak is below this share of the plain step's."""
PARTS = {
    "weights": ("Weights", "fill-1"),
    "optimizer_state": ("Optimizer", "fill-2"),
    "gradients": ("Gradients", "fill-3"),
    "activations": ("Activations", "fill-4"),
    "temporary": ("Temporary", "fill-5"),
}
"""Parts of the memory from the lowest up, with their colours."""
PHASES = {"forward": ("Forward", 0.38), "backward": ("Backward", 0.45), "optimizer": ("Update", 0.17)}
"""Phases of the step with their shares of the drawing's width."""

Fields = dict[str, object]
"""Fields of a setup, and their values."""


@dataclass(frozen=True, slots=True)
class Technique:
    """What a switch of the figure sets in a setup."""

    off: Callable[[Setup], Fields]
    """Fields without the technique."""
    on: Callable[[Setup], Fields]
    """Fields with it; the reader's own, if the reader uses it."""


def _eight_bits(setup: Setup) -> Fields:
    own = setup.optimizer
    named = own if own in OPTIMIZERS and "8bit" in own else f"{own}8bit"
    if named not in OPTIMIZERS:
        raise BadSetup(f"{own} has no version in 8 bits here.")
    return {"optimizer": named}


def _thirty_two_bits(setup: Setup) -> Fields:
    own = setup.optimizer.replace("8bit", "")
    return {"optimizer": own if own in OPTIMIZERS else setup.optimizer}


def _groups(setup: Setup) -> Fields:
    model = resolve(setup)
    own = model.shared_groups if setup.shared_groups is None else setup.shared_groups
    return {"shared_groups": own if own and own != plain(setup).shared_groups else SHARED_GROUPS}


def _precision(name: str) -> Callable[[Setup], str]:
    """Makes a function that chooses a setup's precision of a kind: the reader's own, if it is of that kind."""
    usual, own = {"fp32": ("fp32", ()), "mixed": ("amp-bf16", ("amp-fp16",)), "half": ("bf16", ("fp16",))}[name]
    return lambda setup: setup.precision if setup.precision in own else usual


PRECISIONS = {name: _precision(name) for name in ("mixed", "half", "fp32")}
TECHNIQUES = {
    "fused": Technique(lambda setup: {"attention": "eager"}, lambda setup: {"attention": "sdpa"}),
    "sharing": Technique(lambda setup: {"shared_groups": plain(setup).shared_groups}, _groups),
    # Before checkpointing, for which reversible layers leave nothing to do.
    "reversible": Technique(lambda setup: {"reversible": plain(setup).reversible}, lambda setup: {"reversible": True}),
    "checkpointing": Technique(
        lambda setup: {"checkpointing": False}, lambda setup: {"checkpointing": setup.checkpointing or True}
    ),
    "eight": Technique(_thirty_two_bits, _eight_bits),
    "offload": Technique(
        lambda setup: {"offload_optimizer": False, "delta_rule": False},
        lambda setup: {"offload_optimizer": True, "delta_rule": setup.delta_rule},
    ),
}
LABELS = {
    "fused": "Fused attention",
    "sharing": "Shared weights",
    "reversible": "Reversible layers",
    "checkpointing": "Checkpointing",
    "eight": "8-bit optimizer",
    "offload": "Optimizer on the host",
    "precision": "Precision",
}


@dataclass(frozen=True, slots=True)
class Course:
    """A step without any technique and with those that are chosen."""

    setup: Setup
    without: Estimate
    chosen: Estimate
    refused: tuple[str, ...]
    """A sentence for each choice that the calculator refuses beside the others."""

    @property
    def layers(self) -> dict[str, int]:
        """Layers of each stack; see `places`."""
        model = resolve(self.setup)
        return {"layer": model.num_layers, "encoder": model.num_layers, "decoder": model.num_decoder_layers}


def course_of(values: Values) -> Course:
    """Both steps for the reader's values."""
    own = str(values["own"])
    setup = setup_from(parsed(own)) if own else _listed(values)
    return switched(setup, {name: str(values[name]) for name in LABELS})


def _listed(values: Values) -> Setup:
    return Setup(model=str(values["model"]), micro_batch_size=int(values["batch"]))


def switched(setup: Setup, choices: dict[str, str]) -> Course:
    """A setup's step with each technique switched as chosen, beside the plain one.

    A choice that the calculator refuses beside those before it keeps the value that the setup has without it.
    """
    chosen, refused = setup, []
    for technique in TECHNIQUES.values():
        chosen, _ = _changed(chosen, technique.off(setup))
    precision = PRECISIONS[choices["precision"]]
    wanted = {"precision": lambda setup: {"precision": precision(setup)}}
    wanted |= {name: technique.on for name, technique in TECHNIQUES.items() if choices[name] == "on"}
    for name, fields_of in wanted.items():
        try:
            chosen, refusal = _changed(chosen, fields_of(setup))
        except BadSetup as error:
            refusal = str(error)
        if refusal:
            refused.append(f"{LABELS[name]}: not switched. {refusal}")
    return Course(chosen, estimate(plain(setup)), estimate(chosen), tuple(refused))


def _changed(setup: Setup, fields: Fields) -> tuple[Setup, str]:
    """The setup with new values of some fields, or as it is and the calculator's refusal."""
    changed = replace(setup, **fields)
    try:
        resolve(changed)
    except BadSetup as error:
        return setup, str(error)
    return changed, ""


def address_of(setup: Setup) -> dict[str, str]:
    """Names and values by which an address sets the figure to a setup, for the calculator's page."""
    kept = {name: value for name, value in asdict(setup).items() if value != DEFAULTS[name]}
    values = {"own": json.dumps(kept, separators=(",", ":"))}
    values["precision"] = next(name for name, of in PRECISIONS.items() if of(setup) == setup.precision)
    model, bare = resolve(setup), plain(setup)
    shared = model.shared_groups if setup.shared_groups is None else setup.shared_groups
    is_on = {
        "fused": setup.attention == "sdpa",
        "sharing": bool(shared) and shared != (bare.shared_groups or model.num_layers),
        "reversible": bool(model.reversible if setup.reversible is None else setup.reversible),
        "checkpointing": bool(setup.checkpointing),
        "eight": "8bit" in setup.optimizer,
        "offload": setup.offload_optimizer,
    }
    values |= {name: "on" if is_on[name] else "off" for name in TECHNIQUES}
    return {f"{FIGURE.name}.{name}": value for name, value in values.items()}


def _refusal(text: str) -> str:
    """Says why the figure cannot draw the step of a setup; returns an empty text if it can."""
    try:
        setup = setup_from(parsed(text, "it"))
        check_layers(setup, resolve(setup))
        plain(setup)
    except BadSetup as error:
        return f"{error} A listed model is shown."
    return ""


def places(instants: tuple[StepInstant, ...], layers: dict[str, int]) -> list[float]:
    """Position of each instant in the drawing, from 0 to 1; within a phase each layer takes equally long.

    Of a run of equal layers the estimate has one instant, the highest. Between instants the curve is a straight line,
    since each layer of a run adds or frees as much.

    Args:
        instants: Instants of the step.
        layers: Layers of each stack, by its name in `StepInstant.place`.
    """
    found, start = [], 0.0
    for phase, (_, share) in PHASES.items():
        along, before = [], ("", 0)
        for instant in instants:
            if instant.phase == phase:
                stack, _, number = instant.place.rpartition(" ")
                now = (stack, int(number)) if stack in layers and number.isdecimal() else ("", 0)
                passed = _passed(before, now, layers, forward=phase == "forward")
                along.append(along[-1] + passed if along else 0)
                before = now
        found += [start + share * (one / along[-1] if along[-1] else 0.0) for one in along]
        start += share
    return found


def _passed(before: tuple[str, int], now: tuple[str, int], layers: dict[str, int], *, forward: bool) -> int:
    """Layers, or stretches outside of the layers, from one instant to the next.

    Args:
        before: Stack and layer of the instant before; an empty stack outside of the layers.
        now: Stack and layer of the instant.
        layers: Layers of each stack.
        forward: True in forward, in which layers run from the first to the last.
    """
    (left, last), (entered, first) = before, now
    if left and left == entered:
        return max(1, abs(first - last))
    rest = 0 if not left else layers[left] - last if forward else last - 1
    return rest + (1 if not entered else first if forward else layers[entered] - first + 1)


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws the parts of the chosen step over its course, and above them what they save of the plain step."""
    course = course_of(values)
    without, chosen = course.without, course.chosen
    canvas.text(0, 14, _title(course.setup, canvas.narrow), "strong")
    highest = max(without.gpu.total, chosen.gpu.total)
    bottom = _plot(canvas, course, 46, 190 if canvas.narrow else 240, highest, saved=True)
    end = _legend(canvas, bottom + 22)
    if chosen.gpu.total < CLOSER * highest:
        canvas.text(0, end + 24, "The same step, closer", "strong")
        end = _plot(canvas, course, end + 40, 140, chosen.gpu.total, saved=False)
    return Drawn(
        caption=_caption(course),
        label="The memory of a training step over forward, backward and update, part by part, below the plain step's",
        canvas=canvas,
        height=end,
        head=("Memory", "Without", "As chosen"),
        rows=_rows(without, chosen),
    )


def _title(setup: Setup, narrow: bool) -> str:
    name = setup.model or "Your model"
    words = f"{name}, {setup.micro_batch_size} {'sequence' if setup.micro_batch_size == 1 else 'sequences'}"
    longest = 40 if narrow else 80
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def _line(
    result: Estimate, layers: dict[str, int], size: Callable[[StepInstant], int], up: Scale, ends: tuple[float, float]
) -> list[tuple[float, float]]:
    """Points of a curve; the update, which is one instant, is as wide as its phase."""
    points, (left, right) = [], ends
    for at, instant in zip(places(result.timeline, layers), result.timeline, strict=True):
        points.append((left + at * (right - left), up.at(size(instant))))
    if result.timeline[-1].phase == "optimizer":
        points.append((right, points[-1][1]))
    return points


def _plot(canvas: Canvas, course: Course, top: float, height: float, high: int, *, saved: bool) -> float:
    """Draws the chosen step and, if wanted, what it saves; returns where the names of the phases end."""
    ends = (52, canvas.width - 8) if canvas.narrow else (64, canvas.width - 10)
    up = Scale(0, 1.04 * high, top + height, top)
    _axes(canvas, up, *ends)
    _areas(canvas, course, up, ends)
    upper, lower = (
        _line(one, course.layers, lambda instant: instant.bytes, up, ends) for one in (course.without, course.chosen)
    )
    if saved:
        canvas.polyline([*upper, *reversed(lower)], "hatch")
        canvas.polyline(upper, "dashed")
    canvas.polyline(lower, "line-ink")
    return top + height + 22


def _areas(canvas: Canvas, course: Course, up: Scale, ends: tuple[float, float]) -> None:
    """Draws the parts, the highest first: each area goes down to the axis, and lower ones cover it."""
    names = list(PARTS)
    for number in reversed(range(len(names))):
        below = names[: number + 1]
        line = _line(
            course.chosen, course.layers, lambda one, below=below: sum(getattr(one, part) for part in below), up, ends
        )
        area = [(line[0][0], up.start), *line, (line[-1][0], up.start)]
        canvas.polyline(area, PARTS[names[number]][1])


def _axes(canvas: Canvas, up: Scale, left: float, right: float) -> None:
    step = 2**20
    while up.high / step > 5:
        step *= 2
    for number in range(int(up.high // step) + 1):
        canvas.line(left, up.at(number * step), right, up.at(number * step))
        label = show_bytes(number * step).replace(".00", "").replace(".0", "") if number else "0"
        canvas.text(left - 6, up.at(number * step) + 4, label, "soft", anchor="end")
    at = left
    for name, share in PHASES.values():
        wide = share * (right - left)
        canvas.line(at, up.end, at, up.start + 6, "axis")
        canvas.text(at + wide / 2, up.start + 18, name, "soft", anchor="middle")
        at += wide


def _legend(canvas: Canvas, top: float) -> float:
    marks = [*PARTS.values(), ("Saved", "hatch")]
    columns = 2 if canvas.narrow else 3
    for number, (name, look) in enumerate(marks):
        x, y = canvas.width / columns * (number % columns), top + 22 * (number // columns)
        canvas.rect(x + 4, y - 10, 12, 12, look)
        canvas.text(x + 22, y, name, "soft")
    return top + 22 * (-(-len(marks) // columns))


def _rows(without: Estimate, chosen: Estimate) -> list[tuple[str, ...]]:
    pair = (without, chosen)
    rows = [
        (f"{words}, at the peak", *(show_bytes(getattr(one.gpu, part)) for one in pair))
        for part, (words, _) in PARTS.items()
    ]
    rows.append(("Peak", *(show_bytes(one.gpu.total) for one in pair)))
    for phase, (words, _) in PHASES.items():
        peaks = [max((at.bytes for at in one.timeline if at.phase == phase), default=0) for one in pair]
        rows.append((f"Highest in {words.lower()}", *map(show_bytes, peaks)))
    return [*rows, ("On the host", *(show_bytes(one.host.total) for one in pair))]


def _caption(course: Course) -> str:
    without, chosen = course.without.gpu.total, course.chosen.gpu.total
    if chosen == without:
        saved = "as much as without any technique"
    elif chosen < without:
        saved = f"{show_share(without - chosen, without)} less than the {show_bytes(without)} without any technique"
    else:
        saved = f"more than the {show_bytes(without)} without any technique"
    host = course.chosen.host.total
    moved = f" The host holds {show_bytes(host)} for it." if host else ""
    refused = f" {' '.join(course.refused)}" if course.refused else ""
    return f"The GPU holds at most {show_bytes(chosen)}, {saved}. {course.chosen.peak.instant}{moved}{refused}"


def _switch(name: str, *, on: bool = False) -> Choice:
    return Choice(name=name, label=LABELS[name], options=(("off", "off"), ("on", "on")), default="on" if on else "off")


FIGURE = Figure(
    name="step",
    title="One training step, layer by layer",
    controls=(
        Choice(
            name="model",
            label="Model",
            options=tuple((name, name) for name in MODELS),
            default="dalle-2021",
            needs=("own", ""),
        ),
        Stops(name="batch", label="Sequences", stops=(1, 2, 4, 8, 16, 32), default=4, needs=("own", "")),
        _switch("checkpointing", on=True),
        _switch("reversible"),
        _switch("sharing"),
        _switch("eight", on=True),
        _switch("offload"),
        Choice(
            name="precision",
            label=LABELS["precision"],
            options=(("fp32", "32 bit"), ("mixed", "mixed"), ("half", "16 bit")),
            default="fp32",
        ),
        _switch("fused"),
        Given(
            name="own",
            label="Your setup",
            check=_refusal,
            example='{"model":"qwen3-0.6b","micro_batch_size":2,"sequence_length":512}',
        ),
    ),
    draw=draw,
    sources=(
        Source(text="Chen et al. 2016 (checkpointing)", address="https://arxiv.org/abs/1604.06174"),
        Source(text="Gomez et al. 2017 (reversible)", address="https://arxiv.org/abs/1707.04585"),
        Source(text="Lan et al. 2020 (sharing)", address="https://arxiv.org/abs/1909.11942"),
        Source(text="Dettmers et al. 2022 (8 bit)", address="https://arxiv.org/abs/2110.02861"),
        Source(text="Ren et al. 2021 (offloading)", address="https://arxiv.org/abs/2101.06840"),
        Source(text="Micikevicius et al. 2018 (mixed precision)", address="https://arxiv.org/abs/1710.03740"),
    ),
)
