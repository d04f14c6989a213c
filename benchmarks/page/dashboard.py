"""The dashboard of a large run: first paint, live updates and freezes in a browser, and the live API with many readers.

    python site/build.py && python benchmarks/page/dashboard.py --json benchmarks/results/dashboard.json

The history is written by this program: 1000 members, 30 000 epochs, 40 members at a time, each for 1200 epochs in a row
(1.2 million reports). A second process serves it with the monitor's own application, and observes a new epoch of 40
volunteers every five seconds, as a monitor does. Nothing is compared: no other project has such a page.

- *First paint* is Chromium's first contentful paint of a page that is opened with an empty profile; *run shown* is the
  time until the run's epoch and leaderboard are in the page.
- *Live update* is the time from the monitor's observation to the new epoch in the page: both processes read one clock.
- *Longest freeze* is the longest task of the page's main thread in all runs, by the clock and in CPU time alone: while
  the page is opened, while it is updated, and while a reader uses it (points at the charts, enlarges a part, opens the
  tables, asks for more rows, pictures and volunteers, changes the colours). It is read from a trace (freezes.py). The
  opening is traced in a browser without a debugger, which adds 16 to 23 ms of CPU time to the start of the theme's
  script. The server, in life another machine, has the lowest priority meanwhile.
- *API* is the answer time seen by 200 readers, each of which asks for the state every two seconds and for what a page
  asks for at each new epoch, while 200 streams are open.

CHROMIUM names the browser's program.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.page.freezes import TRACED, Task, page_that_leads_to, tasks_of, tasks_of_opening
from benchmarks.page.readers import READERS, STREAMS
from benchmarks.record import percentile, record, result
from tests.support.ports import free_port

MEMBERS, EPOCHS, PRESENT = 1000, 30_000, 40
PHASES = ("while it is updated", "while it is used")
SCRIPT = "javascripts/site.mjs"
"""Part of the URL of a script of the page."""
OPENING_SECONDS = 8.0
"""From the page's opening until its charts are drawn, with time to spare."""
REST_SECONDS = 4.0
"""Chromium's own start occupies both cores of a small machine for so long."""
SPEED = 80.0
"""Samples per second of a member."""
EVERY_SECONDS = 5.0
"""Time of an epoch, in the history and while it is served."""
UPDATES = 8
ASKED_SECONDS = 30.0
PICTURES_EVERY, PROMPTS = 100, 8

WATCH = """
window.seen = {};
const watch = new MutationObserver(() => {
    const epoch = document.querySelector("[data-slot=epoch]")?.textContent;
    if (epoch && epoch !== "–" && !(epoch in window.seen)) window.seen[epoch] = Date.now();
});
document.addEventListener("DOMContentLoaded", () => watch.observe(document.body, {
    subtree: true, childList: true, characterData: true,
}));
"""


@dataclass(frozen=True)
class Report:
    """A peer's record, as far as the history reads it."""

    name: str
    peer_id: str
    epoch: int
    samples: int
    time: float
    loss: float
    status: str = "training"
    lineage: str | None = None
    samples_per_second: float = SPEED
    seconds: float = 0.0
    recent: tuple = ()
    seen: tuple = ()
    missed: tuple = ()
    voucher: None = None
    averaged_epochs: int = 0
    alone_epochs: int = 0


def members_at(epoch: int) -> range:
    """Numbers of the members who are there at an epoch: a new one comes every 30 epochs."""
    newest = min(MEMBERS, PRESENT + epoch * (MEMBERS - PRESENT) // EPOCHS)
    return range(newest - PRESENT, newest)


def last_seen(member: int, began: float) -> float:
    """When a member left, or now."""
    return min(time.time(), began + EVERY_SECONDS * (member + 1) * EPOCHS / (MEMBERS - PRESENT))


def loss_at(epoch: int) -> float:
    """A loss that falls as those of real runs do."""
    return 8 / (1 + epoch / 3000)


def write_picture(path: Path) -> None:
    """A picture of random pixels, as large as the demo's."""
    import numpy as np
    from PIL import Image

    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)


