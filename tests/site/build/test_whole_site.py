"""What belongs to the site as a whole: feed, card for links, glossary and print."""

from __future__ import annotations

import json
import re
import struct
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

from builder.learn import glossary
from builder.reference import changes
from builder.steps.prepare import MOVED
from tests.support.programs import ROOT
from tests.site.pages.test_every_page import violations

pytestmark = pytest.mark.browser


def test_the_feed_is_rss_and_names_releases_and_run(built_site):
    root = ElementTree.parse(built_site / "feed.xml").getroot()
    assert (root.tag, root.get("version")) == ("rss", "2.0")
    (channel,) = root
    assert all(channel.findtext(name) for name in ("title", "link", "description"))
    items = channel.findall("item")
    run = json.loads((ROOT / "site" / "live" / "run.json").read_text())
    titles = [item.findtext("title") for item in items]
    assert titles == [*changes.releases(), f"A run was recorded: {run['title']}"]
    for item in items:
        link = urlsplit(item.findtext("link"))
        page = built_site / link.path.lstrip("/") / "index.html"
        assert page.is_file() and (not link.fragment or f'id="{link.fragment}"' in page.read_text())
        assert len(item.findtext("description")) > 30
    assert parsedate_to_datetime(items[-1].findtext("pubDate")).year >= 2026


def test_every_page_names_feed_and_card(built_site):
    card = (built_site / "images" / "card.png").read_bytes()
    assert card.startswith(b"\x89PNG") and struct.unpack(">II", card[16:24]) == (1200, 630)
    titles = set()
    for file in set(built_site.rglob("*.html")) - {built_site / address / "index.html" for address in MOVED}:
        text = file.read_text(encoding="utf-8")
        (feed,) = re.findall(r'type="application/rss\+xml"[^>]*href="([^"]+)"', text)
        assert feed.startswith("/") or (file.parent / feed).resolve() == (built_site / "feed.xml").resolve(), file
        properties = dict(re.findall(r'<meta property="(og:[^"]+)" content="([^"]*)"', text))
        assert properties["og:image"].endswith("/images/card.png")
        assert properties["og:image"].startswith("http")
        assert properties["og:title"] and properties["og:description"]
        titles.add(properties["og:title"])
    assert len(titles) > 10


def test_words_of_the_glossary_explain_themselves(open_page):
    """Without scripts they are links; with them the sentence opens in place, by keyboard, pointer and touch."""
    page = open_page("taking-part/", scripts=False)
    words = page.locator("main a.term")
    shown = words.all_inner_texts()
    assert len(shown) == len(set(shown)) > 5, "each word is marked where it comes first, and only there"
    for word in words.all():
        assert word.get_attribute("title") == glossary.terms()[word.inner_text()]
    words.first.click()
    page.wait_for_url(f"**/glossary/#{glossary.anchor(shown[0])}")
    assert page.locator("main dt").all_inner_texts() == sorted(glossary.terms(), key=str.lower)
    expect(page.locator("#epoch")).to_be_visible()


def test_words_open_by_keyboard_and_pointer(open_page):
    page = open_page("challenges/memory/")
    word, tip = page.locator("main a.term").first, page.get_by_role("tooltip")
    meaning = glossary.terms()[word.inner_text()]
    page.keyboard.press("Tab")
    word.focus()
    expect(tip).to_have_text(meaning)
    assert (
        word.evaluate("word => document.getElementById(word.getAttribute('aria-describedby')).textContent") == meaning
    )
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    word.blur()
    word.hover()
    expect(tip).to_have_text(meaning)
    tip.hover()
    expect(tip).to_be_visible()
    assert violations(page, within=["a.term", "[role=tooltip]"]) == []
    page.mouse.move(5, 700)
    expect(tip).to_be_hidden()


def test_words_open_by_touch_and_lead_on_when_tapped_again(chromium, server):
    context = chromium.new_context(has_touch=True, is_mobile=True, viewport={"width": 360, "height": 700})
    page = context.new_page()
    page.goto(server.url + "challenges/memory/")
    page.wait_for_load_state("networkidle")
    word = page.locator("main a.term").first
    meaning, name = glossary.terms()[word.inner_text()], word.inner_text()
    word.tap()
    expect(page.get_by_role("tooltip")).to_have_text(meaning)
    box = page.get_by_role("tooltip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 360
    page.locator("main h1").tap()
    expect(page.get_by_role("tooltip")).to_be_hidden()
    word.tap()
    word.tap()
    page.wait_for_url(f"**/glossary/#{glossary.anchor(name)}")
    context.close()


def test_pages_print_without_what_only_a_screen_can_use(open_page):
    page = open_page("join/")
    expect(page.get_by_role("radio", name="Linux")).to_be_visible()
    page.emulate_media(media="print")
    expect(page.locator(".chooser")).to_be_hidden()
    expect(page.locator(".md-header")).to_be_hidden()
    expect(page.locator("[data-slot=command]")).to_be_visible()






