"""What holds for every page: accessible, no wider than a phone, and silent towards other origins."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

PAGES = [
    "",
    "calculator/",
    "dashboard/",
    "join/",
    "challenges/",
    "accuracy/",
    "make-your-own-run/",
    "recipe/",
    "about-2021/",
    "404.html",
]


def violations(page, only: str = "") -> list[str]:
    """Rules of axe-core that the page breaks, with the elements; `only` names the one rule to try."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    options = {"runOnly": [only] if only else RULES, "resultTypes": ["violations"]}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [f"{rule['id']}: {node['html'][:160]}" for rule in found["violations"] for node in rule["nodes"]]


def test_every_built_page_is_tested(built_site):
    built = {file.relative_to(built_site).as_posix().removesuffix("index.html") for file in built_site.rglob("*.html")}
    assert built == set(PAGES)


@pytest.mark.parametrize("address", PAGES)
def test_accessible_and_not_too_wide(open_page, address):
    """At both widths in both palettes; the palette is switched where the page stands, as its button does."""
    faults = []
    page = open_page(address)
    page.wait_for_load_state("networkidle")
    for width, palette, only in [
        (1280, "default", ""),
        (1280, "slate", "color-contrast"),
        (360, "slate", ""),
        (360, "default", "color-contrast"),
    ]:
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("palette => document.body.dataset.mdColorScheme = palette", palette)
        faults += [f"{width} px, {palette}: {fault}" for fault in violations(page, only)]
        excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if excess > 0:
            faults.append(f"{width} px, {palette}: {excess} px wider than the window")
    assert faults == []


def test_lost_readers_are_helped(open_page, server):
    page = open_page("no/such/page/")
    page.complaints.clear()  # The browser itself reports the 404 that is asked for here.
    page.get_by_role("main").get_by_role("link", name="Calculator").click()
    page.wait_for_url(server.url + "calculator/")
