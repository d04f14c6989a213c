"""The figure of 8-bit state: what an outlier does to the values around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import sub
from random import Random

from calculator.figures.controls import Choice, Stops, Values
from calculator.figures.drawing import Canvas, Scale
from calculator.figures.eight_bit import Stored, stored
from calculator.figures.figure import Drawn, Figure, Handle, Source
from calculator.page.words import show_count

LENGTH = 1024
"""Values of the tensor."""
SEED = 2021
DRAWN_EVERY = 2
HEIGHT = 422
"""Of the drawing."""
OUTLIER_AT = 408
SIZES = tuple(2**power for power in range(11))
"""Of the outlier, in usual magnitudes."""


@lru_cache(maxsize=4)
def ordinary_values(shape: str) -> tuple[float, ...]:
    """Values whose mean magnitude is 1: normal, or Student's t with 3 degrees of freedom."""
    random = Random(SEED)
    drawn = []
    for _ in range(LENGTH):
        value = random.gauss(0, 1)
        if shape == "tails":
            value /= math.sqrt(sum(random.gauss(0, 1) ** 2 for _ in range(3)) / 3)
        drawn.append(value)
    usual = sum(map(abs, drawn)) / LENGTH
    return tuple(value / usual for value in drawn)


def tensor(values: Values) -> tuple[float, ...]:
    """The reader's tensor: ordinary values and the outliers, evenly spread from one place on."""
    numbers = list(ordinary_values(str(values["shape"])))
    for place in outlier_places(int(values["outliers"])):
        numbers[place] = float(values["size"])
    return tuple(numbers)


