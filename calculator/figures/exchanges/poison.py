"""The figure of a run that the reader poisons: what a mean, CenteredClip and tickets make of it."""

from __future__ import annotations

from functools import lru_cache

from calculator.figures.kit.controls import Choice, Range, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.averaging import Vector
from calculator.figures.rules.poisoned import PEERS, PICTURE, PICTURE_SIDE, UPDATES, Course, Poison, admitted, train
from calculator.units import show_count, show_number

MOST_HOSTILE = 8
ATTACKS = {
    "picture": "gradients towards another picture",
    "opposite": "the opposite of the honest mean",
    "hidden": "a vector that hides in honest noise",
    "noise": "noise",
}
SENT = {
    "picture": "gradients towards another picture, {} times as steep",
    "opposite": "{} times the opposite of the honest mean",
    "hidden": "the honest mean, off by {} standard deviations in each value",
    "noise": "{} times the noise of an honest peer",
}
"""The same in the caption, with the strength."""
WAYS = {"Mean": "fill-2", "CenteredClip": "fill-1", "Tickets, then mean": "fill-3"}
"""Ways to average, and their colours."""
SHOWN = (1, 5, 10, 20, 30, 40)
"""Updates that have a row in the table."""
LOWEST, HIGHEST = 0.01, 3.0
"""Ends of the axis of errors."""
CLEAR, SPOILED = 0.1, 0.3
"""Errors up to which the picture counts as clear, and from which it counts as spoiled; white over black is an error
of 1."""


@lru_cache(maxsize=128)
def courses(poison: Poison) -> dict[str, Course]:
    """The run with each way to average."""
    ways = (("mean", poison.hostile), ("clip", poison.hostile), ("mean", admitted(poison)))
    return {name: train(poison, *one) for name, one in zip(WAYS, ways, strict=True)}


