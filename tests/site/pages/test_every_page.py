"""What holds for every page: small, still, accessible, no wider than a phone, and silent towards other origins."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import expect

from builder.steps.prepare import MOVED

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
SETTLED_MS, SETTLED_WITHOUT_CHARTS_MS = 400, 100
"""Charts have been redrawn by then; where there are none, only styles have to follow."""

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""Rules that the palette matters to."""

LARGEST_PAGE_BYTES = 300_000
"""Compressed, before readers touch anything."""

PAGES = [
    "",
    "calculator/",
    "dashboard/",
    "join/",
    "challenges/",
    "challenges/communication/",
    "challenges/uneven-devices/",
    "challenges/memory/",
    "challenges/data-streaming/",
    "challenges/security/",
    "challenges/local-updates/",
    "challenges/error-feedback/",
    "challenges/sharding/",
    "challenges/trust/",
    "train-together/",
    "exercises/",
    "tutorial/",
    "taking-part/",
    "volunteer/",
    "accuracy/",
    "make-your-own-run/",
    "operate/",
    "recipe/",
    "results/",
    "reference/security/",
    "glossary/",
    "changelog/",
    "reference/commands/",
    "reference/data/",
    "reference/step-by-step/",
    "reference/servers/",
    "reference/members/",
    "reference/messages/",
    "reference/study/",
    "reference/api/",
    "reference/performance/",
    "reference/how-we-know/",
    "reference/hivemind/",
    "404.html",
]


TO_THE_TOP = """() => {
    for (const scrolled of [window, ...document.querySelectorAll(".calculator__form")]) {
        scrolled.scrollTo({ top: 0, behavior: "instant" });
    }
}"""

# Far from the window the browser keeps the place that a part had when it last was near, and axe-core measures what
# stands in it now: a table that has been unfolded since would lie over what follows.
LAY_OUT_ALL = """() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync("* { content-visibility: visible !important }");
    document.adoptedStyleSheets.push(sheet);
}"""


def violations(page, *, rules: Sequence[str] = RULES, within: Sequence[str] = ()) -> list[str]:
    """Rules of axe-core that the page breaks, and those that axe-core could not decide, with the elements.

    The page and the calculator's form are scrolled to their top: there nothing lies under the bars that stay in sight.
    With `within`, only these elements are looked at, as they stand: what opens over others hides them.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
        page.evaluate(LAY_OUT_ALL)
    if not within:
        page.evaluate(TO_THE_TOP)
    options = {"runOnly": list(rules), "resultTypes": ["violations", "incomplete"]}
    look = "([options, within]) => axe.run(within.length ? { include: within } : document, options)"
    found = page.evaluate(look, [options, list(within)])
    return [
        f"{kind}, {rule['id']}: {node['html'][:160]}"
        for kind in ("violations", "incomplete")
        for rule in found[kind]
        for node in rule["nodes"]
    ]


def test_every_built_page_is_tested(built_site):
    built = {file.relative_to(built_site).as_posix().removesuffix("index.html") for file in built_site.rglob("*.html")}
    assert built == {*PAGES, *MOVED}


@pytest.mark.smoke
@pytest.mark.parametrize("address", PAGES)
def test_small_and_still(open_page, built_site, address):
    page = open_page(address)
    sizes = sent_bytes(page, built_site, address)
    assert len(sizes) >= 4, "nothing was seen"
    assert sum(sizes.values()) <= LARGEST_PAGE_BYTES, sizes
    page.wait_for_load_state("networkidle")
    assert page.evaluate(MOVING) == [], "for readers who ask for no motion, nothing moves"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(MOVING), "nothing ever moves: the test sees nothing"


@pytest.mark.parametrize("address", PAGES)
def test_accessible_and_not_too_wide(open_page, address):
    page = open_page(address)
    page.wait_for_load_state("networkidle")
    assert faults(page) == []


def sent_bytes(page, built_site: Path, address: str) -> dict[str, int]:
    """File -> compressed size of all that was fetched until the page was loaded; what is needed later comes later."""
    fetched = page.evaluate(
        """() => performance.getEntriesByType("resource")
            .filter((one) => one.responseEnd <= performance.getEntriesByType("navigation")[0].loadEventStart)
            .map((one) => new URL(one.name).pathname)"""
    )
    files = [built_site / path.lstrip("/") for path in {*fetched, f"/{address}"}]
    files = [path / "index.html" if path.is_dir() else path for path in files]
    return {path.name: len(gzip.compress(path.read_bytes())) for path in files if path.is_file()}


def use_calculator(page) -> None:
    """Everything is opened, set, pinned and drawn."""
    page.get_by_label("Micro-batch").first.fill("4")
    page.get_by_label("GPU to fit").select_option("Another card …")
    page.get_by_label("Offload the optimizer").check()
    page.get_by_role("button", name="Pin this setup").click()
    open_all(page)
    page.locator(".sweep .chart").scroll_into_view_if_needed()
    expect(page.get_by_text("Computed in your browser")).to_be_visible()
    expect(page.locator(".sweep .chart")).to_have_attribute("data-drawn", "true")
    expect(page.get_by_role("region", name="Pinned setups")).to_be_visible()


def use_dashboard(page) -> None:
    """All tables and all pictures are shown, all charts drawn."""
    open_all(page)
    page.locator("[data-slot=pictures-all]").click()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    for chart in page.locator(".chart").all():
        expect(chart).to_have_attribute("data-drawn", "true")


def use_join(page) -> None:
    """A wrong address, and a choice that cannot be; all is unfolded. Of a run's choices: test_join_page.py."""
    page.get_by_label("Another run").fill("no address")
    page.get_by_role("button", name="Show this run").click()
    open_all(page)
    page.get_by_role("radio", name="Windows without WSL").check()


