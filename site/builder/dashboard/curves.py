"""Curves as SVG, which pages show without JavaScript and until javascripts/dashboard/chart.mjs draws its own.

Their colours are the site's CSS variables, so that they change with the palette.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 34, 44
_SERIES = 8


def loss_svg(all_losses: Points, losses_of_each: dict[str, Points]) -> str:
    """Loss over epochs: a strong line for all samples, a thin one for each volunteer.

    Args:
        all_losses: (epoch, loss) by epoch; at least one.
        losses_of_each: Name of a volunteer -> its (epoch, loss) by epoch.
    """
    every = [*all_losses, *(point for points in losses_of_each.values() for point in points)]
    x_ticks = _ticks(min(x for x, _ in every), max(x for x, _ in every), whole=True)
    y_ticks = _ticks(min(y for _, y in every), max(y for _, y in every))
    place = _scale(x_ticks, y_ticks)
    parts = []
    for value in y_ticks:
        _, y = place((x_ticks[0], value))
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in x_ticks:
        x, _ = place((value, y_ticks[0]))
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">Epoch</text>')
    parts.append(f'<text x="{_LEFT}" y="16">Loss</text>')
    label_x = _LEFT + 60
    for index, (name, points) in enumerate(losses_of_each.items()):
        number = index % _SERIES + 1
        parts.append(f'<polyline class="one" style="stroke:var(--series-{number})" points="{_path(points, place)}"/>')
        if index < 5:  # more names do not fit into a line
            parts.append(f'<path style="stroke:var(--series-{number});stroke-width:3" d="M{label_x} 12h16"/>')
            parts.append(f'<text x="{label_x + 22}" y="16">{escape(name[:16])}</text>')
            label_x += 40 + 7.5 * min(len(name), 16)
    parts.append(f'<polyline class="all" points="{_path(all_losses, place)}"/>')
    return f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">{"".join(parts)}</svg>'


def spark_svg(points: Points, peers: Points = ()) -> str:
    """Two curves without axes, loss above and volunteers below, as `curve` of javascripts/home/glance.mjs draws them.

    Args:
        points: (epoch, loss) by epoch; at least two.
        peers: (epoch, number of active volunteers) by epoch.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    wide, tall = max(xs) - min(xs) or 1, max(ys) - min(ys) or 1
    path = " ".join(f"{4 + 292 * (x - min(xs)) / wide:.1f},{76 - 72 * (y - min(ys)) / tall:.1f}" for x, y in points)
    label = f"Loss from {ys[0]:.3g} at epoch {xs[0]:g} to {ys[-1]:.3g} at epoch {xs[-1]:g}"
    band = ""
    if peers:
        most = max(count for _, count in peers) or 1
        steps = " ".join(
            f"L{4 + 292 * (x - min(xs)) / wide:.1f},{100 - 12 * count / most:.1f}" for x, count in peers if x >= min(xs)
        )
        band = f'<path class="people" d="M4,100{steps}L296,100Z"/>'
        label += f"; below, the number of volunteers that trained: at most {most:g}"
    view = "0 0 300 102" if peers else "0 0 300 80"
    return f'<svg viewBox="{view}" role="img" aria-label="{label}"><polyline points="{path}"/>{band}</svg>'


def _ticks(low: float, high: float, *, whole: bool = False, about: int = 5) -> list[float]:
    """About `about` round values at equal distances; the first is at most `low`, the last at least `high`."""
    raw = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _scale(x_ticks: Sequence[float], y_ticks: Sequence[float]):
    (left, right), (low, high) = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        return (
            _LEFT + (x - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM),
        )

    return place


def _path(points: Iterable[tuple[float, float]], place) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, points))
