"""The dashboard of a large run: first paint, live updates and freezes in a browser, and the live API with many readers.

    python site/build.py && python benchmarks/dashboard.py --json benchmarks/results/dashboard.json

The history is written by this program: 1000 members, 30 000 epochs, 40 members at a time, each for 1200 epochs in a row
(1.2 million reports). A second process serves it with the monitor's own application, and observes a new epoch of 40
volunteers every five seconds, as a monitor does. Nothing is compared: no other project has such a page.

- *First paint* is Chromium's first contentful paint of a page that is opened with an empty profile; *run shown* is the
  time until the run's epoch and leaderboard are in the page.
- *Live update* is the time from the monitor's observation to the new epoch in the page: both processes read one clock.
- *Longest freeze* is the longest task of the page's main thread, as PerformanceObserver reports it (those below 50 ms
  are not reported, and count as 0), while the page is opened and while it is updated.
- *API* is the answer time seen by 200 readers, each of which asks for the state every two seconds and for what a page
  asks for at each new epoch, while 200 streams are open.

CHROMIUM names the browser's program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import percentile, record, result  # noqa: E402

MEMBERS, EPOCHS, PRESENT = 1000, 30_000, 40
EVERY_SECONDS = 5.0
"""Time of an epoch, in the history and while it is served."""
UPDATES = 8
READERS, STREAMS, ASKED_SECONDS = 200, 200, 30.0
READER_PAUSE_SECONDS = 2.0
PICTURES_EVERY, PROMPTS = 100, 8

WATCH = """
window.freezes = [];
new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.freezes.push(entry.duration);
}).observe({ type: "longtask", buffered: true });
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
    status: str = "training"
    lineage: str | None = None
    loss: float = 2.0
    samples_per_second: float = 10.0
    seconds: float = 0.0
    recent: tuple = ()


def members_at(epoch: int) -> range:
    """Numbers of the members who are there at an epoch: a new one comes every 30 epochs."""
    newest = min(MEMBERS, PRESENT + epoch * (MEMBERS - PRESENT) // EPOCHS)
    return range(newest - PRESENT, newest)


def write_history(path: Path) -> None:
    """A history of `EPOCHS` epochs until now, written as one transaction."""
    from training.config import load_recipe
    from training.publish.history import History
    from training.publish.live import store_run

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
                yield epoch, f"member-{member:04d}", f"P{member}", 8 / (1 + epoch / 3000), 400

    connection.executemany(
        "INSERT INTO reports (branch, epoch, name, peer_id, loss, samples) VALUES (1, ?, ?, ?, ?, ?)", reports()
    )
    connection.executemany(
        "INSERT INTO epochs (branch, epoch, time, loss, active_peers, samples, samples_per_second) "
        "VALUES (1, ?, ?, ?, ?, ?, ?)",
        (
            (epoch, began + EVERY_SECONDS * epoch, 8 / (1 + epoch / 3000), PRESENT, PRESENT * 400, PRESENT * 80.0)
            for epoch in range(1, EPOCHS + 1)
        ),
    )
    connection.executemany(
        "INSERT INTO peers (name, peer_id, last_seen, active, record_time, samples, seconds, samples_per_second, "
        "since_epoch, since_samples) VALUES (?, ?, ?, ?, 0, ?, 3600, 10, ?, ?)",
        (
            (f"member-{n:04d}", f"P{n}", time.time(), n in members_at(EPOCHS), samples[n], EPOCHS, samples[n])
            for n in range(MEMBERS)
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

    from training.config import load_recipe
    from training.publish.history import History
    from training.publish.live import create_app
    from training.publish.watch import Watch

    run = load_recipe("dalle-2021")
    path = folder / "history.sqlite"
    history = History(path, run_id=run.run_id, recipe_digest=run.digest, expiration_seconds=60)
    with Watch(history, run) as watch:
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
                )
                for n in members_at(EPOCHS)
            ]
            began = time.time()
            history.observe(reports)
            watch.saw(reports)
            print(json.dumps({"epoch": epoch, "observed_at": began, "seconds": time.time() - began}), flush=True)


def measure_page(url: str, observed: dict[int, float]) -> list[dict]:
    """Opens the dashboard, and follows it for some epochs."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        page = browser.new_page()
        page.add_init_script(WATCH)
        page.goto(url + "dashboard/", wait_until="commit")
        page.wait_for_function("document.querySelectorAll('[data-slot=board] tr').length >= 100", timeout=60_000)
        shown = page.evaluate("performance.now()")
        page.wait_for_function("document.querySelector('[data-slot=loss-chart][data-drawn]')", timeout=60_000)
        page.wait_for_timeout(2000)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        opening = max(page.evaluate("window.freezes"), default=0)
        page.evaluate("window.freezes = []")
        first = max(observed, default=EPOCHS)
        while max(observed, default=EPOCHS) < first + UPDATES:
            page.wait_for_timeout(500)
        page.wait_for_timeout(2000)
        updating = max(page.evaluate("window.freezes"), default=0)
        seen = {
            int("".join(filter(str.isdigit, text.split(" of ")[0]))): ms
            for text, ms in page.evaluate("Object.entries(window.seen)")
        }
        browser.close()
    delays = [seen[epoch] - 1000 * observed[epoch] for epoch in observed if epoch in seen and epoch > first]
    return [
        result("first contentful paint", "ms", paint),
        result("run shown", "ms", shown),
        result(
            "live update, median", "ms", statistics.median(delays), runs=len(delays), min=min(delays), max=max(delays)
        ),
        result("longest freeze while the page is opened", "ms", opening),
        result("longest freeze while it is updated", "ms", updating),
    ]


class Reader:
    """One reader's connection: HTTP by hand, because a client library would take more CPU time than the server."""

    def __init__(self, port: int):
        self._port = port
        self._etags: dict[str, str] = {}
        self._opened: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.milliseconds: list[float] = []

    async def ask(self, name: str) -> bytes:
        """The answer to a request for /live/NAME; empty if it has not changed."""
        began = time.monotonic()
        if self._opened is None:
            self._opened = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._opened
        etag = self._etags.get(name, "")
        head = f"GET /live/{name} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nIf-None-Match: {etag}\r\n\r\n"
        writer.write(head.encode())
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines if line)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        self.milliseconds.append(1000 * (time.monotonic() - began))
        if status.split()[1] not in ("200", "304"):
            raise RuntimeError(f"{name}: {status}")
        self._etags[name] = headers["etag"]
        return content

    async def read(self, number: int, until: float) -> None:
        """Asks as a page without a stream does."""
        epoch = None
        await asyncio.sleep(READER_PAUSE_SECONDS * number / READERS)
        while time.monotonic() < until:
            state = await self.ask("state.json")
            now = json.loads(state)["epoch"] if state else epoch
            if now != epoch:
                since = f"since={(epoch or now) - 2}"
                epoch = now
                names = (f"history.json?{since}", f"losses.json?most=24&{since}", "leaderboard.json?most=100")
                for name in (*names, "pictures.json", "events.json"):
                    await self.ask(name)
            await asyncio.sleep(READER_PAUSE_SECONDS)


