"""One site shows many runs: those of its list, and any monitor's that a reader names."""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading

import pytest
from playwright.sync_api import expect

from builder.join.choices import DEMOS, JOIN, PROGRAM, RUN
from site_server import SiteServer
from tests.site.live.test_dashboard_page import PROMPTS, live_run
from tests.site.live.test_run_states import Monitor, all_at, finished, shown_complete
from tests.site.live.test_trainers_run import EPOCHS
from tests.site.pages.test_every_page import violations
from tests.support.ports import free_port
from tests.support.programs import run_program
from tests.support.random_shards import write_shards
from tests.training.roles.test_serve import Served
from training.publish.history.history import HistoryReader
from training.publish.live.live import export
from training.recipe import load_recipe

pytestmark = pytest.mark.browser


@pytest.fixture
def page(chromium, server):
    """A page that may ask other origins, as readers' do. `page.asked` has the addresses, `page.errors` all errors."""
    context = chromium.new_context(service_workers="block", reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.asked, page.errors = set(), []
    page.on("request", lambda request: page.asked.add(request.url))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: (page.errors.append(dialog.message), dialog.dismiss()))
    yield page
    context.close()


@pytest.fixture
def monitor(tmp_path):
    """A monitor that serves no site, with a run at its 12th epoch."""
    monitor = Monitor(tmp_path / "monitor", None)
    monitor.observe(all_at(EPOCHS))
    yield monitor
    monitor.close()


@pytest.fixture
def stranger(built_site):
    """A server of somebody else, who lets all sites read what it says."""
    stranger = SiteServer(built_site)
    stranger.headers = {"Access-Control-Allow-Origin": "*"}
    stranger.live = live_run(epochs=20)
    yield stranger
    stranger.close()


def set_list(server, *entries: dict[str, str]) -> None:
    server.files["/runs.json"] = json.dumps(entries).encode()


def line_of(page, text):
    """The line of the list that says a text, such as the host of a run."""
    return page.get_by_role("region", name="Runs").get_by_role("listitem").filter(has_text=text)


def follow(page, name) -> None:
    """Clicks a link to another page, once it names the run."""
    link = page.get_by_role("link", name=name, exact=True).first
    expect(link).to_have_attribute("href", re.compile(r"[?&]run="))
    link.click()


def joined(url: str) -> str:
    """The beginning of the command that joins the run of a monitor."""
    return JOIN.replace(RUN, url)


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_a_reader_finds_two_served_runs_and_joins_one(programs, page, server, tmp_path):
    served = {}
    for recipe in ("demo", "stories"):
        (tmp_path / recipe).mkdir()
        served[recipe] = Served(programs, tmp_path / recipe)
        served[recipe].command[served[recipe].command.index("demo")] = recipe
    starting = [threading.Thread(target=one.start) for one in served.values()]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    urls = {recipe: f"http://127.0.0.1:{one.port}" for recipe, one in served.items()}
    hosts = {recipe: url.removeprefix("http://") for recipe, url in urls.items()}
    set_list(server, {"title": "A listed run", "monitor": urls["demo"]})

    page.goto(server.url + "join/")
    expect(line_of(page, hosts["demo"]).get_by_text("Waiting")).to_be_visible()
    expect(line_of(page, hosts["demo"])).to_contain_text(load_recipe("demo").title)
    expect(page.locator("[data-slot=command]")).to_contain_text(joined(urls["demo"]))
    page.get_by_label("Another run").fill(f"{urls['stories']}/recipe.toml")
    page.get_by_role("button", name="Show this run").click()
    page.wait_for_url(re.compile(r"[?&]run="))
    expect(line_of(page, hosts["stories"])).to_contain_text("A volunteer needs at least")
    expect(page.locator("[data-slot=command]")).to_contain_text(joined(urls["stories"]))
    follow(page, "Dashboard")
    expect(page.get_by_role("heading", name=load_recipe("stories").title)).to_be_visible()
    expect(page.locator("[data-slot=status-label]")).to_have_text("Waiting")
    follow(page, "Join")
    line_of(page, hosts["demo"]).get_by_role("link").click()
    command = page.locator("[data-slot=command]")
    expect(command).to_contain_text(joined(urls["demo"]))

    words = shlex.split(command.inner_text().removeprefix(PROGRAM))
    shards = write_shards(tmp_path / "shards", load_recipe("demo"))
    ended = run_program([sys.executable, "-m", "training", *words, "--shards", shards, "--dry-run"])
    assert ended.returncode == 0 and "All checks passed" in ended.stdout, ended.stdout + ended.stderr
    assert page.errors == []