def write_history(path: Path) -> None:
    """A history of `EPOCHS` epochs until now, written as one transaction."""
    from training.publish.history.history import History
    from training.publish.live.live import store_run
    from training.recipe import load_recipe

    run = load_recipe("dalle-2021")
    history = History(path, run_id=run.run_id, recipe_digest=run.digest, expiration_seconds=60)
    store_run(history, run, "", initial_peers=["/ip4/127.0.0.1/tcp/9/p2p/x"], join_command="", parameters=10**8)
    history.close()
    began = time.time() - EVERY_SECONDS * EPOCHS
    connection = sqlite3.connect(path)
    samples = dict.fromkeys(range(MEMBERS), 0)

    def reports():
        for epoch in range(1, EPOCHS + 1):
            for member in members_at(epoch):
                samples[member] += 400 + member % 50
                yield epoch, f"P{member}", loss_at(epoch), 400, 400, EVERY_SECONDS

    connection.executemany(
        "INSERT INTO reports (branch, epoch, peer_id, loss, samples, credited, seconds) VALUES (1, ?, ?, ?, ?, ?, ?)",
        reports(),
    )
    connection.executemany(
        "INSERT INTO epochs (branch, epoch, time, loss, active_peers, samples, samples_per_second) "
        "VALUES (1, ?, ?, ?, ?, ?, ?)",
        (
            (epoch, began + EVERY_SECONDS * epoch, loss_at(epoch), PRESENT, PRESENT * 400, PRESENT * SPEED)
            for epoch in range(1, EPOCHS + 1)
        ),
    )
    connection.executemany(
        "INSERT INTO volunteers (id, name, page) VALUES (?, ?, ?)",
        ((f"P{n}", f"member-{n:04d}", f"{n:016x}") for n in range(MEMBERS)),
    )
    connection.executemany(
        "INSERT INTO peers (peer_id, volunteer, name, first_seen, last_seen, active, record_time, samples, seconds, "
        f"samples_per_second, since_epoch, since_samples) VALUES (?, ?, ?, ?, ?, ?, 0, ?, 6000, {SPEED}, ?, ?)",
        (
            (id_, id_, name, began, last_seen(n, began), n in members_at(EPOCHS), samples[n], EPOCHS, samples[n])
            for n, id_, name in ((n, f"P{n}", f"member-{n:04d}") for n in range(MEMBERS))
        ),
    )
    for epoch in range(PICTURES_EVERY, EPOCHS + 1, PICTURES_EVERY):
        drawn_at = began + EVERY_SECONDS * epoch
        connection.execute("INSERT INTO snapshots (branch, epoch, time) VALUES (1, ?, ?)", (epoch, drawn_at))
        connection.executemany(
            "INSERT INTO pictures (branch, epoch, number, prompt, file, shape, colour) VALUES (1, ?, ?, ?, ?, 1, 1)",
            ((epoch, number, f"prompt {number}", "one.png") for number in range(PROMPTS)),
        )
    connection.commit()
    connection.close()


def serve(folder: Path, site: Path, port: int) -> None:
    """The monitor's application over the history, and an observation of a new epoch every few seconds, for ever.

    Prints a line of JSON for each: the epoch and the time just before the observation.
    """
    import uvicorn

    from training.publish.history.history import History
    from training.publish.live.live import create_app
    from training.publish.live.watch import Watch
    from training.recipe import load_recipe

    run = load_recipe("dalle-2021")
    path = folder / "history.sqlite"
    history = History(path, run_id=run.run_id, recipe_digest=run.digest, expiration_seconds=60)
    with Watch(history, run.swarm) as watch:
        app = create_app(history, pictures=folder, site=site, watch=watch)
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
        threading.Thread(target=uvicorn.Server(config).run, daemon=True).start()
        totals = {one["name"]: one["samples"] for one in history.leaderboard()}
        epoch = EPOCHS
        while True:
            time.sleep(EVERY_SECONDS)
            epoch += 1
            reports = [
                Report(
                    name=(name := f"member-{n:04d}"),
                    peer_id=f"P{n}",
                    epoch=epoch,
                    samples=totals[name] + 400 * (epoch - EPOCHS),
                    time=time.time(),
                    loss=loss_at(epoch),
                )
                for n in members_at(EPOCHS)
            ]
            began = time.time()
            history.observe(reports)
            watch.saw(reports)
            print(json.dumps({"epoch": epoch, "observed_at": began, "seconds": time.time() - began}), flush=True)


