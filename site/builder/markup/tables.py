"""Tables in a frame that scrolls by itself, and their words; some stand cell below cell on phones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "numbers") -> str:
    """HTML table.

    Args:
        name: What readers of the screen are told that it is.
        columns: Their names, as text; the first one's cells name the lines.
        rows: Cells as HTML.
        kind: Its classes.
    """
    return _framed(name, columns, rows, kind, [""] * (len(columns) - 1))


def stacked(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "numbers") -> str:
    """HTML table whose lines stand below each other on phones, cell by cell under its column's name.

    Args:
        name: See `table`.
        columns: See `table`.
        rows: Cells as HTML; an empty one, or a dash, is left out on phones.
        kind: See `table`.
    """
    return _framed(name, columns, rows, f"{kind} stacked", columns[1:])


def code(text: str) -> str:
    """A docstring's or a message's words as HTML, with what stands between `backticks` as code."""
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
    """With the name that it has on phones, if any."""
    if not label:
        return f"<td>{content}</td>"
    bare = ' class="bare"' if content in ("", "–") else ""
    return f'<td{bare} data-label="{escape(label)}">{content}</td>'
