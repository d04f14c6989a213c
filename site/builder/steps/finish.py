"""Last step of a build: what is done to the generated HTML, whichever generator has made it.

Terms of the glossary become links, code wraps between words, the theme's search dialog gets a name, and the service
worker learns which files there are.
"""

from __future__ import annotations

from pathlib import Path

from builder.learn import glossary
from builder.markup import listings
from builder.markup.links import relative, resolved
from builder.steps.offline import write_service_worker

SEARCH = 'data-md-component="search" role="dialog"'


def finish(built: Path) -> None:
    """Finishes the site in a folder, in place."""
    for file in built.rglob("*.html"):
        address = file.relative_to(built).as_posix().removesuffix("index.html")
        file.write_text(finished(file.read_text(encoding="utf-8"), address), encoding="utf-8")
    write_service_worker(built)


def finished(html: str, address: str) -> str:
    """A finished page.

    Args:
        html: As the generator has made it.
        address: Of the page, relative to the site's root.
    """
    html = glossary.linked(resolved(html, address), relative("glossary/", address))
    return listings.wrapping(html).replace(SEARCH, f'{SEARCH} aria-label="Search"')
