"""Tables whose cells are words: on phones each line stands below the other, cell by cell under its column's name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def stacked(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """HTML table in a frame that scrolls.

    Args:
        name: What readers of the screen are told that it is.
        columns: Their names, as text; the first one's cells name the lines.
        rows: Cells as HTML; one that is empty or a dash is left out on phones.
        kind: A further class.
    """
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(_cell(column, cell) for column, cell in zip(columns[1:], cells, strict=True))
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">'
        f'<table class="{" ".join(["numbers", "stacked", *kind.split()])}">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _cell(column: str, cell: str) -> str:
    bare = ' class="bare"' if cell in ("", "–") else ""
    return f'<td{bare} data-label="{escape(column)}">{cell}</td>'
