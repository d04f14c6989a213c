"""The figure of hostile gradients: where the mean, the median and CenteredClip end up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random

from calculator.figures.kit.controls import Range, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Handle, Source
from calculator.figures.rules.averaging import Vector, centered_clip, median, weighted_mean

HONEST = 10
MOST_HOSTILE = 4
REACH = 10
"""The drawing shows coordinates from -10 to 10."""
SEED = 2021
START: Vector = (2.0, 1.0)
"""The first estimate of CenteredClip: the result of the previous step."""
PLACES = ((-8.0, -6.0), (-7.0, -8.0), (-9.0, 3.0), (6.0, -9.0))


@lru_cache(maxsize=1)
def honest_gradients() -> tuple[Vector, ...]:
    """Honest peers' gradients: the true gradient with noise."""
    random = Random(SEED)
    return tuple((round(random.gauss(4, 1.3), 2), round(random.gauss(3, 1.3), 2)) for _ in range(HONEST))


def hostile_gradients(values: Values) -> tuple[Vector, ...]:
    """The hostile gradients, where the reader has placed them."""
    count = int(values["hostile"])
    return tuple((float(values[f"x{number}"]), float(values[f"y{number}"])) for number in range(1, count + 1))


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws gradients as points, their three averages, and the distance of each average from the honest mean."""
    honest, hostile = honest_gradients(), hostile_gradients(values)
    all_of_them = honest + hostile
    truth = weighted_mean(honest)
    path = centered_clip(all_of_them, START, float(values["tau"]), int(values["iterations"]))
    results = {"Mean": weighted_mean(all_of_them), "Median": median(all_of_them), "CenteredClip": path[-1]}
    far = {name: math.dist(point, truth) for name, point in results.items()}
    side = 320 if canvas.narrow else 400
    left, top = (10, 6) if canvas.narrow else (6, 6)
    across, up = Scale(-REACH, REACH, left, left + side), Scale(-REACH, REACH, top + side, top)

    def place(point: Vector) -> tuple[float, float]:
        return across.at(point[0]), up.at(point[1])

    canvas.rect(left, top, side, side, "shade", radius=4)
    canvas.line(across.at(0), top, across.at(0), top + side)
    canvas.line(left, up.at(0), left + side, up.at(0))
    canvas.circle(*place(path[-1]), abs(across.at(float(values["tau"])) - across.at(0)), "outline")
    for point in honest:
        canvas.circle(*place(point), 4, "fill-4")
    for point in hostile:
        canvas.circle(*place(point), 6, "fill-5")
    canvas.polyline(map(place, path), "line-1")
    canvas.circle(*place(truth), 10, "truth")
    looks = {"Mean": "fill-2", "Median": "fill-3", "CenteredClip": "fill-1"}
    for name, point in results.items():
        x, y = place(point)
        canvas.rect(x - 5, y - 5, 10, 10, f"{looks[name]} mark")
    height = _distances(canvas, far, looks, beside=left + side)
    return Drawn(
        caption=_caption(values, far, len(hostile)),
        label=(
            f"{HONEST} honest gradients in a cloud, {len(hostile)} hostile ones, and the mean, the median and "
            "CenteredClip's result among them"
        ),
        canvas=canvas,
        height=height,
        head=("Average", "x", "y", "Distance from the honest mean"),
        rows=[
            ("Honest mean", *_coordinates(truth), "0"),
            *((name, *_coordinates(point), f"{far[name]:.2f}") for name, point in results.items()),
            *((f"Hostile {number}", *_coordinates(point), "–") for number, point in enumerate(hostile, start=1)),
        ],
        handles=tuple(
            _handle(number, point, canvas, height, place(point), across, up)
            for number, point in enumerate(hostile, start=1)
        ),
    )


def _handle(
    number: int, point: Vector, canvas: Canvas, height: float, at: tuple[float, float], across: Scale, up: Scale
) -> Handle:
    # The handle moves over the whole drawing, which extends beyond the square.
    per_unit = 2 * REACH / (across.end - across.start)
    return Handle(
        label=f"Hostile gradient {number}",
        x=at[0],
        y=at[1],
        x_control=f"x{number}",
        x_ends=(round(-REACH - across.start * per_unit, 4), round(REACH + (canvas.width - across.end) * per_unit, 4)),
        y_control=f"y{number}",
        y_ends=(round(REACH + up.end * per_unit, 4), round(-REACH - (height - up.start) * per_unit, 4)),
    )


def _distances(canvas: Canvas, far: dict[str, float], looks: dict[str, str], *, beside: float) -> float:
    """Draws bars of the distances, beside the square or below it; returns the drawing's height."""
    left, top = (10, beside + 30) if canvas.narrow else (beside + 34, 30)
    wide = canvas.width - left - 10
    longest = Scale(0, 2 * REACH, 0, wide)
    canvas.text(left, top, "Distance from the honest mean", "strong")
    for row, (name, distance) in enumerate(far.items()):
        y = top + 28 + 44 * row
        canvas.text(left, y, f"{name}: {distance:.2f}", "ink")
        canvas.rect(left, y + 6, wide, 16, "shade")
        canvas.rect(left, y + 6, longest.at(distance), 16, looks[name])
    legend = top + 28 + 44 * len(far) + 8
    for row, (look, words) in enumerate((("fill-4", "honest gradients"), ("fill-5", "hostile ones: drag them"))):
        canvas.circle(left + 6, legend + 22 * row - 4, 5, look)
        canvas.text(left + 20, legend + 22 * row, words, "soft")
    canvas.text(left, legend + 44, "ring: the honest mean; circle: tau", "soft")
    canvas.text(left, legend + 66, "line: CenteredClip's way", "soft")
    return legend + 80 if canvas.narrow else 412


