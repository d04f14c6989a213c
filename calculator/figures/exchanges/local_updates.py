"""The figure of local updates: peers' paths over a small problem, with an exchange after every few steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from calculator.figures.kit.controls import Choice, Range, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.averaging import Vector, weighted_mean
from calculator.figures.rules.local_updates import STEEPNESS, Bowl, Stretch, best, bowls, loss, train
from calculator.units import show_count

STEPS = 240
"""Inner steps of each peer in the whole run, however often peers exchange."""
OUTER = {"mean": (1.0, 0.0), "nesterov": (0.7, 0.9)}
"""Learning rate and momentum of the outer step: those of `mode = "sparse"`, and those of `mode = "diloco"` in a run of
1000 exchanges or more."""
MOST_DRAWN = 24
"""Most exchanges for which the peers' own paths are drawn; with more, these are too short."""
WEST, EAST, SOUTH, NORTH = -8.5, 5.0, -5.0, 6.5
"""Ends of the drawing, within which all paths lie."""
LEVELS = (0.5, 2, 6, 14, 28)
"""Losses whose contours are drawn."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of all peers."""

    data: tuple[Bowl, ...]
    stretches: tuple[Stretch, ...]

    @property
    def loss(self) -> float:
        """The loss at the end, over the lowest one."""
        return loss(self.data, self.stretches[-1].met)

    @property
    def apart(self) -> float:
        """Mean distance of the peers' weights from their mean, before the last exchange."""
        ends = [path[-1] for path in self.stretches[-1].paths]
        middle = weighted_mean(ends)
        return sum(math.dist(one, middle) for one in ends) / len(ends)


