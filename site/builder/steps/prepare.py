"""First step of a build: writes everything that a generator reads, as plain Markdown and files.

A generator runs no code of this project: each call in a page's text is replaced by its result, the scripts are bundled,
and the files that the pages load are copied beside them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from builder.assets.browser_files import asset_files
from builder.assets.scripts import bundle_scripts
from builder.dashboard import recorded_run
from builder.folders import BUILT, PAGES, ROOT
from builder.learn.glossary import TERMS
from builder.markup.links import relative
from builder.markup.paths import address_of
from builder.reference.changes import feed
from builder.steps.fill import fill, repository, tutorial_notebook
from training.publish.notebook import notebook

NOT_PUBLISHED = ("build.py", "builder", "includes", "overrides")
"""Files and folders of site/ that build the pages and are not published."""

MOVED = {"about-2021/": "results/"}
"""Former address of a page -> the address where its text stands now."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The input of a generator."""

    folder: Path
    """Pages and files, at the addresses that they will have. A generator writes to the folder around this one."""
    settings: dict
    """Content of mkdocs.yml, with the site's address, and under `extra` the data that the templates show."""


def prepare(workplace: Path = BUILT) -> Sources:
    """Removes the folder `workplace`/sources and writes it anew.

    Raises:
        jinja2.UndefinedError: If a page uses a name that `fill` does not define.
        BuildFailed: If the scripts cannot be bundled.
    """
    folder = workplace / "sources"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PAGES, folder, ignore=_left_out)
    bundle_scripts(PAGES / "javascripts", folder / "javascripts")
    terms = TERMS.read_text(encoding="utf-8")
    # A generator marks a term as an abbreviation only on pages whose own text defines it; so every page gets the terms.
    for page in folder.rglob("*.md"):
        page.write_text(f"{fill(page.read_text(encoding='utf-8'))}\n\n{terms}", encoding="utf-8")
    settings = _settings(workplace)
    for address, file in _made_files():
        (folder / address).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / address)
    for address, text in _made_texts(settings["site_url"]).items():
        (folder / address).parent.mkdir(parents=True, exist_ok=True)
        (folder / address).write_text(text, encoding="utf-8")
    return Sources(folder=folder, settings=settings)


def _left_out(folder: str, names: list[str]) -> set[str]:
    # The bundles of the modules are published, and the tables that are made of the data.
    read_by_the_builder = {name for name in names if name.endswith((".mjs", ".yml"))}
    others = {"__pycache__", *(NOT_PUBLISHED if Path(folder) == PAGES else ())}
    return read_by_the_builder | (others & set(names))


def _settings(workplace: Path) -> dict:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings["site_url"] = os.environ.get("SITE_URL") or settings["site_url"]
    settings["theme"]["custom_dir"] = os.path.relpath(ROOT / settings["theme"]["custom_dir"], workplace)
    settings["extra"] = {"pages": list(_listed(settings["nav"]))}
    return settings


def _listed(nav: list[dict]) -> Iterator[dict]:
    """Titles, addresses and descriptions of all pages, nested as in the menu, for the page 404.html."""
    for entry in nav:
        ((title, found),) = entry.items()
        if isinstance(found, list):
            yield {"title": title, "pages": list(_listed(found))}
        else:
            _, front_matter, _ = (PAGES / found).read_text(encoding="utf-8").split("---\n", 2)
            described = yaml.safe_load(front_matter).get("description", "")
            yield {"title": title, "address": address_of(found), "description": described}


def _made_files() -> Iterator[tuple[str, Path]]:
    """Yields (address, file) for each published file whose address is not its path in site/."""
    yield from asset_files()
    yield from recorded_run.still_pictures(PAGES)


def _made_texts(site_url: str) -> dict[str, str]:
    """Content of each generated text file, by address."""
    live = {} if recorded_run.is_recorded(PAGES) else recorded_run.EMPTY
    return {
        **live,
        **{f"{old}index.html": _forwarding(relative(new, old)) for old, new in MOVED.items()},
        "notebooks/join.ipynb": notebook("colab", source=repository()),
        "notebooks/tutorial.ipynb": tutorial_notebook(),
        "feed.xml": feed(site_url, PAGES / "live"),
    }


def _forwarding(link: str) -> str:
    """A page that leads to another one, by script to the anchor too; hosts of static files cannot redirect."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<meta name="robots" content="noindex">
<script>location.replace({link!r} + location.hash)</script>
<meta http-equiv="refresh" content="1; url={link}">
</head>
<body><main><h1>This page has moved</h1><p><a href="{link}">Go to its new address</a></p></main></body>
</html>
"""
