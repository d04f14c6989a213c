"""The glossary, and links to it: site/includes/terms.md explains the terms for both."""

from __future__ import annotations

import re

from builder.folders import PAGES

TERMS = PAGES / "includes" / "terms.md"
_LINE = re.compile(r"\*\[(?P<term>[^\]]+)\]: (?P<meaning>.+)")

_PIECE = re.compile(
    r'<abbr title="(?P<meaning>[^"]*)">(?P<term>[^<]*)</abbr>'
    r"|<(?P<end>/?)(?P<tag>a|button|code|h[1-6]|label|nav|summary)\b[^>]*>"
)
"""A term that the generator has marked, or the begin or end of an element that must not contain a link."""


def terms() -> dict[str, str]:
    """Term -> meaning, in the order of the file.

    Raises:
        ValueError: If a line is not of the form `*[term]: meaning`, or if a term is defined twice.
    """
    found: dict[str, str] = {}
    for line in TERMS.read_text(encoding="utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match["term"] in found:
            raise ValueError(f"{TERMS.name} has the line {line!r}; write *[term]: meaning, and each term only once.")
        found[match["term"]] = match["meaning"]
    return found


def glossary() -> str:
    """HTML list of all terms in alphabetical order; each has an anchor."""
    entries = sorted(terms().items(), key=lambda entry: entry[0].lower())
    lines = (f'<dt id="{anchor(term)}">{term}</dt><dd>{meaning}</dd>' for term, meaning in entries)
    return f'<dl class="glossary">{"".join(lines)}</dl>'


def anchor(term: str) -> str:
    """The anchor of a term in the glossary."""
    return term.lower().replace(" ", "-")


def linked(html: str, address: str) -> str:
    """A page's HTML in which each term, where it first occurs, is a link to the glossary; later occurrences are text.

    Generators mark every occurrence as `<abbr>`, whose meaning only a mouse can show. A link also works with a keyboard
    and by touch; a script shows the meaning beside it.

    Args:
        html: The page as the generator made it.
        address: The glossary's address, relative to the page.
    """
    inside = 0  # elements around the current place that must not contain a link
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