def poison_of(values: Values) -> Poison:
    """What the reader has set; at most all hostile peers have tickets."""
    hostile = int(values["hostile"])
    return Poison(
        hostile=hostile,
        members=min(int(values["members"]), hostile),
        attack=str(values["attack"]),
        strength=float(values["strength"]),
        claimed=float(values["claimed"]),
    )


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws the picture that each way has learned, and the error over the updates."""
    runs = courses(poison_of(values))
    gap = 14 if canvas.narrow else 40
    side = (canvas.width - gap * (len(runs) - 1) - 4) / len(runs)
    side = min(side, 190)
    for number, (name, run) in enumerate(runs.items()):
        left = 2 + number * (side + gap)
        canvas.text(left, 14, name.split(",")[0], "strong")
        _picture(canvas, run.weights[-1], left, 24, side)
        canvas.text(left, side + 44, f"error {_error(run.errors[-1])}", "soft")
    top = side + 84
    canvas.text(0, top, "Error after each update, logarithmic", "strong")
    bottom = _errors(canvas, runs, top + 14)
    return Drawn(
        caption=_caption(values, runs),
        label="The picture that each of three ways has learned, and curves of its error over the updates",
        canvas=canvas,
        height=bottom,
        head=("Update", *runs),
        rows=[(str(number), *(_error(run.errors[number - 1]) for run in runs.values())) for number in SHOWN],
    )


def _picture(canvas: Canvas, weights: Vector, left: float, top: float, side: float) -> None:
    """Draws each pixel as a square, which is larger the brighter it is; at most it fills its cell."""
    canvas.rect(left, top, side, side, "shade")
    cell = side / PICTURE_SIDE
    for number, value in enumerate(weights):
        edge = cell * min(max(value, 0.0), 1.0)
        if edge >= cell / 20:
            row, column = divmod(number, PICTURE_SIDE)
            x, y = left + cell * (column + 0.5) - edge / 2, top + cell * (row + 0.5) - edge / 2
            canvas.rect(x, y, edge, edge, "fill-ink")


def _errors(canvas: Canvas, runs: dict[str, Course], top: float) -> float:
    """Draws the errors of all ways, from `top` down; returns where the drawing ends."""
    left, right, bottom = 40, canvas.width - 10, top + 120
    across, up = Scale(0, UPDATES, left, right), Scale(LOWEST, HIGHEST, bottom, top, logarithmic=True)
    for level in (0.01, 0.1, 1):
        canvas.line(left, up.at(level), right, up.at(level))
        canvas.text(left - 6, up.at(level) + 4, f"{level:g}", "soft", anchor="end")
    for run, look in zip(runs.values(), WAYS.values(), strict=True):
        line = [(across.at(number), up.at(one)) for number, one in enumerate(run.errors, start=1)]
        canvas.polyline(line, look.replace("fill", "line"))
    y = bottom + 20
    for number, (name, look) in enumerate(WAYS.items()):
        x, at = (left, y + 20 * number) if canvas.narrow else (left + 200 * number, y)
        canvas.rect(x, at - 9, 10, 10, look)
        canvas.text(x + 16, at, name, "soft")
    return y + (20 * len(WAYS) if canvas.narrow else 20)


def _caption(values: Values, runs: dict[str, Course]) -> str:
    poison = poison_of(values)
    mean, clip, tickets = (_judged(run.errors[-1]) for run in runs.values())
    if not poison.hostile:
        return (
            f"Nobody is hostile: {PEERS} peers learn a heart of {len(PICTURE)} pixels in {UPDATES} updates. With the "
            f"mean it is {mean}, and with CenteredClip {clip}. Raise the number of hostile peers."
        )
    who = "peers is hostile and sends" if poison.hostile == 1 else "peers are hostile and send"
    sent = SENT[poison.attack].format(f"{poison.strength:g}")
    claim = "" if poison.claimed == 1 else f", as if of {show_count(poison.claimed)} times the samples"
    inside = admitted(poison)
    door = f"{inside} of them {'has a ticket and takes' if inside == 1 else 'have tickets and take'} part"
    door = door if inside else "none of them has a ticket, so none takes part"
    half = " Hostile peers are no minority: no average can tell who is honest." if 2 * poison.hostile >= PEERS else ""
    return (
        f"{poison.hostile} of {PEERS} {who} {sent}{claim}. With the mean, the picture is {mean}; with CenteredClip it "
        f"is {clip}. Where tickets are asked for, {door}: with the mean of the others it is {tickets}.{half}"
    )


def _judged(error: float) -> str:
    looks = "clear" if error <= CLEAR else "blurred" if error < SPOILED else "spoiled"
    return f"{looks} (error {_error(error)})"


def _error(error: float) -> str:
    return f"over {show_count(1000)}" if error > 1000 else show_number(error, 2)


FIGURE = Figure(
    name="poison",
    title="Poison the run",
    controls=(
        Range(name="hostile", label=f"Hostile peers of {PEERS}", low=0, high=MOST_HOSTILE, default=3),
        Choice(name="attack", label="They send", options=tuple(ATTACKS.items()), default="picture"),
        Stops(name="strength", label="Strength", stops=(0.5, 1, 1.5, 2, 3, 5, 10, 100), default=5, unit="times"),
        Stops(name="claimed", label="Samples that they claim", stops=(1, 10, 1000), default=1, unit="times"),
        Range(name="members", label="Hostile peers with a ticket", low=0, high=MOST_HOSTILE, default=0),
    ),
    draw=draw,
    sources=(
        Source(text="Karimireddy et al. 2021 (CenteredClip)", address="https://arxiv.org/abs/2012.10333"),
        Source(text="Gorbunov et al. 2022 (without a server)", address="https://arxiv.org/abs/2106.11257"),
        Source(text="Baruch et al. 2019 (hiding in noise)", address="https://arxiv.org/abs/1902.06156"),
        Source(text="Diskin et al. 2021 (tickets)", address="https://arxiv.org/abs/2106.10207"),
    ),
    limits=lambda values: {"members": float(values["hostile"])},
)
