"""Both generators make the same pages of the prepared sources, and leave nothing of ours to be expanded."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest

from builder.folders import PAGES
from builder.steps import fill, finish
from builder.steps.generate import COMMANDS, generate
from builder.steps.prepare import MOVED, Sources, prepare

CALL = re.compile(r"\{\{|\{%|^:::|\]\([^)]*\.md[)#]", re.MULTILINE)
"""A call in a page's text that nobody has expanded, or a link to a source."""

WHOLE = "article"
"""The element with what the project says; what stands around it is the theme's."""


class Words(HTMLParser):
    """Reads the words of a page's article and of its title, and the addresses of its pictures and links."""

    def __init__(self, html: str):
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in (WHOLE, "title", "script", "style", "svg"):
            self._open.append(tag)
        if WHOLE in self._open:
            values = dict(attributes)
            self.addresses += [values[name] for name in ("href", "src") if values.get(name)]
            self.words += [values[name] for name in ("alt", "aria-label") if values.get(name)]
            self.words += [values["id"]] if values.get("id") and not values["id"].startswith("__") else []

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[-1]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open in (["title"], [WHOLE]):
            self.words += data.split()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, built_site: Path) -> Sources:
    """What generators get; the built site has made what of it takes long."""
    return prepare(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(sources: Sources) -> dict[str, dict[str, Words]]:
    """Generator -> address -> words."""
    read = {}
    for name in COMMANDS:
        made = generate(name, sources)
        finish.finish(made)
        files = {file.relative_to(made).as_posix(): file.read_text(encoding="utf-8") for file in made.rglob("*.html")}
        moved = {f"{address}index.html" for address in MOVED}
        read[name] = {address: Words(html) for address, html in files.items() if address not in moved}
    return read


def test_sources_are_plain_markdown(sources):
    files = sorted(sources.folder.rglob("*.md"))
    assert {file.relative_to(sources.folder) for file in files} == {
        file.relative_to(PAGES) for file in PAGES.rglob("*.md") if "includes" not in file.parts
    }
    assert any(CALL.search(file.read_text()) for file in PAGES.glob("*.md"))
    found = {file.name: re.findall(r"\{\{.*|\{%.*|^:::.*", file.read_text(), re.MULTILINE) for file in files}
    assert {name: calls for name, calls in found.items() if calls} == {}
    assert not {"hooks", "docs_dir"} & set(sources.settings) and sources.settings["plugins"] == ["search"]


def test_the_same_words_whichever_generator_has_made_the_pages(pages):
    material, zensical = pages["material"], pages["zensical"]
    assert set(material) == set(zensical) and len(material) > 20
    for address, page in material.items():
        assert len(page.words) > 40, address
        assert page.words == zensical[address].words, address
        assert not CALL.search(" ".join(page.words)), address


def test_the_same_links_and_pictures_whichever_generator_has_made_the_pages(pages):
    for address, page in pages["material"].items():
        assert list(map(tidy, page.addresses)) == list(map(tidy, pages["zensical"][address].addresses)), address


def tidy(address: str) -> str:
    """Without the dots and slashes that a generator may write or omit where it means the same."""
    return posixpath.normpath(address)


def test_the_published_site_is_the_one_that_material_makes(pages, built_site):
    for address, page in pages["material"].items():
        published = Words((built_site / address).read_text(encoding="utf-8"))
        assert published.words == page.words, address


def test_what_a_page_names_and_nobody_makes_is_found():
    with pytest.raises(jinja2.UndefinedError, match="no_such_table"):
        fill.fill("{{ no_such_table() }}")
    assert fill.fill("{{ 'join/' | url }}") == "site:join/"


def test_words_are_those_of_article_and_title():
    page = Words("<title>A b</title>x<article>c <b>{{ d }}</b><script>e</script><i id=f></i></article>y")
    assert page.words == ["A", "b", "c", "{{", "d", "}}", "f"]
    assert CALL.search(" ".join(page.words))


def test_building_imports_no_generator():
    """What prepares and finishes the pages works without MkDocs."""
    own = list((PAGES / "builder").rglob("*.py"))
    assert own and not [
        path for path in own if re.search(r"^\s*(?:import|from) (?:mkdocs|zensical)", path.read_text(), re.M)
    ]
    assert all(importlib.util.find_spec(command[0]) for command in COMMANDS.values())