def outlier_places(count: int) -> list[int]:
    """Where the outliers are.

    >>> outlier_places(2)
    [408, 920]
    """
    return [(OUTLIER_AT + LENGTH * number // count) % LENGTH for number in range(count)]


def error_of_ordinary(numbers: Sequence[float], kept: Stored, outliers: Sequence[int]) -> float:
    """Mean error of all but the outliers, over their mean magnitude."""
    restored = kept.restored
    wrong = sum(map(abs, map(sub, numbers, restored)))
    wrong -= sum(abs(numbers[place] - restored[place]) for place in outliers)
    return wrong / (sum(map(abs, numbers)) - sum(abs(numbers[place]) for place in outliers))


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """What a way to store the tensor comes to."""

    error: float
    """Of the ordinary values."""
    codes: int
    """Different ones in use."""
    scales: tuple[float, ...]
    size_bytes: int


@lru_cache(maxsize=2048)
def measured(shape: str, outliers: int, size: float, block: int, dynamic: bool) -> Way:
    """Stores the tensor that the first three describe. Remembered: a drag comes by the same places often."""
    numbers = tensor({"shape": shape, "outliers": outliers, "size": size})
    kept = stored(numbers, block, dynamic=dynamic)
    return Way(
        error=error_of_ordinary(numbers, kept, outlier_places(outliers)),
        codes=len(set(kept.codes)),
        scales=kept.scales,
        size_bytes=kept.size_bytes,
    )


def draw(values: Values, canvas: Canvas) -> Drawn:
    """The values' magnitudes, the scale of each block over them; then the error of three ways to store them."""
    block, tensor_of = int(values["block"]), (str(values["shape"]), int(values["outliers"]), float(values["size"]))
    ways = {
        f"Blocks of {block}": measured(*tensor_of, block, True),
        "One scale for all": measured(*tensor_of, LENGTH, True),
        "The same, even steps": measured(*tensor_of, LENGTH, False),
    }
    handle = _magnitudes(canvas, *tensor_of, block, ways[f"Blocks of {block}"].scales)
    canvas.text(0, 272, "Error of ordinary values, in powers of ten", "strong")
    error_axis = Scale(0.001, 1, 0, canvas.width - 4, logarithmic=True)
    for number, (name, way) in enumerate(ways.items()):
        y = 296 + 40 * number
        canvas.text(0, y, name, "ink")
        canvas.text(canvas.width - 4, y, f"{_percent(way.error)}, {way.codes} codes used", "soft", anchor="end")
        canvas.rect(0, y + 6, canvas.width - 4, 14, "shade")
        canvas.rect(0, y + 6, error_axis.at(way.error), 14, f"fill-{number + 1}")
    return Drawn(
        caption=_caption(values, *ways.values()),
        label=f"{LENGTH} values by magnitude with the scale of each block, and bars of the error of three ways",
        canvas=canvas,
        height=HEIGHT,
        head=("Way", "Error of ordinary values", "Codes used", "Bytes a value"),
        rows=[
            (name, _percent(way.error), str(way.codes), f"{way.size_bytes / LENGTH:.3f}") for name, way in ways.items()
        ]
        + [("32 bit", "0 %", "–", "4.000")],
        handles=(handle,),
    )


def _magnitudes(
    canvas: Canvas, shape: str, outliers: int, size: float, block: int, scales: tuple[float, ...]
) -> Handle:
    """Dots for the values, a line for each block's scale; the first outlier can be dragged."""
    left, right, top, bottom = 44, canvas.width - 14, 44, 224
    across = Scale(0, LENGTH, left, right)
    up = Scale(0.01, SIZES[-1], bottom, top, logarithmic=True)
    canvas.text(0, 14, "The tensor's values, by magnitude", "strong")
    for power in range(-2, 4):
        y = up.at(10**power)
        canvas.line(left, y, right, y)
        canvas.text(left - 6, y + 4, f"{10**power:g}", "soft", anchor="end")
    canvas.dots(_dots(shape, outliers, across, up), "line-6")
    for number, scale in enumerate(scales):
        end = across.at((number + 1) * block)
        canvas.line(across.at(number * block) + 1, up.at(scale), end - 1, up.at(scale), "line-accent")
        if end < right:
            canvas.line(end, top, end, bottom, "axis")
    for place in outlier_places(outliers):
        canvas.circle(across.at(place), up.at(size), 4, "fill-accent")
    words = "scale of each block" if canvas.narrow else "line: the scale of each block, its largest magnitude"
    canvas.text(right, bottom + 18, words, "soft", anchor="end")
    # The slider counts powers of two: so does the drawing, from its upper edge to its lower.
    per_unit = (len(SIZES) - 1) / (up.at(SIZES[0]) - up.at(SIZES[-1]))
    ends = (len(SIZES) - 1 + top * per_unit, len(SIZES) - 1 - (HEIGHT - top) * per_unit)
    return Handle(
        label="Size of the outliers",
        x=across.at(outlier_places(outliers)[0]),
        y=up.at(size),
        y_control="size",
        y_ends=(round(ends[0], 4), round(ends[1], 4)),
    )


@lru_cache(maxsize=16)
def _dots(shape: str, outliers: int, across: Scale, up: Scale) -> tuple[tuple[float, float], ...]:
    """Places of the ordinary values that are drawn."""
    numbers, left_out = ordinary_values(shape), set(outlier_places(outliers))
    shown = [place for place in range(0, LENGTH, DRAWN_EVERY) if place not in left_out]
    return tuple([(across.at(place), up.at(abs(numbers[place]))) for place in shown])


def _caption(values: Values, blocks: Way, whole: Way, even: Way) -> str:
    count, size = int(values["outliers"]), float(values["size"])
    who = f"One outlier of {show_count(size)} times" if count == 1 else f"{count} outliers of {show_count(size)} times"
    spoiled = sum(scale >= size for scale in blocks.scales)
    return (
        f"{who} the usual magnitude: in blocks of {values['block']:g}, ordinary values lose {_percent(blocks.error)} "
        f"of their size; with one scale for all {_percent(whole.error)}, and in even steps {_percent(even.error)}, "
        f"since they get {even.codes} of 255 codes. Blocks with their scale: {spoiled} of {len(blocks.scales)}. "
        f"A value takes {blocks.size_bytes / LENGTH:.3f} bytes in place of 4."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


FIGURE = Figure(
    name="quantization",
    title="Eight bits and an outlier",
    controls=(
        Stops(name="size", label="Outlier, in usual magnitudes", stops=SIZES, default=128, unit="times"),
        Stops(name="block", label="Block size", stops=(32, 64, 128, 256, 512, 1024), default=256, unit="values"),
        Stops(name="outliers", label="Outliers", stops=(1, 2, 4, 8), default=1),
        Choice(
            name="shape",
            label="Ordinary values",
            options=(("normal", "normal"), ("tails", "heavy tails (Student's t)")),
            default="normal",
        ),
    ),
    draw=draw,
    sources=(
        Source(
            text="Dettmers et al., 8-bit optimizers via block-wise quantization, 2021",
            address="https://arxiv.org/abs/2110.02861",
        ),
        Source(text="Dettmers 2015 (the dynamic type)", address="https://arxiv.org/abs/1511.04561"),
    ),
)
