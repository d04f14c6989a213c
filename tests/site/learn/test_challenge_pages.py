"""The figures: whole without scripts, moved by keys and pointer, the same digits as on CPython, shared by address."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from builder.learn.figures import answer_of, ends_of
from calculator import Setup, estimate
from calculator.figures.catalogue import FIGURES
from calculator.units import show_bytes
from tests.site.live.test_calculator_page import ASK_ALL
from tests.site.pages.test_every_page import ROOT, faults, open_all

pytestmark = pytest.mark.browser

PAGE_OF = {
    name: f"{file.relative_to(ROOT / 'site').with_suffix('')}/"
    for file in [*sorted((ROOT / "site" / "challenges").glob("*.md")), ROOT / "site" / "make-your-own-run.md"]
    for name in re.findall(r'figure\("(\w+)"\)', file.read_text(encoding="utf-8"))
}
PAGES = sorted(set(PAGE_OF.values()))
OWN_SETUP = Setup(model="gpt2-large", micro_batch_size=3, checkpointing=True, optimizer="lion")
OWN_STEP = estimate(OWN_SETUP)
MOST_BYTES = 300_000
"""Sent, compressed, before the reader touches anything."""


def figure(page, name: str):
    return page.locator(f'[data-figure="{name}"]')


def shows(page, name: str, values: dict) -> None:
    """Waits until a figure shows the answer to these values."""
    expect(figure(page, name).locator("[data-slot=caption]")).to_have_text(answer_of(name, values)["caption"])


def test_every_figure_stands_on_a_page():
    assert set(PAGE_OF) == set(FIGURES)


@pytest.mark.parametrize("address", PAGES)
def test_figures_are_whole_without_scripts(open_page, address):
    page = open_page(address, scripts=False)
    for name in (name for name, place in PAGE_OF.items() if place == address):
        here, answer = figure(page, name), answer_of(name, {})
        expect(here.locator("[data-slot=caption]")).to_have_text(answer["caption"])
        assert here.get_by_role("img").locator("svg").first.bounding_box()["height"] > 100
        here.locator("summary", has_text="as a table").click()
        cells = here.locator("tbody tr").evaluate_all(
            "rows => rows.map((row) => [...row.cells].map((c) => c.textContent))"
        )
        assert cells == answer["rows"]
        assert here.locator(".figure__source a").count() > 0
        expect(here.locator("form")).to_be_hidden()
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.locator("svg:visible").evaluate_all("all => all.some((one) => one.viewBox.baseVal.width === 340)")


def test_every_figure_answers_the_same_in_the_browser(open_page, server):
    """The drawings too; an import that the trimmed runtime lacks would end as `failed`."""
    asked = [
        ("figure", {"name": name, "values": values, "narrow": narrow})
        for name, one in FIGURES.items()
        for values in [*ends_of(one), {one.controls[0].name: "<b>"}]
        for narrow in (False, True)
    ]
    page = open_page(PAGES[0])
    runtime = json.loads(page.locator("[data-runtime]").get_attribute("data-runtime"))
    answers = page.evaluate(ASK_ALL, [server.url + "javascripts/python/worker.mjs", runtime, asked])
    for (_, request), computed in zip(asked, answers, strict=True):
        assert computed == answer_of(request["name"], request["values"], narrow=request["narrow"]), request


@pytest.mark.parametrize("address", PAGES)
def test_little_is_fetched_and_no_python_before_the_reader_shows_interest(open_page, server, built_site, address):
    page = open_page(address)
    page.wait_for_load_state("networkidle")
    paths = {urlsplit(path).path for path in server.requests}
    assert not [path for path in paths if path.startswith(("/runtime/", "/vendor/"))]
    files = [built_site / (path.lstrip("/") + ("index.html" if path.endswith("/") else "")) for path in paths]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files if file.is_file()) <= MOST_BYTES


def test_keys_move_a_figure_and_its_address_brings_it_back(open_page):
    page = open_page("challenges/communication/")
    slider = figure(page, "ring").get_by_role("slider", name="Step")
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    shows(page, "ring", {"step": "4"})
    page.get_by_label("Directly").check()
    shows(page, "ring", {"step": "4", "way": "direct"})
    figure(page, "ring").locator("summary", has_text="as a table").click()
    expect(figure(page, "ring").locator("tbody tr")).to_have_count(4)
    expect(figure(page, "ring").locator("tbody td").first).to_have_text("4 of 4")
    page.wait_for_url("**way=direct*")
    assert parse_qs(urlsplit(page.url).query) == {"ring.way": ["direct"]}
    figure(page, "ring").get_by_role("button", name="Copy a link").click()
    expect(figure(page, "ring").get_by_role("button", name="Link copied")).to_be_visible()
    page.goto(page.evaluate("navigator.clipboard.readText()"))
    shows(page, "ring", {"step": "2", "way": "direct"})
    figure(page, "ring").get_by_role("button", name="Start over").click()
    shows(page, "ring", {})
    page.wait_for_url(lambda url: "?" not in url)


def asked_by(page, name: str) -> dict:
    """The figure's values as its controls have them."""
    return page.evaluate(
        """name => Object.fromEntries([...document.querySelectorAll(`[data-figure="${name}"] [data-control]`)]
            .filter((one) => one.type !== "radio" || one.checked)
            .map(({ dataset: { control, stops }, value }) => [control, stops ? JSON.parse(stops)[value] : value]))""",
        name,
    )


