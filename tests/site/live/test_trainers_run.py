"""Runs as the trainer itself serves and exports them: the live one by its API, the recorded one without scripts."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import expect

from builder.dashboard.curves import loss_svg
from site_server import SiteServer
from tests.site.live.test_dashboard_page import JOIN, red_picture
from tests.site.pages.test_every_page import ROOT, violations
from tests.support.programs import run_program
from tests.training.publish.history.test_history import Report
from training.publish.history.history import History, HistoryReader
from training.publish.live.live import create_app, export, store_run
from training.publish.showcase import Shown
from training.recipe import load_recipe

pytestmark = pytest.mark.browser

NAMES = ["ada", "<i>bob</i>", "cy"]
EPOCHS = 12
RUN = load_recipe("demo")


@pytest.fixture(scope="module")
def recorded_site(built_site, tmp_path_factory) -> Path:
    """The site, built from a copy of its sources that holds a run; what is fetched or compiled is the build's."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "site", copy / "site", ignore=shutil.ignore_patterns("live", "__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", copy)
    (copy / "build" / "site").mkdir(parents=True)
    kept = ("build/site/files", "build/site/assets.json", "node_modules", "package-lock.json")
    for name in (
        "benchmarks",
        "calculator",
        "training",
        "tests",
        "constraints",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        *kept,
    ):
        (copy / name).symlink_to(ROOT / name)
    now = 1_750_000_000.0
    write_history(copy / "run", ended_at=now)
    pictures = copy / "run" / "pictures"
    export(HistoryReader(copy / "run" / "history.sqlite"), copy / "site", pictures=pictures, clock=lambda: now + 3600)
    ended = run_program([sys.executable, "site/build.py", "--out", "public"], cwd=copy)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return copy / "public"


@pytest.fixture
def monitor(built_site, tmp_path):
    """Address of the site as the monitor's own application serves it, above a run that goes on."""
    write_history(tmp_path, ended_at=time.time())
    app = create_app(HistoryReader(tmp_path / "history.sqlite"), pictures=tmp_path / "pictures", site=built_site)
    program = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=program.run, daemon=True)
    thread.start()
    while not program.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{program.servers[0].sockets[0].getsockname()[1]}/"
    program.should_exit = True
    thread.join()


@pytest.fixture
def server(recorded_site):
    """The site with its recorded run."""
    site = SiteServer(recorded_site)
    yield site
    site.close()


def test_the_plot_stands_there_without_scripts(open_page):
    page = open_page("dashboard/", scripts=False)
    expect(page.get_by_role("heading", name=RUN.title)).to_be_visible()
    plot = page.locator("[data-slot=loss-chart] svg")
    expect(plot).to_be_visible()
    lines = [line.get_attribute("points").split() for line in plot.locator("polyline").all()]
    assert [len(points) for points in lines] == [EPOCHS] * 4
    expect(page.get_by_role("region", name="Leaderboard")).to_contain_text("<i>bob</i>")
    expect(page.get_by_alt_text("“a red circle” as drawn at epoch 10")).to_be_visible()


def test_home_shows_it_without_scripts(open_page):
    page = open_page(scripts=False)
    glance = page.get_by_role("region", name=RUN.title)
    expect(glance).to_contain_text("3 volunteers, 12 epochs")
    expect(glance.get_by_alt_text("Drawn by the model: “a red circle”")).to_be_visible()


def test_scripts_show_the_same_run_as_stopped(open_page):
    page = open_page("dashboard/")
    expect(page.locator("[data-slot=status-label]")).to_have_text("Stopped")
    expect(page.locator("[data-slot=loss-chart]")).to_have_attribute("data-drawn", "true")
    expect(page.locator("[data-slot=epoch]")).to_have_text(f"12 of {RUN.schedule.total_epochs}")
    expect(page.locator("[data-slot=active]")).to_have_text("3")
    expect(page.locator("[data-slot=board] tr").first).to_contain_text("to the end")
    assert violations(page) == []


def test_the_monitor_serves_site_and_run_together(chromium, monitor):
    page = chromium.new_page()
    errors = []
    page.on("console", lambda line: line.type == "error" and errors.append(line.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(monitor + "dashboard/")
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    expect(page.locator("[data-slot=epoch]")).to_have_text(f"12 of {RUN.schedule.total_epochs}")
    expect(page.locator("[data-slot=active]")).to_have_text("3")
    expect(page.locator("[data-slot=loss-chart]")).to_have_attribute("data-drawn", "true")
    lines = page.locator("[data-slot=loss-chart] [data-name]").evaluate_all(
        "lines => lines.map((line) => line.getAttribute('d').match(/[ML]/g).length)"
    )
    assert lines == [12] * 4
    expect(page.get_by_alt_text("“a red circle” as drawn at epoch 10; shape right; colour wrong")).to_be_visible()
    expect(page.locator("[data-slot=events]")).to_contain_text("<i>bob</i>")
    page.goto(monitor + "join/")
    expect(page.locator("[data-slot=command]")).to_have_text(
        re.compile(rf"{re.escape(JOIN)} --device cpu --micro-batch-size [0-9]+$")
    )
    page.goto(monitor + "calculator/?model=gpt2")
    expect(page.get_by_text("Computed in your browser")).to_be_visible(timeout=60_000)
    page.close()
    assert errors == []


def test_lower_losses_stand_lower_in_the_plot():
    svg = loss_svg([(1, 4.0), (2, 3.0), (3, 2.5)], {"ada": [(1, 4.1), (3, 2.6)]})
    (line,) = [part for part in svg.split("<") if part.startswith('polyline class="all"')]
    xs, ys = zip(
        *(map(float, pair.split(",")) for pair in line.split('points="')[1].split('"')[0].split()), strict=True
    )
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)
    assert (ys[1] - ys[0]) / (ys[2] - ys[1]) == pytest.approx(2.0, abs=0.05)


def write_history(run_dir: Path, *, ended_at: float) -> None:
    """The history and the pictures of a run of 12 epochs, 5 s each, as the monitor writes them."""
    now = [ended_at - 5 * EPOCHS]
    history = History(
        run_dir / "history.sqlite",
        run_id=RUN.run_id,
        recipe_digest=RUN.digest,
        expiration_seconds=60,
        clock=lambda: now[0],
    )
    store_run(history, RUN, "# recipe\n", initial_peers=["/ip4/127.0.0.1/tcp/9/p2p/x"], join_command=JOIN, parameters=7)
    for epoch in range(EPOCHS + 1):
        history.observe(
            [
                Report(
                    name=name,
                    peer_id=f"Qm{place}",
                    epoch=epoch,
                    loss=5 - epoch / 10 + place / 10 if epoch else None,
                    samples=100 * epoch,
                    samples_per_second=20.0,
                    seconds=5.0 * epoch,
                    time=now[0],
                )
                for place, name in enumerate(NAMES)
            ]
        )
        now[0] += 5 * (epoch < EPOCHS)
    pictures = run_dir / "pictures" / "000010"
    pictures.mkdir(parents=True)
    drawn = []
    for number, prompt in enumerate(RUN.monitor.prompts):
        (pictures / f"{number}.png").write_bytes(red_picture())
        drawn.append(Shown(prompt=prompt, file=f"000010/{number}.png", shape=True, colour=False))
    history.add_snapshot(10, drawn)
    history.close()
