"""A volunteer's page and the leaderboards of periods, as the monitor's own application serves them to a browser."""

from __future__ import annotations

import json
import time

import pytest
from playwright.sync_api import expect

from tests.site.pages.test_every_page import violations
from tests.support.serving import serving
from tests.training.publish.history.test_credit import NAMES, Swarm
from training.publish.live.live import create_app, store_run
from training.recipe import load_recipe

pytestmark = pytest.mark.browser

BOB = "<i>bob</i>"


@pytest.fixture
def swarm(tmp_path):
    """Ada and Bob averaged 40 days ago, and for ten minutes now; Grace missed two epochs, for two reasons."""
    run = load_recipe("demo")
    swarm = Swarm(tmp_path, recipe_digest=run.digest)
    swarm.clock.now = time.time() - 40 * 86400 - 600
    store_run(swarm.history, run, "", initial_peers=[], join_command="", parameters=1)
    for name, own in (("ada", None), (BOB, NAMES["alan"]), ("grace", None)):
        swarm.say(name, 0, **({"peer_id": own} if own else {}))
    swarm.observe()
    for epoch in range(1, 12):
        swarm.clock.now += 40 * 86400 if epoch == 2 else 60
        ada, bob = (5000, 1) if epoch == 1 else (10, 30)
        swarm.say("ada", epoch, ada, seen={"alan": bob})
        swarm.say(BOB, epoch, bob, seen={"ada": ada}, peer_id=NAMES["alan"])
        if epoch in (4, 5):
            swarm.say("grace", epoch, missed="late" if epoch == 4 else "paused")
        swarm.observe()
    yield swarm
    swarm.history.close()


@pytest.fixture
def monitor(swarm, built_site, tmp_path):
    with serving(create_app(swarm.history, pictures=tmp_path, site=built_site, clock=swarm.clock)) as url:
        yield url


@pytest.fixture
def look(chromium):
    """Opens an address of the monitor; no page may say an error."""
    contexts, errors = [], []

    def open_at(url, *, width=1280, dark=False):
        scheme = "dark" if dark else "light"
        looks = {"color_scheme": scheme, "reduced_motion": "reduce", "service_workers": "block"}
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **looks))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert errors == []


def test_the_leaderboard_of_a_period_leads_to_each_volunteers_page(look, monitor):
    page = look(f"{monitor}/dashboard/")
    board = page.locator("[data-slot=board]")
    expect(board.get_by_role("row")).to_have_count(3)
    expect(board.get_by_role("rowheader")).to_have_text(["ada", BOB, "grace"])
    page.get_by_role("button", name="24 hours").click()
    expect(board.get_by_role("rowheader")).to_have_text([BOB, "ada"])
    expect(page.get_by_role("button", name="24 hours")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-slot=contributors]")).to_contain_text("10 min")
    board.get_by_role("link", name=BOB).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(BOB)
    expect(page.locator("[data-slot=samples]")).to_have_text("301")
    expect(page.locator("[data-slot=periods] tr")).to_have_count(3)
    expect(page.locator("[data-slot=periods] tr").first).to_contain_text("300")
    picture = page.locator("[data-slot=picture]")
    page.wait_for_function("picture => picture.complete && picture.naturalWidth === 1200", arg=picture.element_handle())
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    assert download.value.suggested_filename == "_i_bob__i_.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    told = page.request.get(page.locator("[data-slot=json]").get_attribute("href"))
    assert json.loads(told.body())["samples"] == 301


def test_missed_epochs_have_their_reasons(look, swarm, monitor):
    (grace,) = [one["page"] for one in swarm.history.leaderboard() if one["name"] == "grace"]
    page = look(f"{monitor}/volunteer/?id={grace}")
    expect(page.get_by_role("heading", level=1)).to_have_text("grace")
    expect(page.locator("[data-slot=missed] tr")).to_have_count(2)
    expect(page.locator("[data-slot=missed]")).to_contain_text("late")
    expect(page.locator("[data-slot=recent] tr").first).to_contain_text("0: paused")


@pytest.mark.parametrize("address", ["volunteer/", "volunteer/?id=x", "volunteer/?id=0123456789abcdef"])
def test_an_unknown_volunteer_is_said_to_be_one(open_page, address):
    page = open_page(address)
    page.expected_complaint = "404"
    expect(page.locator("[data-slot=told]")).to_contain_text("no such volunteer" if "01" in address else "Each name on")
    expect(page.locator("[data-slot=facts]")).to_be_hidden()
    expect(page.get_by_role("heading", name="Why epochs are missed")).to_be_visible()


@pytest.mark.parametrize("width, dark", [(1280, False), (360, True)])
def test_accessible(look, swarm, monitor, width, dark):
    (ada,) = [one["page"] for one in swarm.history.leaderboard() if one["name"] == "ada"]
    page = look(f"{monitor}/volunteer/?id={ada}", width=width, dark=dark)
    expect(page.locator("[data-slot=samples]")).to_have_text("5\u202f100")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