def middle(handle) -> tuple[float, float]:
    box = handle.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_gradients_are_dragged_by_pointer_and_keys(open_page):
    page = open_page("challenges/security/")
    here = figure(page, "outliers")
    handle = here.get_by_role("slider", name="Hostile gradient 1")
    handle.scroll_into_view_if_needed()
    box = here.locator("svg:visible rect.shade").first.bounding_box()
    x, y = middle(handle)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 40, y - 40, steps=6)
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.25 * box["height"], steps=6)
    page.mouse.up()
    values = asked_by(page, "outliers")
    assert (float(values["x1"]), float(values["y1"])) == pytest.approx((5, 5), abs=0.15)
    shows(page, "outliers", values)
    assert middle(handle) == pytest.approx((box["x"] + 0.75 * box["width"], box["y"] + 0.25 * box["height"]), abs=2)
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        handle.press(key)
    moved = asked_by(page, "outliers")
    steps = [round(10 * (float(moved[name]) - float(values[name]))) for name in ("x1", "y1")]
    assert steps == [2, 1]
    shows(page, "outliers", moved)
    expect(handle).to_have_attribute("aria-valuetext", f"{moved['x1']}, {moved['y1']}")
    handle.press("Home")
    shows(page, "outliers", {**moved, "x1": "-10"})
    page.wait_for_url("**outliers.x1=-10*")
    page.reload()
    shows(page, "outliers", {**moved, "x1": "-10"})


def test_fingers_drag_without_scrolling_the_page(open_page):
    page = open_page("challenges/security/", width=360)
    handle = figure(page, "outliers").get_by_role("slider", name="Hostile gradient 2")
    handle.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    x, y = middle(handle)
    scrolled = page.evaluate("scrollY")
    touch = page.context.new_cdp_session(page)
    for kind, shift in (("touchStart", 0), ("touchMove", 20), ("touchMove", 60), ("touchEnd", None)):
        points = [] if shift is None else [{"x": x + shift, "y": y - shift}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    values = asked_by(page, "outliers")
    assert float(values["x2"]) > -6 and float(values["y2"]) > -7
    shows(page, "outliers", values)
    assert page.evaluate("scrollY") == scrolled


def test_hostile_addresses_get_a_sentence(open_page):
    page = open_page("challenges/communication/?ring.peers=1e9&ring.way=%3Cscript%3E&ring.step=x&other=1")
    shows(page, "ring", {"peers": "8"})
    note = figure(page, "ring").get_by_role("status")
    expect(note).to_contain_text("Peers: “1e9” is not from 2 to 8, so 8 is used.")
    expect(note).to_contain_text("“<script>” is not one of ring, direct")
    expect(figure(page, "ring").get_by_role("slider", name="Peers")).to_have_value("8")


@pytest.mark.parametrize("address", PAGES)
def test_accessible_after_use(open_page, address):
    page = open_page(address)
    for name in (name for name, place in PAGE_OF.items() if place == address):
        slider = figure(page, name).locator("input[type=range]").first
        slider.press("End")
        text = FIGURES[name].controls
        ends = {one.name: one for one in text}[slider.get_attribute("data-control")]
        last = ends.stops[-1] if hasattr(ends, "stops") else ends.high
        shows(page, name, {ends.name: ends.text(last)})
    open_all(page)
    assert faults(page, [(360, "slate")]) == []


def test_python_is_kept_across_pages(open_page, server):
    page = open_page("challenges/communication/")
    figure(page, "ring").get_by_role("slider", name="Step").press("ArrowRight")
    shows(page, "ring", {"step": "3"})
    fetched = [path for path in server.requests if path.startswith("/runtime/")]
    page.evaluate("window.swapped = true")
    page.locator(".md-tabs a", has_text="Calculator").evaluate("link => link.click()")
    page.wait_for_url("**/calculator/")
    page.get_by_label("Micro-batch").first.fill("2")
    expect(page.get_by_text("Computed in your browser")).to_be_visible()
    assert page.evaluate("window.swapped")
    assert [path for path in server.requests if path.startswith("/runtime/")] == fetched


def test_the_measured_streams_are_those_recorded(open_page):
    results = json.loads((ROOT / "benchmarks" / "results" / "data_stream.json").read_text())["results"]
    page = open_page("reference/performance/", scripts=False)
    rows = page.get_by_role("region", name="Measured streams").locator("tbody tr")
    assert rows.count() == len({one["metric"] for one in results})
    (first, *_) = [one for one in results if one["metric"].startswith("samples, shuffled")]
    shown = [float(re.sub(r"[^\d.]", "", cell)) for cell in rows.first.locator("td").all_inner_texts()]
    peers = [one["peer"] for one in results if one["metric"] == first["metric"]]
    assert shown == pytest.approx([first["ours"], *peers], rel=0.005)


def test_the_calculators_link_shows_the_readers_own_step(open_page):
    page = open_page("calculator/?model=gpt2-large&micro_batch_size=3&checkpointing=true&optimizer=lion")
    total = page.locator('[data-slot="total"]')
    expect(total).to_have_text(show_bytes(OWN_STEP.gpu.total))
    page.get_by_role("link", name="This step as a curve").click()
    page.wait_for_url("**/challenges/memory/**")
    caption = figure(page, "step").locator("[data-slot=caption]")
    expect(caption).to_contain_text(f"at most {show_bytes(OWN_STEP.gpu.total)}")
    expect(figure(page, "step").get_by_label("Model", exact=True)).to_be_hidden()
    figure(page, "step").get_by_role("group", name="Checkpointing").get_by_label("off").check()
    without = replace(OWN_SETUP, checkpointing=False)
    expect(caption).to_contain_text(f"at most {show_bytes(estimate(without).gpu.total)}")
    figure(page, "step").get_by_role("button", name="Start over").click()
    shows(page, "step", {})
    expect(figure(page, "step").get_by_label("Model", exact=True)).to_be_visible()
