"""The calculator page: in the HTML, in the browser's Python and on CPython stand the same digits."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from builder.answer import answer, show_bytes
from builder.calculator import DEFAULT, exercise_setups
from test_every_page import ROOT, violations

pytestmark = pytest.mark.browser

ASK_ALL = """async ([worker, runtime, setups]) => {
    const python = new Worker(worker, { type: "module", name: runtime });
    const answers = [];
    for (const setup of setups) {
        const next = new Promise((resolve) => (python.onmessage = ({ data }) => resolve(data)));
        python.postMessage({ id: 1, setup: JSON.stringify(setup) });
        const data = await next;
        answers.push(data.failed ? { failed: data.failed } : JSON.parse(data.answer));
    }
    python.terminate();
    return answers;
}"""


def on_cpython(setup: dict) -> dict:
    """What the page shows for a setup, computed here."""
    return json.loads(answer(json.dumps(setup)))


def total(page):
    """The big number."""
    return page.locator("[data-slot=total]")


def message(page):
    """The one live region."""
    return page.get_by_role("status")


@pytest.mark.parametrize(
    "count, shown",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1.0 KiB"),
        (1 << 30, "1.00 GiB"),
        (129 << 23, "1.01 GiB"),
        (5 << 40, "5.00 TiB"),
    ],
)
def test_bytes_are_rounded_half_up(count, shown):
    assert show_bytes(count) == shown


def test_layers_that_hold_the_same_are_one_row():
    rows = on_cpython({"model": "dalle-2021"})["timeline"]
    assert len(rows) < 40
    assert any(re.fullmatch(r"layers \d+ to \d+", row["place"]) for row in rows)
    assert [row["percent"] for row in rows if row["peak"]] == [100.0]


def test_default_answer_stands_in_the_html_without_scripts(open_page):
    page = open_page("calculator/", scripts=False)
    expected = on_cpython(DEFAULT)
    expect(total(page)).to_have_text(expected["total"])
    expect(page.locator("[data-slot=command]")).to_have_text(expected["command"])
    assert page.locator("[data-slot=gpu] td:nth-child(2)").all_inner_texts() == [
        row["bytes"] for row in expected["gpu"]
    ]


def test_every_model_and_choice_gives_the_same_in_the_browser(open_page, server):
    """Guards the trimmed runtime too: an import that it lacks would end as `failed`."""
    hostile = [("micro_batch_size", -1), ("sequence_length", 10**15), ("optimizer", "magic"), ("model", 3), ("x", None)]
    setups = [*exercise_setups(), *({**DEFAULT, key: value} for key, value in hostile)]
    setups += [{**DEFAULT, "micro_batch_size": 7, "sequence_length": 333}, "no object", []]
    page = open_page("calculator/")
    runtime = page.evaluate("new URL(document.querySelector('[data-runtime]').dataset.runtime, location.href).href")
    answers = page.evaluate(ASK_ALL, [server.url + "javascripts/calculator-worker.mjs", runtime, setups])
    for setup, computed in zip(setups, answers, strict=True):
        assert computed == on_cpython(setup), setup


def test_nothing_is_fetched_before_the_reader_shows_interest(open_page, server):
    page = open_page("calculator/")
    page.wait_for_load_state("networkidle")
    assert not [path for path in server.requests if path.startswith(("/runtime/", "/vendor/"))]
    page.get_by_label("Micro-batch").focus()
    expect(message(page)).to_contain_text("Computed in your browser", timeout=60_000)
    expect(total(page)).to_have_text(on_cpython(DEFAULT)["total"])


def test_a_change_is_computed_and_kept_in_the_address(open_page):
    page = open_page("calculator/")
    page.get_by_label("Model", exact=True).select_option("gpt2")
    page.get_by_label("Micro-batch").fill("4")
    expected = on_cpython({**DEFAULT, "model": "gpt2", "micro_batch_size": 4})
    expect(total(page)).to_have_text(expected["total"], timeout=60_000)
    assert page.locator("[data-slot=gpu] td:nth-child(2)").all_inner_texts() == [
        row["bytes"] for row in expected["gpu"]
    ]
    assert page.url.endswith("?model=gpt2&micro_batch_size=4")
    page.reload()
    expect(total(page)).to_have_text(expected["total"], timeout=60_000)
    expect(page.get_by_label("Micro-batch")).to_have_value("4")
    page.get_by_role("button", name="Start over").click()
    expect(total(page)).to_have_text(on_cpython(DEFAULT)["total"])
    assert page.url.endswith("calculator/")
    assert violations(page) == []


def test_models_take_only_what_applies_to_them(open_page):
    page = open_page("calculator/")
    for model in ("bert-base", "t5-small", "gpt3-175b", "gpt-j-6b", "dalle-12b", "dalle-2021"):
        page.get_by_label("Model", exact=True).select_option(model)
        setup = {**DEFAULT, "model": model}
        if model == "dalle-2021":
            del setup["checkpointing"]
        expect(page.locator("[data-slot=command]")).to_have_text(on_cpython(setup)["command"], timeout=60_000)
        expect(total(page)).to_have_text(on_cpython(setup)["total"])
        expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "shown")
        expect(page.get_by_label("Target length")).to_be_visible(visible=model == "t5-small")
    expect(page.get_by_label("Gradient checkpointing")).to_be_disabled()
    expect(page.get_by_label("Gradient checkpointing")).to_have_accessible_description(re.compile("nothing is left"))
    page.get_by_text("More choices").click()
    page.get_by_label("Reversible layers").select_option("false")
    expect(page.get_by_label("Gradient checkpointing")).to_be_enabled()
    expected = on_cpython({**DEFAULT, "model": "dalle-2021", "reversible": False})
    expect(total(page)).to_have_text(expected["total"])
    page.get_by_label("Offload the optimizer").check()
    page.get_by_label("Delta rule").check()
    offloaded = {**DEFAULT, "model": "dalle-2021", "reversible": False, "offload_optimizer": True, "delta_rule": True}
    expect(page.locator("[data-slot=host-total]")).to_have_text(on_cpython(offloaded)["host_total"])
    expect(page.locator("[data-slot=command]")).to_contain_text("--no-reversible")


@pytest.mark.parametrize(
    "query, said",
    [
        ("micro_batch_size=1e999", "micro_batch_size"),
        ("model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "model"),
    ],
)
def test_hostile_addresses_get_a_sentence(open_page, query, said):
    page = open_page(f"calculator/?{query}")
    page.on("dialog", lambda dialog: pytest.fail("a script from the address ran"))
    expect(page.locator("[data-part=calculator]")).to_have_attribute("data-state", "refused", timeout=60_000)
    expect(message(page)).to_contain_text(said)
    assert not page.locator("img[src=x]").count()


def test_the_worker_outlives_the_page(open_page, server):
    """On the origin that the site was built for, the theme swaps pages and Python stays."""
    page = open_page("calculator/?model=gpt2")
    expect(message(page)).to_contain_text("Computed in your browser", timeout=60_000)
    page.get_by_role("link", name="Join", exact=True).first.click()
    page.wait_for_url(server.url + "join/")
    expect(page.get_by_role("heading", name="How to stop")).to_be_visible()
    fetched = len([path for path in server.requests if path.startswith("/runtime/")])
    page.get_by_role("link", name="Calculator", exact=True).first.click()
    page.wait_for_url(server.url + "calculator/")
    page.get_by_label("Micro-batch").fill("2")
    expect(total(page)).to_have_text(on_cpython({**DEFAULT, "micro_batch_size": 2})["total"], timeout=10_000)
    assert len([path for path in server.requests if path.startswith("/runtime/")]) == fetched


def test_by_keyboard_alone_from_the_form_to_a_copied_command(open_page):
    page = open_page("calculator/")
    page.get_by_label("Micro-batch").focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("3")
    expect(total(page)).to_have_text(on_cpython({**DEFAULT, "micro_batch_size": 3})["total"], timeout=60_000)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Copy":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == on_cpython({**DEFAULT, "micro_batch_size": 3})["command"]


def test_total_stays_in_sight_on_a_phone(open_page):
    page = open_page("calculator/?micro_batch_size=2", width=360, dark=True)
    expect(message(page)).to_contain_text("Computed in your browser", timeout=60_000)
    page.get_by_label("Layer groups").scroll_into_view_if_needed()
    page.get_by_label("Layer groups").focus()
    expect(total(page)).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_shown_command_gives_the_shown_bytes():
    """The page's command, run as it stands, and the page's total."""
    for setup in (DEFAULT, {"model": "dalle-2021", "offload_optimizer": True, "optimizer": "lamb8bit"}):
        shown = on_cpython(setup)
        words = shlex.split(shown["command"])
        assert words[:3] == ["python", "-m", "calculator"]
        ended = subprocess.run(
            [sys.executable, *words[1:], "--json"], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        assert show_bytes(json.loads(ended.stdout)["gpu"]["total"]) == shown["total"]


def test_bars_are_drawn_to_scale(open_page):
    page = open_page("calculator/")
    shown = on_cpython(DEFAULT)
    widths = (
        page.locator(".bar")
        .first.locator("span")
        .evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
    )
    whole = page.locator(".bar").first.bounding_box()["width"]
    for width, part in zip(widths, shown["bars"][0]["parts"], strict=True):
        assert width == pytest.approx(whole * part["percent"] / 100, abs=1.5)
    assert re.fullmatch(r"This setup: .* GiB; Plain: .* GiB", shown["bars_label"])
