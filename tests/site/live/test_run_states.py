"""Each state of a run as the dashboard shows it: a real history, the monitor's own application, a real browser."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Collection
from contextlib import contextmanager, suppress

import pytest
import uvicorn
from playwright.sync_api import expect

from site_server import SiteServer
from tests.site.live.test_trainers_run import EPOCHS, NAMES, RUN, Report, write_history
from tests.site.pages.test_every_page import violations
from training.publish.history.history import History, HistoryReader
from training.publish.history.run_state import APART_SECONDS, STATUSES
from training.publish.live.live import create_app, export
from training.publish.live.watch import Watch

pytestmark = pytest.mark.browser


class Monitor:
    """What a monitor process has: a history that it writes, what it sees, and a server. Its clock runs `ahead`."""

    def __init__(self, folder, site):
        write_history(folder, ended_at=time.time())
        self.ahead = 0.0
        self.folder, self.site = folder, site
        self.history = History(
            folder / "history.sqlite",
            run_id=RUN.run_id,
            recipe_digest=RUN.digest,
            expiration_seconds=60,
            clock=self.clock,
        )
        self.watch = Watch(self.history, RUN.swarm, clock=self.clock)
        self.watch.__enter__()
        self.serve()

    def clock(self) -> float:
        return time.time() + self.ahead

    def serve(self, port: int = 0) -> None:
        app = create_app(
            self.history, pictures=self.folder / "pictures", site=self.site, watch=self.watch, clock=self.clock
        )
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()
        while not self.server.started:
            time.sleep(0.02)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def observe(
        self,
        epochs: dict[str, int],
        *,
        status: str = "training",
        speed: float = 20.0,
        alone: Collection[str] = (),
    ) -> None:
        """The records that come; those `alone` have ended all epochs by themselves."""
        reports = [
            Report(
                name=name,
                peer_id=f"Qm{NAMES.index(name)}",
                status=status,
                epoch=epoch,
                loss=4.0,
                samples=100 * epoch,
                samples_per_second=speed,
                seconds=5.0 * epoch,
                time=self.clock(),
                averaged_epochs=0 if name in alone else epoch,
                alone_epochs=epoch if name in alone else 0,
            )
            for name, epoch in epochs.items()
        ]
        self.history.observe(reports)
        self.watch.saw(reports)

    def stop_server(self) -> None:
        self.server.should_exit = True
        self._thread.join(10)

    def close(self) -> None:
        self.stop_server()
        with suppress(Exception):
            self.history.close()


@pytest.fixture
def monitor(built_site, tmp_path):
    monitor = Monitor(tmp_path, built_site)
    yield monitor
    monitor.close()


@pytest.fixture
def look(chromium):
    """Opens the dashboard of a monitor in a window of its own, where the service worker runs."""
    contexts = []

    def open_at(url, *, width=1280, dark=False):
        scheme = "dark" if dark else "light"
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.goto(url + "dashboard/")
        return page

    yield open_at
    for context in contexts:
        context.close()


def all_at(epoch: int) -> dict[str, int]:
    return dict.fromkeys(NAMES, epoch)


def running(monitor):
    monitor.observe(all_at(EPOCHS + 1))


def waiting(monitor):
    monitor.ahead = 200
    monitor.observe({})


def alone(monitor):
    monitor.ahead = 100
    monitor.observe({"cy": EPOCHS + 1}, status="waiting")


def slow(monitor):
    monitor.ahead = 61
    monitor.observe(all_at(EPOCHS), speed=20.0)


def split(monitor):
    for step in range(3):
        monitor.observe({NAMES[0]: EPOCHS + 30 + step, NAMES[2]: EPOCHS + step})
        monitor.ahead += APART_SECONDS / 2 + 1


def unmet(monitor, alone=NAMES):
    for step in range(5):
        monitor.observe(all_at(EPOCHS + 2 * step), alone=alone)
        monitor.ahead += APART_SECONDS / 4 + 1


def one_unmet(monitor):
    unmet(monitor, alone=[NAMES[2]])


def failed(monitor):
    monitor.ahead = 31  # the DHT has not answered since


def spoiled(monitor):
    monitor.observe(all_at(EPOCHS))
    monitor.watch.saw_loss("its loss is 40, and 4 before its last checkpoint", 10)


def members_server_away(monitor):
    monitor.observe(all_at(EPOCHS + 1))
    monitor.watch.saw_members_server(True)


def stopped(monitor):
    monitor.observe(all_at(EPOCHS))
    monitor.watch.stop()


def finished(monitor):
    for epoch in (RUN.schedule.total_epochs - 1, RUN.schedule.total_epochs):
        monitor.observe(all_at(epoch))


STATES = {
    "running": (running, "Live", "Training now: epoch 13", ""),
    "waiting": (waiting, "Waiting", "No volunteer is there since", "The join page has the command"),
    "alone": (alone, "Waiting", "cy waits for others", "A second volunteer is enough"),
    "slow": (slow, "Slow", "No epoch was finished for", "a volunteer's terminal says why"),
    "split": (split, "Split", "in 2 groups that do not meet: ada at epoch 44; cy at epoch 14", "find each other"),
    "unmet": (unmet, "Split", "and cy do not reach each other", "one needs an open port"),
    "one unmet": (one_unmet, "Live", "Training now: epoch 20", "one needs an open port"),
    "failed": (failed, "Fault", "DHT node has not answered", "start the monitor again"),
    "server away": (
        members_server_away,
        "Live",
        "epoch 13 of 400. The membership server has not answered since",
        "the membership server again",
    ),
    "spoiled": (spoiled, "Fault", "its loss is 40, and 4 before its last checkpoint", "(restore --to 10)"),
    "stopped": (stopped, "Stopped", "stopped the monitor on purpose", "with the same --run-dir"),
    "finished": (finished, "Finished", "This run finished on", ""),
}


@pytest.mark.parametrize("reach, label, text, remedy", STATES.values(), ids=STATES)
def test_an_open_page_shows_each_state_with_cause_and_remedy(monitor, look, reach, label, text, remedy):
    monitor.observe(all_at(EPOCHS))
    page = look(monitor.url)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    reach(monitor)
    expect(page.locator("[data-slot=status-label]")).to_have_text(label)
    expect(page.locator("[data-slot=status-text]")).to_contain_text(text)
    if remedy:
        expect(page.locator("[data-slot=remedy]")).to_contain_text(remedy)
    else:
        expect(page.locator("[data-slot=remedy]")).to_be_hidden()
    assert violations(page) == []


def test_every_status_is_shown():
    assert {"alone", "unmet", "one unmet", "spoiled", "server away", *STATUSES} == set(STATES)


def test_the_page_counts_how_old_its_news_are_and_says_when_nobody_answers(monitor, look):
    monitor.observe(all_at(EPOCHS))
    page = look(monitor.url)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    port = monitor.port
    monitor.stop_server()  # without a word, as after a kill
    expect(page.locator("[data-slot=age]")).to_have_text(re.compile(r"^Last update [5-9] s ago$"))
    expect(page.locator("[data-slot=status-label]")).to_have_text("No news")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("has not said that it stops")
    monitor.serve(port)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")


def test_without_streams_a_stop_is_told_too(monitor, look, chromium):
    monitor.observe(all_at(EPOCHS))
    context = chromium.new_context()
    page = context.new_page()
    page.add_init_script("delete window.EventSource")
    page.goto(monitor.url + "dashboard/")
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    monitor.watch.stop()
    monitor.watch.let_pages_know()
    monitor.stop_server()
    expect(page.locator("[data-slot=status-label]")).to_have_text("Stopped")
    context.close()


def test_a_stopped_run_stands_complete_after_a_reload_without_any_server(monitor, look):
    monitor.observe(all_at(EPOCHS))
    page = look(monitor.url)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    page.evaluate("navigator.serviceWorker.ready")
    page.wait_for_function("() => document.querySelector('[data-slot=loss-chart][data-drawn]')")
    stopped(monitor)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Stopped")
    page.wait_for_function("() => caches.open('run').then((cache) => cache.match('/live/events.json')).then(Boolean)")
    page.wait_for_timeout(500)
    monitor.stop_server()
    page.reload()
    expect(page.locator("[data-slot=status-label]")).to_have_text("Stopped")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("on purpose")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("The server does not answer: this is the copy")
    shown_complete(page)


def shown_complete(page):
    """All parts of a run are on the page."""
    expect(page.locator("[data-slot=epoch]")).to_have_text(f"{EPOCHS} of {RUN.schedule.total_epochs}")
    expect(page.locator("[data-slot=board] tr")).to_have_count(3)
    expect(page.locator("[data-slot=events] li").last).to_contain_text("joined")
    page.get_by_text("The numbers as a table").first.click()
    rows = page.get_by_role("region", name="Loss per epoch, table").get_by_role("row")
    expect(rows).to_have_count(EPOCHS + 1)
    picture = page.get_by_alt_text("“a red circle” as drawn at epoch 10; shape right; colour wrong")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('.gallery img').naturalWidth === 2")


@contextmanager
def exported(monitor, built_site, tmp_path):
    """The exported run on a plain file server, with the site."""
    folder = tmp_path / "static"
    shutil.copytree(built_site, folder, ignore=shutil.ignore_patterns("live"))
    export(HistoryReader(monitor.folder / "history.sqlite"), folder, pictures=monitor.folder / "pictures")
    server = SiteServer(folder)
    try:
        yield server
    finally:
        server.close()


def reload_offline(page):
    """Loads the page again without a network: Chromium forgets in a new document that it plays one that is offline."""
    page.add_init_script("Object.defineProperty(navigator, 'onLine', {get: () => false, configurable: true})")
    page.reload()


@pytest.mark.parametrize("end, label", [(stopped, "Stopped"), (None, "Fault")], ids=["on purpose", "killed"])
def test_an_exported_run_is_complete_with_the_monitor_gone_and_offline(monitor, look, built_site, tmp_path, end, label):
    monitor.observe(all_at(EPOCHS))
    if end is not None:
        end(monitor)
    monitor.close()
    with exported(monitor, built_site, tmp_path) as server:
        page = look(server.url)
        errors = []
        page.on("console", lambda line: line.type == "error" and errors.append(line.text))
        expect(page.locator("[data-slot=status-label]")).to_have_text(label)
        shown_complete(page)
        assert errors == []
        page.evaluate("navigator.serviceWorker.ready")
        page.wait_for_function(
            "() => caches.open('run').then((cache) => cache.match('/live/events.json')).then(Boolean)"
        )
        page.wait_for_timeout(500)
        page.context.set_offline(True)
        reload_offline(page)
        expect(page.locator("[data-slot=status-label]")).to_have_text(label)
        expect(page.locator("[data-slot=status-text]")).to_contain_text("You are offline: this is the copy")
        shown_complete(page)


def test_offline_a_run_that_is_not_kept_is_said_to_be_so(monitor, look):
    monitor.observe(all_at(EPOCHS))
    page = look(monitor.url)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
    page.evaluate("navigator.serviceWorker.ready")
    page.context.set_offline(True)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Offline")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("shows the run as it was")
    reload_offline(page)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Offline")
    expect(page.locator("[data-slot=status-text]")).to_contain_text("has kept no copy of the run")
    expect(page.get_by_role("main")).not_to_contain_text("recorded")
    page.evaluate("delete navigator.onLine")
    page.context.set_offline(False)
    expect(page.locator("[data-slot=status-label]")).to_have_text("Live")
