"""HTML tables. On a narrow screen a table scrolls in its own frame, or stands cell below cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "numbers") -> str:
    """HTML table.

    Args:
        name: Name of the table for screen readers.
        columns: Names of the columns, as text. The cells of the first column are the headings of the rows.
        rows: For each row its cells, as HTML.
        kind: CSS classes of the table.
    """
    return _framed(name, columns, rows, kind, [""] * (len(columns) - 1))


def stacked(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "numbers") -> str:
    """HTML table that shows on phones each row as a list: each cell below the name of its column.

    Args:
        name: See `table`.
        columns: See `table`.
        rows: For each row its cells, as HTML; phones do not show cells that are empty or a dash.
        kind: See `table`.
    """
    return _framed(name, columns, rows, f"{kind} stacked", columns[1:])


def code(text: str) -> str:
    """Text of a docstring or a message as HTML; words between `backticks` become code."""
    pieces = escape(" ".join(text.split())).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))


def _framed(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], kind: str, labels: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(_cell(cell, label) for label, cell in zip(labels, cells, strict=True))
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _cell(content: str, label: str) -> str:
    """A cell; `label` is the column's name that phones show above it, or empty."""
    if not label:
        return f"<td>{content}</td>"
    bare = ' class="bare"' if content in ("", "–") else ""
    return f'<td{bare} data-label="{escape(label)}">{content}</td>'
