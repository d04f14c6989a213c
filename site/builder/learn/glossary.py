"""The field's terms: one file explains them where a page has them first, and makes the glossary."""

from __future__ import annotations

import re

from builder.folders import PAGES

TERMS = PAGES / "includes" / "terms.md"
_LINE = re.compile(r"\*\[(?P<term>[^\]]+)\]: (?P<meaning>.+)")

_PIECE = re.compile(
    r'<abbr title="(?P<meaning>[^"]*)">(?P<term>[^<]*)</abbr>'
    r"|<(?P<end>/?)(?P<tag>a|button|code|h[1-6]|label|nav|summary)\b[^>]*>"
)
"""A term, or where an element begins or ends in which a link has no place."""


def terms() -> dict[str, str]:
    """Term -> meaning, as in the file.

    Raises:
        ValueError: If a line is no abbreviation, or a term stands twice.
    """
    found: dict[str, str] = {}
    for line in TERMS.read_text(encoding="utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match["term"] in found:
            raise ValueError(f"{TERMS.name} has the line {line!r}; a line reads *[term]: meaning, each term once.")
        found[match["term"]] = match["meaning"]
    return found


def glossary() -> str:
    """HTML list of all terms by the alphabet; each can be linked to."""
    entries = sorted(terms().items(), key=lambda entry: entry[0].lower())
    lines = (f'<dt id="{anchor(term)}">{term}</dt><dd>{meaning}</dd>' for term, meaning in entries)
    return f'<dl class="glossary">{"".join(lines)}</dl>'


def anchor(term: str) -> str:
    """Where a term stands in the glossary."""
    return term.lower().replace(" ", "-")


def linked(html: str, address: str) -> str:
    """A page with each term's first place as a link to the glossary, which a script opens in place; the rest as text.

    MkDocs marks every occurrence, and says the meaning to a pointer alone; links serve keyboards and fingers as well.

    Args:
        html: The finished page.
        address: Of the glossary, as seen from the page.
    """
    inside = 0
    seen: set[str] = set()

    def rewritten(match: re.Match) -> str:
        nonlocal inside
        if match["tag"]:
            inside += -1 if match["end"] else 1
            return match[0]
        term = match["term"]
        if inside or term in seen:
            return term
        seen.add(term)
        return f'<a class="term" href="{address}#{anchor(term)}" title="{match["meaning"]}">{term}</a>'

    return _PIECE.sub(rewritten, html)