def _caption(values: Values, far: dict[str, float], hostile: int) -> str:
    are = "is" if hostile == 1 else "are"
    who = f"{hostile} of {HONEST + hostile} gradients {are} hostile" if hostile else "No peer is hostile"
    best = min(far, key=lambda name: far[name])
    pulls = f"; no gradient can pull it by more than {values['tau']:g} / {HONEST + hostile} per move" if hostile else ""
    return (
        f"{who}. The distance from the honest mean is {far['Mean']:.2f} for the mean, {far['Median']:.2f} for the "
        f"median and {far['CenteredClip']:.2f} for CenteredClip after {values['iterations']:g} moves{pulls}. The "
        f"nearest is {best if best == 'CenteredClip' else f'the {best.lower()}'}."
    )


def _coordinates(point: Sequence[float]) -> tuple[str, str]:
    return f"{point[0]:.2f}", f"{point[1]:.2f}"


FIGURE = Figure(
    name="outliers",
    title="Drag the hostile gradients",
    controls=(
        Range(name="hostile", label="Hostile peers", low=0, high=MOST_HOSTILE, default=3),
        Range(name="tau", label="Clipping radius tau", low=0.5, high=10, step=0.5, default=2),
        Range(name="iterations", label="Moves of CenteredClip", low=1, high=20, default=8),
        *(
            Range(
                name=f"{axis}{number}",
                label=f"Hostile {number}, {axis}",
                low=-REACH,
                high=REACH,
                step=0.1,
                default=place["xy".index(axis)],
                folded=True,
            )
            for number, place in enumerate(PLACES, start=1)
            for axis in "xy"
        ),
    ),
    draw=draw,
    sources=(
        Source(
            text="Karimireddy et al., Learning from history for Byzantine robust optimization, 2021 (CenteredClip)",
            address="https://arxiv.org/abs/2012.10333",
        ),
        Source(
            text="Gorbunov et al., Secure distributed training at scale, 2022",
            address="https://arxiv.org/abs/2106.11257",
        ),
    ),
)
