"""The menu and headings are short, each path leads on in the stated time, and former addresses still lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect

from builder.folders import PAGES, ROOT
from builder.markup.paths import PATHS, address_of
from builder.steps.prepare import MOVED

MOST_WORDS = 4
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
WORDS_A_MINUTE = (200, 275)
"""Readers of non-fiction, slow and fast (Brysbaert 2019)."""


def names(menu: list[dict]) -> list[str]:
    found = []
    for entry in menu:
        ((name, content),) = entry.items()
        found += [name, *(names(content) if isinstance(content, list) else ())]
    return found


def headings(source: Path) -> list[str]:
    """Titles and headings that stand in a source; those that a call makes of data are not read."""
    text = re.sub(r"^```.*?^```", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+?)(?: \{ #[\w-]+ \})?$|^title: (.+)$", text, re.MULTILINE)
    marked = re.findall(r"<h[1-6][^>]*>(.*?)</h[1-6]>", text)
    return [one or other for one, other in found] + [re.sub(r"<[^>]+>|\{\{.*?\}\}", "", one) for one in marked]


def test_menu_and_headings_have_few_words():
    sources = [*PAGES.rglob("*.md"), *PAGES.rglob("*.html")]
    found = [(source.name, heading) for source in sources for heading in headings(source)]
    assert len(found) > 150, "the test sees few headings"
    found += [("menu", name) for name in names(NAV)]
    assert [one for one in found if len(one[1].replace("&nbsp;", " ").split()) > MOST_WORDS] == []


@pytest.mark.browser
@pytest.mark.parametrize("name", PATHS)
def test_a_path_stands_where_it_begins_and_says_how_long_it_takes(open_page, server, name):
    page = open_page(address_of(PATHS[name][0]), scripts=False)
    path = page.get_by_role("navigation", name=f"The {name}’s path")
    links = path.get_by_role("link").evaluate_all("all => all.map((one) => one.href)")
    assert links == [server.url + address_of(source) for source in PATHS[name]]
    total, *minutes = map(int, re.findall(r"(\d+)\u00a0min", path.text_content()))
    assert total == sum(minutes)
    for source, told in zip(PATHS[name], minutes, strict=True):
        words = len((PAGES / source).read_text(encoding="utf-8").split())
        slow, fast = (words / pace for pace in WORDS_A_MINUTE)
        assert max(1, round(fast)) <= told <= max(1, round(slow)), source


@pytest.mark.browser
@pytest.mark.parametrize("old, new", MOVED.items())
def test_a_former_address_leads_to_the_new_one(open_page, server, old, new):
    page = open_page(f"{old}#people")
    expect(page).to_have_url(f"{server.url}{new}#people")
    expect(page.locator("#people")).to_be_visible()
