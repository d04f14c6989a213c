"""The built files: whole, complete, and asking nobody else for anything."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from builder.steps.prepare import MOVED
from training.recipe import load_recipe

pytestmark = pytest.mark.browser

ORIGIN = "http://site.test/"

NAMED = ("http://www.w3.org/2000/svg", "https://run.example", "http://203.0.113.7:8000", "https://${text.trim()}")
"""Addresses in scripts that no page asks by itself: a name, examples, and a monitor that a reader names."""

FETCHED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "form": ("action",),
    "object": ("data",),
}
"""Attributes that make a browser ask for something."""

FETCHED_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "manifest",
}


@dataclass
class Page(HTMLParser):
    """Addresses and names of one HTML file."""

    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    """Ids that other elements name: labels, descriptions, what a button controls."""

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if values.get("id"):
            self.ids.append(values["id"])
        for name in ("for", "aria-labelledby", "aria-describedby", "aria-controls", "list", "headers"):
            self.named += (values.get(name) or "").split()
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "link" and FETCHED_RELATIONS & set((values.get("rel") or "").split()):
            self.fetched.append(values["href"])
        self.fetched += [values[name] for name in FETCHED.get(tag, ()) if values.get(name)]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def pages(built_site: Path) -> dict[str, Page]:
    """Address of each page, relative to the site's root, and what stands there."""
    parsed = {}
    for file in built_site.rglob("*.html"):
        page = Page()
        page.feed(file.read_text(encoding="utf-8"))
        parsed[file.relative_to(built_site).as_posix().removesuffix("index.html")] = page
    return parsed


def test_nothing_is_asked_of_another_origin(built_site, pages):
    foreign = [
        f"{address}: {url}"
        for address, page in pages.items()
        for url in page.fetched
        if not urljoin(ORIGIN + address, url).startswith((ORIGIN, "data:"))
    ]
    for sheet in built_site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        urls = re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+['\"]([^'\"]+)", text)
        foreign += [f"{sheet.name}: {url}" for url in urls if "//" in url and not url.startswith("data:")]
    for script in (built_site / "javascripts").rglob("*.mjs"):
        urls = re.findall(r"https?://[^\s\"'`]+", script.read_text(encoding="utf-8"))
        foreign += [f"{script.name}: {url}" for url in urls if not url.startswith(NAMED)]
    assert foreign == []


def test_links_and_anchors_lead_somewhere(built_site, pages):
    broken = []
    for address, page in pages.items():
        for link in page.links + page.fetched:
            target = urlsplit(urljoin(ORIGIN + address, link))
            if target.netloc != "site.test":
                continue
            path = unquote(target.path.lstrip("/"))
            if path.startswith("live/"):
                continue
            if path not in pages and not (built_site / path).is_file():
                broken.append(f"{address}: {link}")
            elif target.fragment and target.fragment not in ("__skip", *pages[path].ids):
                broken.append(f"{address}: {link} (no such anchor)")
    assert broken == []


def test_what_names_an_element_finds_it(pages):
    missing = {address: sorted(set(page.named) - set(page.ids)) for address, page in pages.items()}
    assert {address: names for address, names in missing.items() if names} == {}


def test_every_page_can_be_reached_from_the_home_page(pages):
    seen, ahead = set(), [""]
    while ahead:
        address = ahead.pop()
        if address in seen:
            continue
        seen.add(address)
        targets = [urlsplit(urljoin(ORIGIN + address, link)) for link in pages[address].links]
        ahead += [target.path.lstrip("/") for target in targets if target.netloc == "site.test"]
        ahead = [path for path in ahead if path in pages]
    assert seen == set(pages) - {"404.html", *MOVED}


def test_ids_are_unique(pages):
    doubled = {
        address: sorted({name for name in page.ids if page.ids.count(name) > 1})
        for address, page in pages.items()
        if len(set(page.ids)) != len(page.ids)
    }
    assert doubled == {}


def test_sources_of_the_build_are_not_published(built_site):
    published = {file.relative_to(built_site).as_posix() for file in built_site.rglob("*") if file.is_file()}
    assert not [
        name
        for name in published
        if name.endswith((".py", ".pyc", ".md")) or name.startswith(("overrides/", "includes/"))
    ]


def test_recipe_page_states_the_recipes_numbers(pages):
    text = " ".join("".join(pages["recipe/"].words).split())
    for name in ("dalle-2021", "demo"):
        run = load_recipe(name)
        for value in (run.model.hidden_size, run.swarm.target_batch_size, run.schedule.total_epochs):
            assert f"{value:,}".replace(",", "\u202f").replace("\u202f", " ") in text.replace("\u202f", " ")


def test_live_paths_answer_without_a_live_run(built_site):
    """A static site holds a recorded run, or says that there is none; no request of its pages fails."""
    run = json.loads((built_site / "live" / "run.json").read_text())
    if run:
        for name in ("state", "history", "losses", "leaderboard", "pictures", "events"):
            json.loads((built_site / "live" / f"{name}.json").read_text())


def test_what_the_browser_fetches_for_the_calculator_is_small(built_site):
    """The size that is sent is measured by benchmarks/page/page.py; here stand the sizes that it follows from."""
    (runtime,) = (built_site / "runtime").iterdir()
    sizes = {file.name: file.stat().st_size for file in runtime.iterdir()}
    assert sizes["stdlib.zip"] < 3_500_000
    assert sizes["calculator.zip"] < 1_100_000
    assert sizes["exercises.zip"] < 250_000
    assert sizes["snapshot.wasm"] < 13_300_000
    assert set(sizes) == {
        "pyodide.mjs",
        "pyodide.asm.mjs",
        "pyodide.asm.wasm",
        "snapshot.wasm",
        "stdlib.zip",
        "calculator.zip",
        "exercises.zip",
    }
