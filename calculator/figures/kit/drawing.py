"""Drawings as HTML texts, equal in the built page and in the browser.

Shapes are SVG. Words are HTML elements on top, placed in percent: in SVG, tools that check contrast could not see the
background of a word. Colours are classes of site/stylesheets/figures.css, so that drawings follow the palette: `fill-1`
to `fill-8` and `line-1` to `line-8` are the series; `ink`, `soft`, `grid`, `shade` and `accent` are named by their use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

WIDE, NARROW = 720, 340
"""Widths of the two drawings of each figure; phones get the narrow one, so that its text stays readable."""


@dataclass(slots=True)
class Canvas:
    """Collects the shapes of one drawing."""

    narrow: bool = False
    parts: list[str] = field(default_factory=list)
    words: list[tuple[float, float, str]] = field(default_factory=list)
    """Position, and the element's attributes and content."""

    @property
    def width(self) -> int:
        """Width in the drawing's own units, about pixels."""
        return NARROW if self.narrow else WIDE

    def rect(self, x: float, y: float, width: float, height: float, look: str, *, radius: float = 0) -> None:
        """A filled rectangle; negative sizes count as 0."""
        corner = f' rx="{radius:g}"' if radius else ""
        self.parts.append(
            f'<rect class="{look}" x="{_at(x)}" y="{_at(y)}" width="{_at(max(width, 0))}" '
            f'height="{_at(max(height, 0))}"{corner}/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float, look: str = "grid") -> None:
        """A straight line."""
        self.parts.append(f'<path class="{look}" d="M{_at(x)} {_at(y)}L{_at(to_x)} {_at(to_y)}"/>')

    def polyline(self, points: Iterable[tuple[float, float]], look: str) -> None:
        """A line through points."""
        self.parts.append(f'<path class="{look}" d="M{"L".join(f"{_at(x)} {_at(y)}" for x, y in points)}"/>')

    def dots(self, points: Iterable[tuple[float, float]], look: str) -> None:
        """Many small dots as one shape, which is fast to draw: lines of length 0 with round ends."""
        self.parts.append(f'<path class="dots {look}" d="{_dots(tuple(points))}"/>')

    def circle(self, x: float, y: float, radius: float, look: str) -> None:
        """A circle."""
        self.parts.append(f'<circle class="{look}" cx="{_at(x)}" cy="{_at(y)}" r="{_at(radius)}"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float, look: str) -> None:
        """A line with a head at its end."""
        angle = math.atan2(to_y - y, to_x - x)
        wings = [(to_x - 8 * math.cos(angle + turn), to_y - 8 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
        (left_x, left_y), (right_x, right_y) = wings
        self.parts.append(
            f'<path class="{look}" d="M{_at(x)} {_at(y)}L{_at(to_x)} {_at(to_y)}M{_at(left_x)} {_at(left_y)}'
            f'L{_at(to_x)} {_at(to_y)}L{_at(right_x)} {_at(right_y)}"/>'
        )

    def text(self, x: float, y: float, words: str, look: str = "ink", *, anchor: str = "start") -> None:
        """A line of text; `anchor` is start, middle or end."""
        look = look if anchor == "start" else f"{look} {anchor}"
        # Words are placed after the shapes, so they always lie on top.
        self.words.append((x, y, f'class="{look}">{_escaped(words)}</span>'))

    def html(self, height: float) -> str:
        """The whole drawing."""
        shapes = f'<svg viewBox="0 0 {self.width} {_at(height)}" aria-hidden="true">{"".join(self.parts)}</svg>'
        return shapes + "".join(
            f'<span style="left:{_percent(x, self.width)};top:{_percent(y, height)}" {rest}'
            for x, y, rest in self.words
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions along one axis, linearly or logarithmically."""

    low: float
    high: float
    start: float
    """The position of `low`."""
    end: float
    """The position of `high`."""
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The position of a value; values outside the range are put at its end."""
        return self.start + self.share(value) * (self.end - self.start)

    def share(self, value: float) -> float:
        """The value's share of the way from `low` (0) to `high` (1)."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def wrapped(words: str, longest: int) -> Sequence[str]:
    """The words in lines of at most `longest` characters."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > longest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


@lru_cache(maxsize=64)
def _dots(points: tuple[tuple[float, float], ...]) -> str:
    """The path of the dots. Cached: most drags leave the hundreds of dots where they are."""
    return "".join([f"M{x:.1f} {y:.1f}h0" for x, y in points])


def _escaped(words: str) -> str:
    """The words escaped for HTML. Importing `html` would load a table of 100 kB into the browser's Python."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _percent(place: float, whole: float) -> str:
    return f"{round(100 * place / whole, 2):g}%"


def _at(place: float) -> str:
    """A coordinate rounded to a tenth of a unit, which is less than a pixel."""
    return f"{round(place, 1):g}"
