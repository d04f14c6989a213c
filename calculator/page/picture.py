"""An estimate as a picture for a README: an SVG file that needs nothing else."""

from __future__ import annotations

from dataclasses import asdict

from calculator.page.shown import PARTS
from calculator.step.answer import Estimate
from calculator.units import show_bytes

WIDTH, HEIGHT, MARGIN, COLUMN = 640, 132, 16, 206
COLOURS = ("#14727c", "#d97b24", "#8459b8", "#4d9b55", "#c44a68")
"""Colours of the parts, in their order."""
INK, PAPER = "#1b2130", "#fcfbf7"
"""Colours of text and ground; the picture has its own ground, so that it can be read on dark pages too."""


def picture(title: str, result: Estimate, verdict: str = "") -> str:
    """Draws the memory at the peak as SVG: a bar with its parts, and their names.

    Args:
        title: The setup in one line.
        result: Estimate of the setup.
        verdict: A sentence about the GPU; empty: no sentence.
    """
    sizes = asdict(result.gpu)
    scale, x, shapes = (WIDTH - 2 * MARGIN) / result.gpu.total, float(MARGIN), []
    for number, (part, size) in enumerate(sizes.items()):
        left, top = MARGIN + COLUMN * (number % 3), 100 + 18 * (number // 3)
        shapes.append(
            f'<rect x="{x:.1f}" y="52" width="{size * scale:.1f}" height="26" fill="{COLOURS[number]}"/>'
            f'<rect x="{left}" y="{top - 9}" width="9" height="9" fill="{COLOURS[number]}"/>'
            + _text(left + 14, top, 12, f"{PARTS[part]} {show_bytes(size)}")
        )
        x += size * scale
    head = _text(MARGIN, 23, 15, f"{title}: {show_bytes(result.gpu.total)} of GPU memory") + _text(
        MARGIN, 42, 12, verdict
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="system-ui, sans-serif" fill="{INK}"><title>{_escaped(title)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{PAPER}"/>{head}{"".join(shapes)}</svg>\n'
    )


def _escaped(words: str) -> str:
    """Escapes words for HTML. `html.escape` does the same, but its module takes 0.3 MB in the browser."""
    return words.translate({ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"})


def _text(x: int, y: int, size: int, words: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{_escaped(words)}</text>'