async def listen(port: int, until: float) -> int:
    """How many states a stream has sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live/events HTTP/1.1\r\nHost: x\r\n\r\n")
    states = 0
    while time.monotonic() < until:
        states += (await reader.readline()).startswith(b"data: ")
    writer.close()
    return states


async def measure_api(port: int) -> list[dict]:
    """Readers and streams at once."""
    until = time.monotonic() + ASKED_SECONDS
    readers = [Reader(port) for _ in range(READERS)]
    _, states = await asyncio.gather(
        asyncio.gather(*(reader.read(number, until) for number, reader in enumerate(readers))),
        asyncio.gather(*(listen(port, until) for _ in range(STREAMS))),
    )
    times = [one for reader in readers for one in reader.milliseconds]
    words = f"API, {READERS} readers and {STREAMS} streams"
    spread = {"runs": len(times), "min": min(times), "max": max(times)}
    return [
        result(f"{words}: answer, median", "ms", statistics.median(times), **spread),
        result(f"{words}: answer, 95th percentile", "ms", percentile(times, 0.95), **spread),
        result(f"{words}: answers per second", "1/s", len(times) / ASKED_SECONDS),
        result(f"{words}: states streamed per second", "1/s", sum(states) / ASKED_SECONDS),
    ]


def run_all(folder: Path, site: Path) -> list[dict]:
    """Writes the history, serves it, and measures."""
    print(f"Writing a history of {EPOCHS} epochs and {MEMBERS} members ...", flush=True)
    write_history(folder / "history.sqlite")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--site", str(site), "--serve", str(folder), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
        url = f"http://127.0.0.1:{port}/"
        print(f"Page (load {os.getloadavg()[0]:.1f}) ...", flush=True)
        rows = measure_page(url, observed)
        alone = statistics.median(costs)
        costs.clear()
        print(f"API (load {os.getloadavg()[0]:.1f}) ...", flush=True)
        rows += asyncio.run(measure_api(port))
        rows.append(result("monitor's observation of an epoch, one reader", "ms", alone))
        rows.append(result("monitor's observation of an epoch, all readers", "ms", statistics.median(costs)))
        return rows
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    """Measures, prints the table, and writes the JSON if asked; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", default="public", metavar="FOLDER", help="a built site (public)")
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
        rows = run_all(Path(folder), site)
    for row in rows:
        print(f"{row['metric']:<72}{row['ours']:>10.1f} {row['unit']}")
    if chosen.json:
        record(Path(chosen.json), "dashboard", {}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