@lru_cache(maxsize=128)
def run_of(peers: int, inner: int, difference: float, outer: str) -> Run:
    """The run with these settings."""
    data, (rate, momentum) = bowls(peers, difference), OUTER[outer]
    stretches = train(data, inner=inner, exchanges=STEPS // inner, outer_rate=rate, momentum=momentum)
    return Run(tuple(data), tuple(stretches))


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws the loss of all data as contours, each peer's path, and the common weights."""
    peers, inner, difference = int(values["peers"]), int(values["inner"]), float(values["difference"])
    run = run_of(peers, inner, difference, str(values["outer"]))
    each = run_of(peers, 1, difference, "mean")
    left, right, top, bottom = 4, canvas.width - 4, 26, 26 + (250 if canvas.narrow else 400)
    # A unit is equally long in both directions.
    unit = min((right - left) / (EAST - WEST), (bottom - top) / (NORTH - SOUTH))
    middle, half = (WEST + EAST) / 2, (right - left) / unit / 2
    across = Scale(middle - half, middle + half, left, right)
    up = Scale(NORTH - (bottom - top) / unit, NORTH, bottom, top)

    def place(point: Vector) -> tuple[float, float]:
        return across.at(point[0]), up.at(point[1])

    canvas.text(0, 14, "Peers' paths, and where they meet", "strong")
    canvas.rect(left, top, right - left, bottom - top, "shade", radius=4)
    lowest = best(run.data)
    for level in LEVELS:
        canvas.polyline(map(place, _contour(lowest, level)), "grid")
    if len(run.stretches) <= MOST_DRAWN:
        for stretch in run.stretches:
            for number, path in enumerate(stretch.paths):
                canvas.polyline(map(place, _thinned(path)), f"line-{number % 8 + 1}")
    common = [run.stretches[0].paths[0][0], *(stretch.met for stretch in run.stretches)]
    canvas.polyline(map(place, common), "line-ink")
    for point in common if len(common) <= MOST_DRAWN + 1 else (common[0], common[-1]):
        x, y = place(point)
        canvas.rect(x - 4, y - 4, 8, 8, "fill-ink mark")
    for number, bowl in enumerate(run.data):
        canvas.circle(*place(bowl.lowest), 4, f"fill-{number % 8 + 1}")
    canvas.circle(*place(lowest), 9, "truth")
    end = _legend(canvas, bottom + 22, has_paths=len(run.stretches) <= MOST_DRAWN)
    return Drawn(
        caption=_caption(values, run, each),
        label=f"Contours of a loss over two weights, paths of {peers} peers, and where they meet after each exchange",
        canvas=canvas,
        height=end,
        head=("Way", "Exchanges", "Loss over the lowest", "Peers apart at the last exchange"),
        rows=[
            _row("As set", run),
            _row("The same, an exchange after each step", each),
            _row("The same, one exchange at the end", run_of(peers, STEPS, difference, "mean")),
        ],
    )


def _row(name: str, run: Run) -> tuple[str, ...]:
    return name, str(len(run.stretches)), f"{run.loss:.3f}", f"{run.apart:.2f}"


def _contour(lowest: Vector, level: float) -> list[Vector]:
    """Points at which the loss is higher by `level` than at its lowest point."""
    radii = [math.sqrt(2 * level / steep) for steep in STEEPNESS]
    turns = [2 * math.pi * number / 48 for number in range(49)]
    return [(lowest[0] + radii[0] * math.cos(turn), lowest[1] + radii[1] * math.sin(turn)) for turn in turns]


def _thinned(path: Sequence[Vector]) -> list[Vector]:
    """Thins a path to about a dozen points, the first and the last one among them."""
    return [*path[: -1 : max(1, len(path) // 12)], path[-1]]


def _legend(canvas: Canvas, top: float, *, has_paths: bool) -> float:
    """Says what the marks mean, from `top` down; returns where the drawing ends."""
    first = "squares: common weights after each exchange" if has_paths else "black: common weights"
    lines = [first, "ring: best common weights", "coloured: peers, and the weights best for each"]
    for number, line in enumerate(lines):
        canvas.text(4, top + 20 * number, line, "soft")
    return top + 20 * len(lines)


def _caption(values: Values, run: Run, each: Run) -> str:
    peers, inner, exchanges = int(values["peers"]), int(values["inner"]), len(run.stretches)
    how = f"an exchange after every {inner} steps" if inner > 1 else "an exchange after every step"
    often = f"they exchange {exchanges} times" if exchanges > 1 else "they exchange once"
    fewer = f"{often} instead of {STEPS}" if exchanges < STEPS else often
    worse = (
        "the same as"
        if f"{run.loss:.3f}" == f"{each.loss:.3f}"
        else "higher than"
        if run.loss > each.loss
        else "lower than"
    )
    less = f"send {show_count(STEPS // exchanges)} times less" if exchanges < STEPS else "send as much as without"
    return (
        f"{peers} peers make {STEPS} steps each, with {how}: {fewer}, and {less}. Before the last exchange their "
        f"weights are {run.apart:.2f} apart. The loss ends {run.loss:.3f} above the lowest, {worse} the "
        f"{each.loss:.3f} of plain steps with an exchange after each."
    )


FIGURE = Figure(
    name="local",
    title="Train alone, then meet",
    controls=(
        Stops(name="inner", label="Steps between exchanges", stops=(1, 5, 10, 20, 30, 40, 60, 120, 240), default=40),
        Range(name="peers", label="Peers", low=2, high=8, default=4),
        Range(name="difference", label="How much their data differ", low=0, high=1, step=0.1, default=0.7),
        Choice(
            name="outer",
            label="Common weights move by",
            options=(("mean", "the mean distance"), ("nesterov", "0.7 of it, with momentum 0.9")),
            default="mean",
        ),
    ),
    draw=draw,
    sources=(
        Source(text="Douillard et al. 2023 (DiLoCo)", address="https://arxiv.org/abs/2311.08105"),
        Source(text="McMahan et al. 2017 (federated averaging)", address="https://arxiv.org/abs/1602.05629"),
        Source(text="Stich 2019 (local SGD)", address="https://arxiv.org/abs/1805.09767"),
    ),
)