def measure_page(url: str, observed: dict[int, float]) -> dict[str, list[float]]:
    """Opens the dashboard, follows it for some epochs, and uses it; name of a figure -> its values."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(WATCH)
        page.wait_for_timeout(REST_SECONDS * 1000)
        browser.start_tracing(page=page, categories=list(TRACED))
        page.goto(url + "dashboard/", wait_until="commit")
        page.wait_for_function("() => document.querySelectorAll('[data-slot=board] tr').length >= 100", timeout=60_000)
        shown = page.evaluate("performance.now()")
        page.wait_for_function("() => document.querySelectorAll('.chart[data-drawn]').length === 3", timeout=60_000)
        page.wait_for_timeout(2000)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        began = [time.monotonic()]
        first = max(observed, default=EPOCHS)
        while max(observed, default=EPOCHS) < first + UPDATES:
            page.wait_for_timeout(500)
        page.wait_for_timeout(2000)
        began.append(time.monotonic())
        use(page)
        began.append(time.monotonic())
        tasks = tasks_of(json.loads(browser.stop_tracing())["traceEvents"], SCRIPT)
        seen = {
            int("".join(filter(str.isdigit, text.split(" of ")[0]))): ms
            for text, ms in page.evaluate("Object.entries(window.seen)")
        }
        browser.close()
    delays = [seen[epoch] - 1000 * observed[epoch] for epoch in observed if epoch in seen and epoch > first]
    figures = {"first contentful paint": [paint], "run shown": [shown], "live update, median": delays}
    for phase, since, until in zip(PHASES, began, began[1:], strict=False):
        figures |= longest(phase, [task for task in tasks if 1e6 * since <= task.began_us < 1e6 * until])
    return figures


def measure_opening(url: str) -> dict[str, list[float]]:
    """The longest freeze while the dashboard is opened; name of a figure -> its value."""
    rest = page_that_leads_to(f"{url}dashboard/", REST_SECONDS)
    first_page = f"data:text/html;base64,{base64.b64encode(rest.encode()).decode()}"
    tasks = tasks_of_opening(first_page, "dashboard/", SCRIPT, seconds=REST_SECONDS + OPENING_SECONDS)
    return longest("while the page is opened", tasks)


def longest(phase: str, tasks: list[Task]) -> dict[str, list[float]]:
    """The longest freeze among tasks; name of a figure -> its value."""
    return {
        f"longest freeze {phase}": [max(task.wall_ms for task in tasks)],
        f"longest freeze {phase}, CPU time alone": [max(task.cpu_ms for task in tasks)],
    }


def use(page) -> None:
    """A reader points at the charts, enlarges a part, opens the tables, asks for more, and changes the colours.

    Elements are found by CSS: a search by role and name reads the whole page, in a task that would count as the page's.
    """
    for name in ("loss-chart", "peers-chart", "speed-chart"):
        plot = page.locator(f"[data-slot={name}] .chart__overlay")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 60)
        page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 80, steps=40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=20)
    page.mouse.up()
    page.wait_for_timeout(500)
    page.mouse.dblclick(box["x"] + 50, box["y"] + 60)
    for chosen in ("[data-last='1000']", "button:first-child"):
        page.locator(f"[data-slot=views] {chosen}").click()
        page.wait_for_timeout(500)
    for summary in page.locator("main details > summary").all():
        summary.click()
        page.wait_for_timeout(500)
    for more in ("[data-slot=loss-table] button", "[data-slot=pictures-all]", "[data-slot=board-more]"):
        page.locator(more).click()
        page.wait_for_timeout(1000)
    page.locator("[data-palette]").click()
    page.wait_for_timeout(1000)


def rows_of(runs: list[dict[str, list[float]]]) -> list[dict]:
    """The results of several runs: of freezes the longest of all, of all others the median."""
    rows = []
    for name in runs[0]:
        values = [value for run in runs for value in run[name]]
        ours = max(values) if name.startswith("longest freeze") else statistics.median(values)
        rows.append(result(name, "ms", ours, runs=len(values), min=min(values), max=max(values)))
    return rows


def measure_api(port: int) -> list[dict]:
    """Readers and streams at once, in a process of their own."""
    asked = [sys.executable, str(ROOT / "benchmarks" / "page" / "readers.py"), str(port), str(ASKED_SECONDS)]
    told = json.loads(subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout)
    times, states = told["milliseconds"], told["states"]
    words = f"API, {READERS} readers and {STREAMS} streams"
    spread = {"runs": len(times), "min": min(times), "max": max(times)}
    return [
        result(f"{words}: answer, median", "ms", statistics.median(times), **spread),
        result(f"{words}: answer, 95th percentile", "ms", percentile(times, 0.95), **spread),
        result(f"{words}: answers per second", "1/s", len(times) / ASKED_SECONDS),
        result(f"{words}: states streamed per second", "1/s", states / ASKED_SECONDS),
    ]


@contextmanager
def served(folder: Path, site: Path, *, least_priority: bool = False) -> Iterator[tuple[str, dict, list[float]]]:
    """A process that serves the history and observes epochs: its URL, when it observed each epoch, and for how long."""
    port = free_port()
    command = [sys.executable, __file__, "--site", str(site), "--serve", str(folder), "--port", str(port)]
    nice = ["nice", "-n", "19"] if least_priority and shutil.which("nice") else []
    server = subprocess.Popen(nice + command, stdout=subprocess.PIPE, text=True)
    observed: dict[int, float] = {}
    costs: list[float] = []

    def follow() -> None:
        for line in server.stdout:
            told = json.loads(line)
            observed[told["epoch"]] = told["observed_at"]
            costs.append(1000 * told["seconds"])

    threading.Thread(target=follow, daemon=True).start()
    try:
        while not observed:
            time.sleep(0.1)
            if server.poll() is not None:
                raise RuntimeError("The server has ended; its message is above.")
        yield f"http://127.0.0.1:{port}/", observed, costs
    finally:
        server.terminate()
        server.wait()


def run_all(folder: Path, site: Path, runs: int) -> list[dict]:
    """Writes the history, serves it, and measures."""
    print(f"Writing a history of {EPOCHS} epochs and {MEMBERS} members ...", flush=True)
    write_history(folder / "history.sqlite")
    write_picture(folder / "one.png")
    opened, used = [], []
    with served(folder, site, least_priority=True) as (url, _, _):
        for number in range(runs):
            print(f"Opening, run {number + 1} of {runs} (load {os.getloadavg()[0]:.1f}) ...", flush=True)
            opened.append(measure_opening(url))
    with served(folder, site) as (url, observed, costs):
        for number in range(runs):
            print(f"Page, run {number + 1} of {runs} (load {os.getloadavg()[0]:.1f}) ...", flush=True)
            used.append(measure_page(url, observed))
        rows = rows_of(used) + rows_of(opened)
        alone = statistics.median(costs)
        costs.clear()
        print(f"API (load {os.getloadavg()[0]:.1f}) ...", flush=True)
        rows += measure_api(int(url.rstrip("/").rpartition(":")[2]))
        rows.append(result("monitor's observation of an epoch, one reader", "ms", alone))
        rows.append(result("monitor's observation of an epoch, all readers", "ms", statistics.median(costs)))
        return rows


def main() -> int:
    """Measures, prints the table, and writes the JSON if asked; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", default="public", metavar="FOLDER", help="a built site (public)")
    parser.add_argument("--runs", type=int, default=3, help="how often the page is opened (3)")
    parser.add_argument("--json", metavar="FILE", help="also write the results")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    site = Path(chosen.site).absolute()
    if not (site / "dashboard" / "index.html").is_file():
        print(f"Error: {site} holds no built site: run `python site/build.py` first.", file=sys.stderr)
        return 2
    if chosen.serve:
        serve(Path(chosen.serve), site, chosen.port)
    with tempfile.TemporaryDirectory(prefix="dashboard-benchmark-") as folder:
        rows = run_all(Path(folder), site, chosen.runs)
    for row in rows:
        print(f"{row['metric']:<72}{row['ours']:>10.1f} {row['unit']}")
    if chosen.json:
        record(Path(chosen.json), "dashboard", {}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
