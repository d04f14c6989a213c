"""The figure of error feedback: what has arrived of a value's movement, and of all, with feedback and without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from calculator.figures.kit.controls import Choice, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.distances import EXCHANGES, VALUES, Course, course, moved
from calculator.units import show_count

INNER, BITS = 30, 2
"""Inner steps between two exchanges, and bits of a sent value."""
DECAYS = (0, 0.5, 0.8, 0.9, 0.95, 1)
WATCHED = {"steady": "a small, steady one", "largest": "the one that moves most"}
SHOWN = (1, 2, 5, 10, 20, 30, 40)
"""Exchanges that have a row in the table."""


@lru_cache(maxsize=16)
def watched(which: str, kept: int) -> int:
    """Place of the value that the upper drawing follows.

    "largest" is the value that should move most, "steady" the one that should move most of those that a peer without
    error feedback sends least often.
    """
    total = [abs(value) for value in moved(INNER)[-1]]
    if which == "largest":
        return total.index(max(total))
    often = [times_sent(course(kept, BITS, INNER, 0), place) for place in range(VALUES)]
    return max((place for place in range(VALUES) if often[place] == min(often)), key=total.__getitem__)


def times_sent(run: Course, place: int) -> int:
    """Number of exchanges in which a value was sent."""
    before = (0.0, *(sums[place] for sums in run.sent))
    return sum(one != other for one, other in pairwise(before))


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws one value's movement and what was sent of it, then the share of all movement that has not arrived."""
    kept, decay = int(values["kept"]), float(values["decay"])
    run, without = course(kept, BITS, INNER, decay), course(kept, BITS, INNER, 0)
    place = watched(str(values["watch"]), kept)
    should = [sums[place] for sums in moved(INNER)]
    # The value moves to either side; drawn upwards, so that the curves of all values look alike.
    sense = 1 if should[-1] >= 0 else -1
    lines = {
        "should have moved": ([0.0, *(sense * one for one in should)], "line-6"),
        "sent, with feedback": ([0.0, *(sense * sums[place] for sums in run.sent)], "line-1"),
        "sent, without": ([0.0, *(sense * sums[place] for sums in without.sent)], "line-2"),
    }
    canvas.text(0, 14, f"One of {VALUES} values: {WATCHED[str(values['watch'])]}", "strong")
    top = _legend(canvas, {name: look for name, (_, look) in lines.items()})
    bottom = _curves(canvas, [line for line, _ in lines.values()], [look for _, look in lines.values()], top)
    canvas.text(0, bottom + 44, "All values: share that has not arrived", "strong")
    shares = [[100.0, *(100 * share for share in one.missing)] for one in (run, without)]
    end = _curves(canvas, shares, ["line-1", "line-2"], bottom + 58, high=100, unit=" %")
    canvas.text(canvas.width - 10, end + 18, f"after {EXCHANGES} exchanges", "soft", anchor="end")
    return Drawn(
        caption=_caption(values, run, without, place),
        label="Curves of how far one value should have moved, of what was sent, and of what is missing of all values",
        canvas=canvas,
        height=end + 28,
        head=("Exchange", "Moved", "Sent", "Unsent", "Faded", "Missing of all", "Without feedback"),
        rows=[_row(number, should, run, without, place) for number in SHOWN],
    )


def _row(number: int, should: Sequence[float], run: Course, without: Course, place: int) -> tuple[str, ...]:
    at = number - 1
    sent, unsent = run.sent[at][place], run.unsent[at][place]
    return (
        str(number),
        *(_number(one) for one in (should[at], sent, unsent, should[at] - sent - unsent)),
        f"{100 * run.missing[at]:.0f} %",
        f"{100 * without.missing[at]:.0f} %",
    )


def _legend(canvas: Canvas, looks: dict[str, str]) -> float:
    """Names the lines in a row, or one below the other where there is little room; returns where the curves begin."""
    x, y = 0.0, 36.0
    for number, (name, look) in enumerate(looks.items()):
        x, y = (0, 36 + 20 * number) if canvas.narrow else (220 * number, 36)
        canvas.line(x, y - 4, x + 16, y - 4, look)
        canvas.text(x + 22, y, name, "soft")
    return y + 14


def _curves(
    canvas: Canvas,
    lines: Sequence[Sequence[float]],
    looks: Sequence[str],
    top: float,
    *,
    high: float = 0,
    unit: str = "",
) -> float:
    """Draws lines over all exchanges, from `top` down; returns the place of the axis.

    Args:
        canvas: The drawing.
        lines: The values of each line, before the first exchange and after each.
        looks: Look of each line.
        top: Place of the highest value.
        high: The highest value; 0: that of the lines.
        unit: Unit of the values.
    """
    left, right, bottom = 40, canvas.width - 10, top + 120
    low, high = min(map(min, lines)) if not high else 0.0, high or max(map(max, lines)) or 1.0
    across, up = Scale(0, EXCHANGES, left, right), Scale(low, high, bottom, top)
    for level in (high, high / 2, 0.0):
        canvas.line(left, up.at(level), right, up.at(level))
        canvas.text(left - 6, up.at(level) + 4, f"{level:.3g}{unit}" if level else "0", "soft", anchor="end")
    for line, look in zip(lines, looks, strict=True):
        canvas.polyline([(across.at(number), up.at(one)) for number, one in enumerate(line)], look)
    return bottom


def _caption(values: Values, run: Course, without: Course, place: int) -> str:
    sense = 1 if moved(INNER)[-1][place] >= 0 else -1
    should, sent, unsent = (sense * one[-1][place] for one in (moved(INNER), run.sent, run.unsent))
    often = times_sent(run, place)
    faded = should - sent - unsent
    lost = f" and {_number(faded)} has faded" if _number(faded).strip("-−") != "0.0" else ""
    seldom = times_sent(without, place)
    usual = f"sent in {seldom}" if seldom else "never sent"
    return (
        f"A peer sends {show_count(values['kept'])} of each 4096 values. In {EXCHANGES} exchanges this value should "
        f"have moved by {_number(should)}: {_number(sent)} was sent, in {often} of them, "
        f"{_number(unsent)} is carried over{lost}. Without error feedback it was {usual}. Of the movement of all "
        f"values, {100 * run.missing[-1]:.0f} % has not arrived; without error feedback, "
        f"{100 * without.missing[-1]:.0f} %."
    )


def _number(value: float) -> str:
    return f"{value:.1f}".replace("-0.0", "0.0").replace("-", "−")


FIGURE = Figure(
    name="feedback",
    title="What is not sent is not lost",
    controls=(
        Stops(name="kept", label="Values sent of each 4096", stops=(16, 32, 64, 128, 256, 512, 1024), default=128),
        Stops(name="decay", label="The rest is multiplied by", stops=DECAYS, default=1),
        Choice(name="watch", label="Follow", options=tuple(WATCHED.items()), default="steady"),
    ),
    draw=draw,
    sources=(
        Source(text="Karimireddy et al. 2019 (error feedback)", address="https://arxiv.org/abs/1901.09847"),
        Source(text="Stich et al. 2018 (sparse, with memory)", address="https://arxiv.org/abs/1809.07599"),
        Source(text="Sarfi et al. 2025 (SparseLoCo)", address="https://arxiv.org/abs/2508.15706"),
    ),
)
