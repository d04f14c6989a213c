"""The ways through the site for three kinds of people: pages in order, with the minutes that each takes to read."""

from __future__ import annotations

import html
import posixpath

import yaml

from builder.folders import PAGES
from builder.markup.links import site_link

PATHS = {
    "reader": (
        "challenges/index.md",
        "challenges/communication.md",
        "challenges/uneven-devices.md",
        "challenges/memory.md",
        "challenges/data-streaming.md",
        "challenges/security.md",
        "train-together.md",
        "results.md",
    ),
    "volunteer": ("join.md", "taking-part.md", "volunteer.md"),
    "maintainer": ("make-your-own-run.md", "operate.md", "reference/members.md", "recipe.md"),
}
"""Kind of person -> sources of the pages to read, in this order. The first shows the path at its top."""


def path(name: str) -> str:
    """A path as one line of HTML: its length in all, and a link to each page with its minutes.

    Raises:
        KeyError: If there is no such path.
    """
    steps = [(source, reading_minutes((PAGES / source).read_text(encoding="utf-8"))) for source in PATHS[name]]
    items = "".join(
        f'<li><a href="{site_link(address_of(source))}"{" aria-current=page" if not place else ""}>'
        f"{html.escape(_title(source))}</a> {minutes}\u00a0min</li>"
        for place, (source, minutes) in enumerate(steps)
    )
    total = sum(minutes for _, minutes in steps)
    return (
        f'<nav class="path" aria-label="The {name}’s path"><p>The {name}’s path, {total}\u00a0minutes:</p>'
        f"<ol>{items}</ol></nav>"
    )


def reading_minutes(markdown: str) -> int:
    """Minutes that a page takes to read: at least one.

    Source of the words a minute: Brysbaert 2019, non-fiction in English, doi:10.1016/j.jml.2019.104047.

    >>> reading_minutes("word " * 1_190)
    5
    """
    return max(1, round(len(markdown.split()) / 238))


def address_of(source: str) -> str:
    """The address of the page that a generator makes from a source file.

    >>> address_of("challenges/index.md"), address_of("join.md")
    ('challenges/', 'join/')
    """
    folder, name = posixpath.split(source)
    address = posixpath.join(folder, "" if name == "index.md" else name.removesuffix(".md"))
    return f"{address.rstrip('/')}/" if address else ""


def _title(source: str) -> str:
    _, front_matter, _ = (PAGES / source).read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front_matter)["title"]
