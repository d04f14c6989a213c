"""The figure of 8-bit state: the effect of an outlier on the values around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import sub
from random import Random

from calculator.figures.kit.controls import Choice, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Handle, Source
from calculator.figures.rules.eight_bit import Stored, stored
from calculator.units import show_count

LENGTH = 1024
"""Number of values of the tensor."""
SEED = 2021
DRAWN_EVERY = 2
HEIGHT = 422
"""Height of the drawing."""
OUTLIER_AT = 408
SIZES = tuple(2**power for power in range(11))
"""Sizes of the outlier, relative to the mean magnitude of the other values."""


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
    """The reader's tensor: ordinary values with evenly spaced outliers."""
    numbers = list(ordinary_values(str(values["shape"])))
    for place in outlier_places(int(values["outliers"])):
        numbers[place] = float(values["size"])
    return tuple(numbers)


def outlier_places(count: int) -> list[int]:
    """The positions of the outliers.

    >>> outlier_places(2)
    [408, 920]
    """
    return [(OUTLIER_AT + LENGTH * number // count) % LENGTH for number in range(count)]


def error_of_ordinary(numbers: Sequence[float], kept: Stored, outliers: Sequence[int]) -> float:
    """Mean error of all values but the outliers, relative to their mean magnitude."""
    restored = kept.restored
    wrong = sum(map(abs, map(sub, numbers, restored)))
    wrong -= sum(abs(numbers[place] - restored[place]) for place in outliers)
    return wrong / (sum(map(abs, numbers)) - sum(abs(numbers[place]) for place in outliers))


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The result of one way to store the tensor."""

    error: float
    """Relative error of the ordinary values."""
    codes: int
    """Number of distinct codes in use."""
    scales: tuple[float, ...]
    size_bytes: int


@lru_cache(maxsize=2048)
def measured(shape: str, outliers: int, size: float, block: int, dynamic: bool) -> Way:
    """Stores the tensor that the first three arguments describe. Cached: a drag passes the same values repeatedly."""
    numbers = tensor({"shape": shape, "outliers": outliers, "size": size})
    kept = stored(numbers, block, dynamic=dynamic)
    return Way(
        error=error_of_ordinary(numbers, kept, outlier_places(outliers)),
        codes=len(set(kept.codes)),
        scales=kept.scales,
        size_bytes=kept.size_bytes,
    )


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws the values' magnitudes, the scale of each block, and the error of three ways to store the values."""
    block, tensor_of = int(values["block"]), (str(values["shape"]), int(values["outliers"]), float(values["size"]))
    ways = {
        f"Blocks of {block}": measured(*tensor_of, block, True),
        "One scale for all": measured(*tensor_of, LENGTH, True),
        "The same, even steps": measured(*tensor_of, LENGTH, False),
    }
    handle = _magnitudes(canvas, *tensor_of, block, ways[f"Blocks of {block}"].scales)
    canvas.text(0, 272, "Error of ordinary values, logarithmic", "strong")
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
        head=("Way", "Error of ordinary values", "Codes used", "Bytes per value"),
        rows=[
            (name, _percent(way.error), str(way.codes), f"{way.size_bytes / LENGTH:.3f}") for name, way in ways.items()
        ]
        + [("32 bit", "0 %", "–", "4.000")],
        handles=(handle,),
    )


def _magnitudes(
    canvas: Canvas, shape: str, outliers: int, size: float, block: int, scales: tuple[float, ...]
) -> Handle:
    """Draws a dot for each shown value and a line for each block's scale; the first outlier can be dragged."""
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
    # The slider's positions are powers of two; on the logarithmic axis they are evenly spaced, so a handle's place
    # gives the position by a linear map from the drawing's upper edge to its lower edge.
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
    """Positions of the drawn ordinary values."""
    numbers, left_out = ordinary_values(shape), set(outlier_places(outliers))
    shown = [place for place in range(0, LENGTH, DRAWN_EVERY) if place not in left_out]
    return tuple([(across.at(place), up.at(abs(numbers[place]))) for place in shown])


def _caption(values: Values, blocks: Way, whole: Way, even: Way) -> str:
    count, size = int(values["outliers"]), float(values["size"])
    who = f"{'One outlier has' if count == 1 else f'{count} outliers have'} {show_count(size)} times"
    spoiled = sum(scale >= size for scale in blocks.scales)
    return (
        f"{who} the usual magnitude. In blocks of {values['block']:g}, the error of ordinary values is "
        f"{_percent(blocks.error)} of their size; with one scale for all it is {_percent(whole.error)}, and with even "
        f"steps {_percent(even.error)}, since only {even.codes} of 255 codes are used. An outlier sets the scale of "
        f"{spoiled} of {len(blocks.scales)} blocks. A value takes {blocks.size_bytes / LENGTH:.3f} bytes instead of 4."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


FIGURE = Figure(
    name="quantization",
    title="Eight bits and an outlier",
    controls=(
        Stops(name="size", label="Outlier, over the usual magnitude", stops=SIZES, default=128, unit="times"),
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
