"""The calculator page compared with a page that uses unmodified Pyodide: start, recomputation, freezes, bytes.

    python site/build.py && python benchmarks/page/page.py
    python benchmarks/page/page.py --runs 11 --ours-only --json page.json

The other page, which this program makes, loads Pyodide's own files on the main thread and calls `runPython` with the
same Python code for every change. Chromium opens both pages in turn, each time with an empty profile. CPU seconds are
those of all processes of the browser from the navigation to the answer; other work on the machine affects them less
than times. CHROMIUM names the browser's program.

A recomputation is timed in four ways, while a script changes the page's controls:
- as a reader notices it: from the control's event until the answer is in the page (its DOM). A second passes between
  two changes, in which the page computes the answers to all setups that one more change could reach;
- the same, but until the frame that shows the answer is drawn; frames come every 16.7 ms;
- in the worker alone, without prepared answers: from sending the request to receiving the answer, timeline included.
  Two controls change at once, to a setup that the page could not prepare;
- the same in a rush: changes follow each other without a pause, so that the page draws one answer while the worker
  computes the next.
For the other page, only the call of `runPython` is timed, which does not show the answer.

The longest freeze is the longest task of the page's main thread, including the promises that it starts, from the
navigation until some seconds after the answer. It is read from the trace that Chromium writes; a debugger's hooks would
add to the tasks. Chromium first shows an empty page for some seconds, because its own start occupies both cores of a
small machine and would make the page's tasks longer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "site"), str(ROOT), str(ROOT / "tests" / "site")]

from benchmarks.page.freezes import page_that_leads_to, tasks_of_opening
from benchmarks.record import percentile, record, result
from site_server import SiteServer

PEER = "unmodified Pyodide"
PYODIDE = ROOT / "node_modules" / "pyodide"
STOCK_FILES = ("pyodide.js", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SNAPSHOT_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "snapshot.wasm")
LIBRARY_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "stdlib.zip", "calculator.zip")
ANSWER_TIMEOUT_S = 90
READERS_PAUSE_MS = 1000
"""Time between two changes. The page uses it to compute answers that may be needed next."""
REST_S = 6
"""Seconds from the start of a browser until it opens the page whose tasks are traced."""
TRACED_S = REST_S + 12
"""Seconds from the start of a browser during which its tasks are traced."""

NAIVE = """<!doctype html><title>Naive</title><p id="answer"></p><script src="/naive/pyodide.js"></script><script>
(async () => {
    const python = await loadPyodide({ indexURL: "/naive/" });
    const sources = await (await fetch("/naive/sources.json")).json();
    for (const [name, text] of Object.entries(sources)) {
        python.FS.mkdirTree("/source/" + name.split("/").slice(0, -1).join("/"));
        python.FS.writeFile("/source/" + name, text);
    }
    python.runPython("import sys; sys.path.append('/source'); from calculator import browser");
    window.recompute = (request) =>
        JSON.parse(python.runPython(`browser.answer(${JSON.stringify(JSON.stringify(request))})`));
    const answer = window.recompute({ setup: { model: "gpt2-large", micro_batch_size: 2 }, gpu: "t4" });
    document.querySelector("#answer").textContent = answer.texts.total;
    window.answeredAt = performance.now();
})();
</script>"""

WATCH = """
window.roundtrips = [];
window.Worker = class extends Worker {
    #asked = new Map();
    constructor(...given) {
        super(...given);
        this.addEventListener("message", ({ data }) => {
            if (this.#asked.has(data.id)) window.roundtrips.push(performance.now() - this.#asked.get(data.id));
        });
    }
    postMessage(data) {
        if (data.ask === "answer") this.#asked.set(data.id, performance.now());
        super.postMessage(data);
    }
};
new MutationObserver(() => {
    const page = document.querySelector("[data-python]");
    if (page?.dataset.state === "shown") window.answeredAt ??= performance.now();
}).observe(document, { subtree: true, childList: true, attributeFilter: ["data-state", "data-python"] });
"""

OURS_RECOMPUTES = """async ([steps, pause]) => {
    const root = document.querySelector("[data-part=calculator]");
    const controls = root.querySelector("[data-slot=form]").elements;
    const times = [];
    const frames = [];
    window.roundtrips = [];
    const drawn = () => new Promise((resolve) => requestAnimationFrame(() => {
        const after = new MessageChannel();
        after.port1.onmessage = () => resolve(performance.now());
        after.port2.postMessage(null);
    }));
    for (const [name, value, together] of steps) {
        const control = controls[name];
        for (const [other, its] of Object.entries(together)) controls[other].value = String(its);
        const shown = new Promise((resolve) => {
            const watch = new MutationObserver(() => {
                if (root.dataset.state !== "shown") return;
                watch.disconnect();
                resolve(performance.now());
            });
            watch.observe(root, { attributeFilter: ["data-state"] });
        });
        if (control.type === "checkbox") control.checked = value;
        else control.value = String(value);
        const before = performance.now();
        control.dispatchEvent(new Event("input", { bubbles: true }));
        times.push((await shown) - before);
        if (!pause) continue;
        frames.push((await drawn()) - before);
        await new Promise((resolve) => setTimeout(resolve, pause));
    }
    return { times, frames, roundtrips: window.roundtrips };
}"""
"""Changes controls of the page one by one, some of them together with others, and returns three lists of milliseconds.

`times` are from the control's event until the answer is in the page, `frames` until it is drawn, and `roundtrips` from
the request to the worker until its answer, timeline included.
"""

NAIVE_RECOMPUTES = """async (requests) => requests.map((request) => {
    const before = performance.now();
    window.recompute(request);
    return performance.now() - before;
})"""


MODELS = ("gpt2-large", "dalle-2021")
STEPS = (
    *(("micro_batch_size", size) for size in (2, 4, 8, 7)),
    *(("optimizer", name) for name in ("lamb", "lamb8bit", "adafactor", "adamw8bit")),
    *(("offload_optimizer", on) for on in (True, False)),
    *(("precision", name) for name in ("fp32", "amp-fp16", "amp-bf16")),
    *(("gpu", name) for name in ("rtx-3090", "a100-80gb")),
)
"""Changes that a reader makes with a model: sizes, techniques on and off, GPUs."""

UNUSUAL = ("dropout", 0.07)
"""A first change to a rare value, after which the page has no prepared answer for the following setups."""

Change = tuple[str, object, dict[str, object]]
"""A control, its new value, and the values of other controls that change at the same time."""


def form_changes(*first: tuple[str, object]) -> list[Change]:
    """A reader's changes, in order: for each model its choice, the changes `first`, and then `STEPS`."""
    return [(*step, {}) for model in MODELS for step in (("model", model), *first, *STEPS)]


def unknown_changes() -> list[Change]:
    """The same changes, each together with another dropout, so that the page can have prepared none of the answers."""
    return [(name, value, {"dropout": 0.2 + place / 1000}) for place, (name, value, _) in enumerate(form_changes())]


def requests() -> list[dict]:
    """The requests to the calculator that follow from `form_changes(UNUSUAL)`."""
    asked, setup, gpu = [], {"optimizer": "adamw8bit"}, "t4"
    for name, value, _ in form_changes(UNUSUAL):
        if name == "gpu":
            gpu = str(value)
        else:
            setup = {**setup, name: value}
        asked.append({"setup": setup, "gpu": gpu})
    return asked


@dataclass
class Measured:
    """Measurements of one page: in each list a number per run, see `METRICS`."""

    cold_cpu: list[float] = field(default_factory=list)
    cold_wall: list[float] = field(default_factory=list)
    warm_cpu: list[float] = field(default_factory=list)
    warm_wall: list[float] = field(default_factory=list)
    warm_requests: list[float] = field(default_factory=list)
    paint: list[float] = field(default_factory=list)
    freeze: list[float] = field(default_factory=list)
    freeze_cpu: list[float] = field(default_factory=list)
    recompute_median: list[float] = field(default_factory=list)
    recompute_p95: list[float] = field(default_factory=list)
    rushed_median: list[float] = field(default_factory=list)
    rushed_p95: list[float] = field(default_factory=list)
    shown_median: list[float] = field(default_factory=list)
    shown_p95: list[float] = field(default_factory=list)
    frame_median: list[float] = field(default_factory=list)
    frame_p95: list[float] = field(default_factory=list)


def cpu_seconds(folder: str) -> float:
    """User and system time of all processes of the browser whose profile is `folder`, ended children included."""
    ticks = 0
    parents: dict[int, int] = {}
    times: dict[int, int] = {}
    roots = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            stat = (process / "stat").read_text().rsplit(")", 1)[1].split()
            if folder.encode() in (process / "cmdline").read_bytes():
                roots.add(int(process.name))
        except OSError:
            continue
        parents[int(process.name)] = int(stat[1])
        times[int(process.name)] = sum(int(stat[place]) for place in (11, 12, 13, 14))
    for process in times:
        ancestor = process
        while ancestor in parents and ancestor not in roots:
            ancestor = parents[ancestor]
        ticks += times[process] if ancestor in roots else 0
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def browser(playwright, origins: list[str], origin: str) -> Iterator[tuple]:
    """A browser with an empty profile, and its profile's folder; appends requests to other origins to `origins`."""
    with tempfile.TemporaryDirectory(prefix="page-benchmark-") as folder:
        context = playwright.chromium.launch_persistent_context(
            folder, executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"), chromium_sandbox=False
        )
        context.on(
            "request",
            lambda request: None if request.url.startswith((origin, "data:", "blob:")) else origins.append(request.url),
        )
        context.add_init_script(WATCH)
        yield context, folder
        context.close()


def open_and_wait(page, folder: str, address: str) -> tuple[float, float]:
    """CPU seconds and milliseconds from the navigation to the answer."""
    page.goto("about:blank")
    time.sleep(0.5)
    before = cpu_seconds(folder)
    page.goto(address, wait_until="commit")
    return cpu_after(page, folder) - before, page.evaluate("window.answeredAt")


def cpu_after(page, folder: str) -> float:
    """Waits until the answer is on the page; the CPU seconds that the browser has used until then."""
    until = time.monotonic() + ANSWER_TIMEOUT_S
    while not page.evaluate("window.answeredAt > 0"):
        if time.monotonic() > until:
            raise TimeoutError(f"The page shows no answer within {ANSWER_TIMEOUT_S} s.")
        time.sleep(0.05)
    return cpu_seconds(folder)


def measure(playwright, server: SiteServer, address: str, into: Measured, origins: list[str], *, ours: bool) -> None:
    """Measures one page once: a cold start, a warm start, and a reader's changes."""
    with browser(playwright, origins, server.url) as (context, folder):
        page = context.pages[0]
        cpu, wall = open_and_wait(page, folder, server.url + address)
        into.cold_cpu.append(cpu)
        into.cold_wall.append(wall)
        page.wait_for_timeout(1000)
        into.paint.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"))
        if ours:
            kept = "caches.open('named-by-content').then((cache) => cache.keys()).then((keys) => keys.length)"
            until = time.monotonic() + ANSWER_TIMEOUT_S
            while page.evaluate(kept) < len(SNAPSHOT_FILES) and time.monotonic() < until:
                time.sleep(0.2)
        open_and_wait(page, folder, server.url + address)
        asked = len(server.requests)
        cpu, wall = open_and_wait(page, folder, server.url + address)
        into.warm_cpu.append(cpu)
        into.warm_wall.append(wall)
        runtime = [path for path in server.requests[asked:] if path.startswith(("/runtime/", "/naive/py"))]
        into.warm_requests.append(len(runtime))
        if ours:
            timed = page.evaluate(OURS_RECOMPUTES, [form_changes(), READERS_PAUSE_MS])
            into.shown_median.append(statistics.median(timed["times"]))
            into.shown_p95.append(percentile(timed["times"], 0.95))
            into.frame_median.append(statistics.median(timed["frames"]))
            into.frame_p95.append(percentile(timed["frames"], 0.95))
            times = _roundtrips(page, unknown_changes(), READERS_PAUSE_MS)
            rushed = _roundtrips(page, form_changes(UNUSUAL), 0)
            into.rushed_median.append(statistics.median(rushed))
            into.rushed_p95.append(percentile(rushed, 0.95))
        else:
            times = page.evaluate(NAIVE_RECOMPUTES, requests())
        into.recompute_median.append(statistics.median(times))
        into.recompute_p95.append(percentile(times, 0.95))


def _roundtrips(page, changes: list[Change], pause: int) -> list[float]:
    """Milliseconds from each question to the worker until its answer."""
    times = page.evaluate(OURS_RECOMPUTES, [changes, pause])["roundtrips"]
    assert len(times) > len(changes) / 2, "the page had prepared most answers, so the worker was not asked"
    return times


def longest_task(server: SiteServer, address: str, script: str) -> tuple[float, float]:
    """Longest task, in ms by the clock and in ms of CPU time, of the main thread that runs `script`."""
    server.files["/at-rest.html"] = page_that_leads_to(f"/{address}", REST_S).encode()
    tasks = tasks_of_opening(f"{server.url}at-rest.html", address, script, seconds=TRACED_S)
    return max(task.wall_ms for task in tasks), max(task.cpu_ms for task in tasks)


def naive_files() -> dict[str, bytes]:
    """The files of the other page: address -> content."""
    sources = {}
    for file in (ROOT / "calculator").rglob("*.py"):
        sources[file.relative_to(ROOT).as_posix()] = file.read_text(encoding="utf-8")
    files = {f"/naive/{name}": (PYODIDE / name).read_bytes() for name in STOCK_FILES}
    files["/naive/sources.json"] = json.dumps(sources).encode()
    files["/naive/index.html"] = NAIVE.encode()
    return files


def brotli_bytes(files: list[Path]) -> int | None:
    """Sum of the files' sizes after the strongest compression; None if the package brotli is missing."""
    try:
        import brotli  # noqa: F401
    except ImportError:
        return None
    return sum(_compressed(file.read_bytes()) for file in files)


@lru_cache(maxsize=16)
def _compressed(content: bytes) -> int:
    import brotli

    return len(brotli.compress(content, quality=11, lgwin=24))


def sizes(built: Path, *, peer: bool) -> list[dict]:
    """Results for the compressed sizes of the files that a browser downloads for its first answer."""
    (runtime,) = (built / "runtime").iterdir()
    other = brotli_bytes([PYODIDE / name for name in STOCK_FILES]) if peer else None
    rows = []
    for metric, names in (("with the snapshot", SNAPSHOT_FILES), ("without it", LIBRARY_FILES)):
        size = brotli_bytes([runtime / name for name in names])
        if size is None:
            print("Sizes are omitted, because brotli is missing: run `pip install brotli`.", file=sys.stderr)
            return []
        rows.append(
            result(
                f"bytes of the runtime, brotli, {metric}",
                "MB",
                size / 1e6,
                peer=other and other / 1e6,
                peer_name=PEER if other else None,
            )
        )
    return rows


def table(rows: list[dict]) -> str:
    """The results as a table to print."""
    lines = [f"{'':<52}{'ours':>12}{'[min - max]':>22}{PEER:>22}{'ratio':>8}"]
    for row in rows:
        spread = f"[{row['min']:.2f} - {row['max']:.2f}]"
        peer = "" if row["peer"] is None else f"{row['peer']:.2f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(f"{row['metric'] + ', ' + row['unit']:<52}{row['ours']:>12.2f}{spread:>22}{peer:>22}{ratio:>8}")
    return "\n".join(lines)


METRICS = (
    ("cold start to a recomputed answer", "CPU s", "cold_cpu"),
    ("cold start to a recomputed answer", "ms", "cold_wall"),
    ("warm start", "CPU s", "warm_cpu"),
    ("warm start", "ms", "warm_wall"),
    ("requests for the runtime at a warm start", "requests", "warm_requests"),
    ("first contentful paint", "ms", "paint"),
    ("longest freeze of the page", "ms", "freeze"),
    ("longest freeze of the page, CPU time alone", "ms", "freeze_cpu"),
    ("recompute, a reader's changes, median", "ms", "shown_median"),
    ("recompute, a reader's changes, 95th percentile", "ms", "shown_p95"),
    ("the same until its frame is drawn, median", "ms", "frame_median"),
    ("the same until its frame is drawn, 95th percentile", "ms", "frame_p95"),
    ("recompute, worker, nothing known, median", "ms", "recompute_median"),
    ("recompute, worker, nothing known, 95th percentile", "ms", "recompute_p95"),
    ("the same in a rush, median", "ms", "rushed_median"),
    ("the same in a rush, 95th percentile", "ms", "rushed_p95"),
)
"""Name of a figure, its unit, and its field of `Measured`."""


def _rows(ours: Measured, peer: Measured) -> list[dict]:
    """Results: the median of each metric, and that of the other page if it was measured."""
    rows = []
    for metric, unit, name in METRICS:
        values, others = getattr(ours, name), getattr(peer, name)
        rows.append(
            result(
                metric,
                unit,
                statistics.median(values),
                peer=statistics.median(others) if others else None,
                peer_name=PEER if others else None,
                runs=len(values),
                min=min(values),
                max=max(values),
            )
        )
    return rows


def main() -> int:
    """Measures both pages, prints the table, and writes the JSON if asked; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--site", default="public", metavar="FOLDER", help="a built site (public)")
    arguments.add_argument("--runs", type=int, default=5, help="runs of each page (5)")
    arguments.add_argument("--ours-only", action="store_true", help="omit the other page")
    arguments.add_argument("--json", metavar="FILE", help="also write the results")
    chosen = arguments.parse_args()
    built = Path(chosen.site)
    if not (built / "calculator" / "index.html").is_file():
        print(f"Error: {built} holds no built site: run `python site/build.py` first.", file=sys.stderr)
        return 2
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("Error: playwright is missing: run `pip install playwright`.", file=sys.stderr)
        return 2

    ours, peer, origins = Measured(), Measured(), []
    server = SiteServer(built)
    server.files = {} if chosen.ours_only else naive_files()
    version = ""
    with sync_playwright() as playwright:
        for number in range(chosen.runs):
            print(f"Run {number + 1} of {chosen.runs} (load {os.getloadavg()[0]:.1f}) ...", flush=True)
            measure(playwright, server, "calculator/?micro_batch_size=2", ours, origins, ours=True)
            pages = [(ours, "calculator/?micro_batch_size=2", "javascripts/site.mjs")]
            if not chosen.ours_only:
                measure(playwright, server, "naive/index.html", peer, origins, ours=False)
                pages.append((peer, "naive/index.html", "naive/pyodide.js"))
            for measured, address, script in pages:
                wall, cpu = longest_task(server, address, script)
                measured.freeze.append(wall)
                measured.freeze_cpu.append(cpu)
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
    server.close()

    rows = _rows(ours, peer)
    rows += sizes(built, peer=not chosen.ours_only)
    rows.append(result("requests to other origins", "requests", len(origins)))
    print(table(rows))
    if chosen.json:
        record(Path(chosen.json), "page", {"chromium": version}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