def test_home_dashboard_and_join_page_follow_the_address_and_keep_it(page, server, monitor):
    run = monitor.url.rstrip("/")
    page.goto(f"{server.url}?run={run}")
    glance = page.locator("[data-part=glance]")
    expect(glance.locator("[data-slot=status-label]")).to_have_text("Live")
    expect(glance.get_by_alt_text("Drawn by the model: “a red circle”")).to_be_visible()
    follow(page, re.compile("^Join a run"))
    expect(page.locator("[data-slot=command]")).to_contain_text(joined(run))
    expect(line_of(page, "volunteers take part now").locator("a")).to_have_attribute("aria-current", "true")
    follow(page, "Dashboard")
    shown_complete(page)
    expect(page.get_by_role("link", name="state.json")).to_have_attribute("href", f"{run}/live/state.json")
    monitor.observe(all_at(EPOCHS + 1))
    expect(page.locator("[data-slot=epoch]")).to_contain_text(f"{EPOCHS + 1} of")
    assert f"{run}/live/events" in page.asked, "the stream is the monitor's"
    assert violations(page) == [] and page.errors == []


def test_the_first_live_run_of_the_list_is_shown_and_a_gone_one_by_its_record(page, server, monitor, built_site):
    finished(monitor)
    record = "records/one/"
    folder = monitor.folder / "exported"
    export(HistoryReader(monitor.folder / "history.sqlite"), folder, pictures=monitor.folder / "pictures")
    for file in (file for file in folder.rglob("*") if file.is_file()):
        server.files[f"/{record}{file.relative_to(folder).as_posix()}"] = file.read_bytes()
    gone = f"http://127.0.0.1:{free_port()}"
    set_list(
        server,
        {"title": "Gone", "monitor": gone, "record": record},
        {"title": "Also over", "record": record},
        {"title": "Lost", "monitor": gone + "/lost"},
    )
    page.goto(server.url + "join/")
    expect(page.locator("[data-slot=command]")).to_have_text(DEMOS["demo"])
    lines = page.get_by_role("region", name="Runs").get_by_role("listitem")
    expect(lines.locator(".status__label")).to_have_text(["Recorded", "Recorded", "Recorded", "No answer"])
    expect(lines.nth(1)).to_contain_text("3 volunteers took part")
    lines.nth(1).get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"run="))
    expect(page.locator("[data-part=join] [data-slot=status-text]")).to_contain_text("This run finished on")
    expect(page.locator("[data-slot=command]")).to_have_text(DEMOS["demo"])
    follow(page, "Dashboard")
    expect(page.locator("[data-slot=status-label]")).to_have_text("Recorded")
    expect(page.locator("[data-slot=board] tr")).to_have_count(3)
    expect(page.locator("[data-slot=loss-chart]")).to_have_attribute("data-drawn", "true")
    page.wait_for_function("() => document.querySelector('.gallery img').naturalWidth === 2")
    assert page.errors == []


def test_a_live_run_of_the_list_is_the_readers_first(page, server, monitor):
    set_list(
        server,
        {"title": "Gone", "monitor": f"http://127.0.0.1:{free_port()}"},
        {"title": "Here", "monitor": monitor.url},
    )
    page.goto(server.url + "join/?system=wsl")
    expect(page.locator("[data-slot=command]")).to_contain_text(joined(monitor.url.rstrip("/")))
    expect(page).to_have_url(
        f"{server.url}join/?system=wsl&run={monitor.url.rstrip('/').replace(':', '%3A').replace('/', '%2F')}"
    )


def test_the_site_of_a_monitor_shows_its_run_and_asks_no_other(page, server, monitor):
    server.live = live_run(epochs=20)
    set_list(server, {"title": "Elsewhere", "monitor": monitor.url})
    page.goto(server.url + "join/")
    expect(line_of(page, "Shapes & co").get_by_text("Live")).to_be_visible()
    expect(page.get_by_role("region", name="Runs").get_by_role("listitem")).to_have_count(1)
    page.goto(server.url)
    expect(page.get_by_role("region", name="Shapes & co")).to_be_visible()
    assert not [url for url in page.asked if url.startswith(monitor.url)]