@pytest.mark.parametrize("width, dark", [(1280, False), (360, True)])
def test_accessible_while_something_lies_over_the_page(open_page, width, dark):
    """The list of models, and search. Of what they cover axe-core cannot know the colours."""
    page = open_page("calculator/", width=width, dark=dark)
    page.wait_for_load_state("networkidle")
    page.get_by_role("combobox", name="Model").click()
    expect(page.get_by_text("Computed in your browser")).to_be_visible()
    assert faults_beside_what_is_covered(page, "[role=listbox]") == []
    page.keyboard.press("Escape")
    page.locator("main h1").click()
    page.keyboard.press("s")
    page.keyboard.type("memory")
    expect(page.locator(".md-search-result__item").first).to_be_visible()
    page.wait_for_timeout(SETTLED_MS)
    assert faults_beside_what_is_covered(page, ".md-search__inner") == []


def faults_beside_what_is_covered(page, on_top: str) -> list[str]:
    """Of the whole page what is decided, and all of what lies on top."""
    expect(page.locator(on_top).first).to_be_visible()
    found = violations(page, within=["html"])
    decided = [fault for fault in found if not fault.startswith("incomplete, color-contrast")]
    return decided + violations(page, within=[on_top])


def use_peers(page) -> None:
    """Three peers train, and one of them is dropped."""
    page.get_by_role("button", name="Train").click()
    expect(page.locator("canvas")).to_be_visible()
    page.get_by_role("button", name="Drop Alan").click()
    expect(page.locator("[data-slot=state]")).to_have_text(re.compile("^Done"), timeout=240_000)


def open_all(page) -> None:
    """Unfolds all that is folded."""
    page.locator("main details").evaluate_all("all => all.forEach((one) => (one.open = true))")


USES = [
    ("calculator/", use_calculator),
    ("dashboard/", use_dashboard),
    ("join/", use_join),
    ("train-together/", use_peers),
]


@pytest.mark.parametrize("address, use", USES)
def test_accessible_after_use(open_page, address, use):
    page = open_page(address)
    page.wait_for_load_state("networkidle")
    use(page)
    assert faults(page) == []


LOOKS = ((1280, "default"), (1280, "slate"), (360, "slate"), (360, "default"))


def faults(page, looks: Sequence[tuple[int, str]] = LOOKS) -> list[str]:
    """At both widths in both palettes; the palette is switched where the page stands, as its button does.

    At a width's second palette only the rules on colours are asked again.
    """
    found, widths = [], set()
    settled = SETTLED_MS if page.locator(".chart").count() else SETTLED_WITHOUT_CHARTS_MS
    for width, palette in looks:
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("palette => document.body.dataset.mdColorScheme = palette", palette)
        page.wait_for_timeout(settled)
        rules = OF_COLOURS if width in widths else RULES
        widths.add(width)
        found += [f"{width} px, {palette}: {fault}" for fault in violations(page, rules=rules)]
        excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if excess > 0:
            found.append(f"{width} px, {palette}: {excess} px wider than the window")
    return found


MOVING = """() => [...document.querySelectorAll("*")].flatMap((element) =>
    [null, "::before", "::after"].flatMap((pseudo) => {
        const style = getComputedStyle(element, pseudo);
        const longest = (list) => Math.max(...list.split(",").map(parseFloat));
        const moves = longest(style.transitionDuration) > 0.001 || longest(style.animationDuration) > 0.001
            || style.animationIterationCount === "infinite" || style.scrollBehavior === "smooth";
        return moves ? [`${element.tagName}.${element.className}${pseudo ?? ""}`] : [];
    }))"""


def test_titles_name_the_page_once(open_page):
    assert open_page("").title() == "Training Transformers Together"
    assert open_page("calculator/").title() == "Memory calculator - Training Transformers Together"


def test_lost_readers_are_helped(open_page, server):
    page = open_page("no/such/page/")
    page.complaints.clear()  # The browser itself reports the 404 that is asked for here.
    page.get_by_role("main").get_by_role("link", name="Calculator", exact=True).click()
    page.wait_for_url(server.url + "calculator/")
