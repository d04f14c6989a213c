"""The parts of a figure, and its answer to a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calculator.figures.kit.controls import Control, Values, read_values
from calculator.figures.kit.drawing import Canvas


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """A place in the drawing that the reader drags; it moves the sliders of one or two controls."""

    label: str
    x: float
    """Position across, in the drawing's units."""
    y: float
    x_control: str = ""
    """The control that the handle moves when dragged sideways, if any; likewise `y_control`."""
    x_ends: tuple[float, float] = (0, 0)
    """The slider's values at the drawing's left and right edge; for `Stops`, positions from 0."""
    y_control: str = ""
    y_ends: tuple[float, float] = (0, 0)
    """The slider's values at the drawing's upper and lower edge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file that the reader can download."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A figure's answer to the reader's values."""

    caption: str
    """Sentences on what the drawing shows for these values, with the numbers."""
    label: str
    """A description of the drawing, for screen readers."""
    canvas: Canvas
    height: float
    head: tuple[str, ...]
    """Columns of the table that has the drawing's numbers."""
    rows: list[tuple[str, ...]]
    handles: tuple[Handle, ...] = ()
    file: File | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The source of the idea or of a number."""

    text: str
    address: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure of the site: one idea, computed from what the reader sets."""

    name: str
    title: str
    controls: tuple[Control, ...]
    draw: Callable[[Values, Canvas], Drawn]
    sources: tuple[Source, ...]
    limits: Callable[[Values], dict[str, float]] | None = None
    """The highest value of each slider whose range depends on the other values."""


def answered(figure: Figure, texts: dict, *, narrow: bool) -> dict:
    """Computes everything that the page shows of a figure, as plain data.

    `values` are the accepted values as texts, `shown` the same for readers, `note` says which values were changed to
    accepted ones, `places` are the handles' positions in percent of the drawing.
    """
    values, sentences = read_values(figure.controls, texts)
    limits = figure.limits(values) if figure.limits else {}
    # After all values are read, because a slider's range may depend on a control that comes later.
    values |= {name: min(values[name], highest) for name, highest in limits.items()}
    drawn = figure.draw(values, Canvas(narrow=narrow))
    return {
        "values": {control.name: control.text(values[control.name]) for control in figure.controls},
        "shown": {control.name: control.shown(values[control.name]) for control in figure.controls},
        "limits": limits,
        "note": " ".join(sentences),
        "caption": drawn.caption,
        "label": drawn.label,
        "drawing": drawn.canvas.html(drawn.height),
        "head": drawn.head,
        "rows": drawn.rows,
        "handles": [_placed(handle, drawn) for handle in drawn.handles],
        "file": {"name": drawn.file.name, "text": drawn.file.text} if drawn.file else None,
    }


def _placed(handle: Handle, drawn: Drawn) -> dict:
    return {
        "label": handle.label,
        "left": round(100 * handle.x / drawn.canvas.width, 2),
        "top": round(100 * handle.y / drawn.height, 2),
        "x": {"control": handle.x_control, "ends": handle.x_ends} if handle.x_control else None,
        "y": {"control": handle.y_control, "ends": handle.y_ends} if handle.y_control else None,
    }