HOSTILE = '<img src="x" onerror="alert(1)"><script>alert(2)</script>'


def test_what_a_stranger_sends_is_text_and_joins_only_the_strangers_address(page, server, stranger):
    live = stranger.live
    live["run"] |= {
        "title": HOSTILE,
        "description": HOSTILE,
        "join_command": f"curl http://127.0.0.1/x | sh; {HOSTILE}",
    }
    live["run"]["prompts"] = [HOSTILE]
    live["state"] |= {"cause": HOSTILE, "remedy": HOSTILE}
    for volunteer in live["leaderboard"]["volunteers"]:
        volunteer["name"] = f"{HOSTILE}{volunteer['name']}"
    live["losses"]["peers"] = {HOSTILE: [[1, 2.0], [2, 1.0]], "__proto__": [[1, 1.0]]}
    live["events"]["events"].append({"time": 1, "kind": HOSTILE, "name": HOSTILE, "text": HOSTILE})
    elsewhere = f"http://127.0.0.1:{free_port()}/"
    live["pictures"]["snapshots"][-1]["pictures"] = [
        {"prompt": HOSTILE, "file": f"{elsewhere}seen.png", "shape": None, "colour": None},
        {"prompt": PROMPTS[0], "file": "/../recipe.toml", "shape": None, "colour": None},
    ]
    run = stranger.url.rstrip("/")
    for address in ("", "join/", "dashboard/"):
        page.goto(f"{server.url}{address}?run={run}")
        expect(page.get_by_text(HOSTILE).first).to_be_visible()
    expect(page.locator("[data-slot=board]")).to_contain_text(HOSTILE)
    expect(page.locator("[data-slot=events]")).to_contain_text(HOSTILE)
    expect(page.locator("[data-slot=pictures] th").filter(has_text=HOSTILE)).to_be_visible()
    page.goto(f"{server.url}join/?run={run}")
    expect(page.locator("[data-slot=command]")).to_have_text(f"{joined(run)} --device cpu")
    assert page.errors == []
    assert not [url for url in page.asked if not url.startswith((server.url, f"{run}/live/", "data:"))]


@pytest.mark.parametrize(
    "name, wrong", [("run", {"title": 3}), ("run", {"total_epochs": HOSTILE}), ("state", {"epoch": []})]
)
def test_what_is_no_run_is_said_to_be_none(page, server, stranger, name, wrong):
    stranger.live[name] |= wrong
    page.goto(f"{server.url}dashboard/?run={stranger.url}")
    expect(page.locator("[data-slot=run]")).to_be_hidden()
    expect(page.locator("[data-slot=status-text]")).to_contain_text("is not a monitor with a run")
    assert page.errors == []


def test_an_address_that_cannot_be_asked_is_refused_with_the_reason(page, server, stranger):
    page.goto(server.url + "join/")
    page.get_by_label("Another run").fill("https://run.example/$(reboot)")
    page.get_by_role("button", name="Show this run").click()
    expect(page.get_by_role("alert")).to_contain_text("is not a monitor's address; one looks like https://run.example")
    page.goto(f"{server.url}dashboard/?run=javascript:alert(1)")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("“javascript:alert(1)” is not a monitor's address")
    stranger.headers = {}
    page.goto(f"{server.url}dashboard/?run={stranger.url}")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("does not answer, or lets no other site ask it")
    expect(page.locator("[data-slot=run]")).to_be_hidden()
    assert page.errors == []


MARKUP_WITH_SCRIPTS = """() => new Promise((resolve) => {
    const refused = [];
    document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => {
        refused.push(effectiveDirective);
        if (refused.length === 3) resolve(refused.sort());
    });
    const markup = '<b onclick="window.ran = 1">x</b><img src="data:," onerror="window.ran = 2">';
    document.body.insertAdjacentHTML("beforeend", markup);
    document.body.lastElementChild.previousElementSibling.click();
    const script = document.createElement("script");
    script.textContent = "window.ran = 3";
    document.body.append(script);
})"""


@pytest.mark.parametrize("address", ["", "join/", "dashboard/"])
def test_a_script_that_markup_brings_along_does_not_run(page, server, address):
    page.goto(server.url + address)
    refused = page.evaluate(MARKUP_WITH_SCRIPTS)
    assert refused == ["script-src-attr", "script-src-attr", "script-src-elem"]
    assert page.evaluate("window.ran") is None
