"""Picture of what a volunteer has contributed, to share or to put on a page of one's own: an SVG without scripts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape

from calculator.units import show_time

WIDTH, HEIGHT = 1200, 630
"""Pixels; the size that sites recommend for the picture beside a link."""
LEFT, RIGHT = 72, 1128
LARGEST_NAME, WIDE, NARROW = 84.0, 1.0, 0.6
"""Size of a short name in pixels, and estimated widths of characters as a multiple of it."""
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = """
  text { fill: #1f2430; font: 30px system-ui, sans-serif; }
  .soft { fill: #565d6b; }
  .name { font-family: Palatino, Georgia, serif; font-weight: 600; }
  .figure { font-size: 52px; font-family: Palatino, Georgia, serif; }
  rect { fill: #14777c; }
"""


def picture_of(document: dict) -> str:
    """Draws a volunteer's document; see `volunteers.volunteer_document`."""
    (all_time,) = [one for one in document["periods"] if one["hours"] is None]
    rank = f"{all_time['rank']:,}" if all_time["rank"] else "–"
    share = f"{100 * document['share']:.2g} %" if document["share"] else "–"
    figures = [
        (f"{document['samples']:,}", "samples that averages show"),
        (share, "of the run"),
        (show_time(document["seconds"]), "of computing"),
        (rank, "place in the run"),
    ]
    columns = [LEFT, LEFT + 400, LEFT + 600, LEFT + 840]
    name = document["name"]
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill: #fcfbf8"/>',
        _text(LEFT, 104, f"Training Transformers Together · {document['title'] or ''}", "soft"),
        _text(LEFT, 226, name, "name", size=min(LARGEST_NAME, (RIGHT - LEFT) / _width(name))),
        *(_text(x, 326, figure, "figure") for x, (figure, _) in zip(columns, figures, strict=True)),
        *(_text(x, 370, what, "soft", size=24) for x, (_, what) in zip(columns, figures, strict=True)),
        *_bars([one["samples"] for one in reversed(document["recent"])]),
        _text(LEFT, 598, "samples in each of the last epochs", "soft", size=24),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    title = f"<title>{_escaped(name)}: {document['samples']:,} samples</title>"
    return f"{head}{title}<style>{_STYLE}</style>{''.join(parts)}</svg>\n"


def _bars(samples: Sequence[int]) -> list[str]:
    """A bar for each epoch; a thin line for one without samples."""
    most, step = max([1, *samples]), (RIGHT - LEFT) / max(len(samples), 30)
    heights = [max(2.0, 130 * one / most) for one in samples]
    return [
        f'<rect x="{LEFT + step * place:.1f}" y="{556 - height:.1f}" width="{0.8 * step:.1f}" height="{height:.1f}"/>'
        for place, height in enumerate(heights)
    ]


def _text(x: float, y: float, text: str, kind: str, *, size: float | None = None) -> str:
    style = "" if size is None else f' style="font-size: {size:.0f}px"'
    return f'<text x="{x}" y="{y}" class="{kind}"{style}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """A stranger's text as the content of an element; without characters that no XML may have."""
    return escape(_NOT_IN_XML.sub("", text))


def _width(text: str) -> float:
    """Estimated width of a text, as a multiple of its size; at least that of a short name."""
    wide = [unicodedata.east_asian_width(one) in "WF" for one in text]
    return max(sum(WIDE if one else NARROW for one in wide), 1.0)
