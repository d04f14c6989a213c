"""Third step of a build: edits the HTML, in the same way for every generator.

Links become relative, terms of the glossary become links, code wraps between words, and the search dialog gets a name
for screen readers. The theme's script gets a hint with which it starts sooner. Style sheets lose rules that cost time
on every element (builder/markup/styles.py). Each page says which scripts may run (builder/markup/policy.py). Last, the
service worker is written with the list of all files.
"""

from __future__ import annotations

from pathlib import Path

from builder.learn import glossary
from builder.markup import listings
from builder.markup.links import relative, resolved
from builder.markup.policy import inline_scripts, policy_of, with_policy
from builder.markup.styles import has_tabs, with_boxes, without_tabs
from builder.steps.offline import write_service_worker

THEMES_SCRIPT = "assets/javascripts/bundle.*.min.js"
COMPILE_ALL = "//# allFunctionsCalledOnLoad"
"""Comment in a script's first line, which Chromium reads as a hint to compile all functions beside the main thread,
while the script arrives. The theme calls most of its functions as a page opens;
one by one they take a quarter of that task."""
SEARCH = 'data-md-component="search" role="dialog"'


def finish(built: Path) -> None:
    """Edits all pages of the site in a folder, in place."""
    made = {file: file.read_text(encoding="utf-8") for file in built.rglob("*.html")}
    tabs = any(map(has_tabs, made.values()))
    policy = policy_of(set().union(*map(inline_scripts, made.values())))
    for file, html in made.items():
        address = file.relative_to(built).as_posix().removesuffix("index.html")
        file.write_text(with_policy(finished(html, address), policy), encoding="utf-8")
    for file in built.glob(THEMES_SCRIPT):
        file.write_text(f"{COMPILE_ALL}\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    for file in built.rglob("*.css"):
        css = with_boxes(file.read_text(encoding="utf-8"))
        file.write_text(css if tabs else without_tabs(css), encoding="utf-8")
    # After the edits: the service worker's version is a digest of the files.
    write_service_worker(built)


def finished(html: str, address: str) -> str:
    """The edited HTML of a page.

    Args:
        html: As the generator made it.
        address: The page's address, relative to the site's root.
    """
    if 'id="__toc"' not in html:  # The menu has the switch that this label names, but only on pages that it lists.
        html = html.replace('for="__toc"', "")
    html = glossary.linked(resolved(html, address), relative("glossary/", address))
    return listings.wrapping(html).replace(SEARCH, f'{SEARCH} aria-label="Search"')
