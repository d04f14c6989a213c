"""The calculator page compared with a page that uses unmodified Pyodide: start, recomputation, freezes, bytes.

    python site/build.py && python benchmarks/page.py
    python benchmarks/page.py --runs 11 --ours-only --json page.json

The other page loads Pyodide's own files with a script, on the main thread, and runs the same Python for every change
with `runPython`; it is made here. Both are opened in turn by one Chromium, each time with an empty profile. CPU seconds
are those of all of the browser's processes from the navigation to the answer: other work on the machine moves them
least. CHROMIUM names the browser's program.

A recomputation is timed in four ways, by changes of the page's own controls:
- what a reader feels: a second passes between two changes, in which the page works out what is one change away; from
  the control's event until the answer stands in the page (its DOM);
- the same until the frame that shows it was drawn; frames come every 16.7 ms;
- the worker's part, with nothing known: again a second passes, but each time two controls change at once, to a setup
  that was not worked out ahead; from the question's leaving to its answer's arrival, timeline included;
- the same in a rush: changes follow each other at once, so that the page draws the last answer meanwhile.
The other page's is the call of `runPython` alone, hot, which shows nothing.

The longest freeze is the longest task of the page's main thread, with what its promises start, from the navigation
until the computed answer and some seconds more, by the trace that Chromium writes of itself: no debugger watches, whose
hooks would count as well. First Chromium shows an empty page and comes to rest, as a reader's browser is when a link is
followed; its own start takes both cores of a small machine, and would count for the page.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "site"), str(ROOT), str(ROOT / "tests" / "site"), str(ROOT / "benchmarks")]

from memory_report import percentile, record, result  # noqa: E402

from site_server import SiteServer  # noqa: E402

PEER = "unmodified Pyodide"
PYODIDE = ROOT / "node_modules" / "pyodide"
STOCK_FILES = ("pyodide.js", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SNAPSHOT_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "snapshot.wasm")
LIBRARY_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "stdlib.zip", "calculator.zip")
ANSWER_TIMEOUT_S = 90
READERS_PAUSE_MS = 1000
"""Time between two changes. The page uses it to compute answers that may be needed next."""
REST_S = 6
"""From the start of a browser until it is sent to the page whose tasks are watched."""
OPENING_US = 500_000
"""Before the page is named in a task; what the empty page did was seconds ago."""
TRACED_S = REST_S + 12
"""From the start of a browser: so long its tasks are watched."""

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
    const controls = root.querySelector("form").elements;
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
"""Changes the page's own controls, and `together` with each some others. `roundtrips` are from the question to the
worker until its answer, timeline included; `times` from the reader's event until the page shows the answer, `frames`
until that is drawn."""

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
"""What a reader does with a model: sizes, techniques on and off, GPUs."""


UNUSUAL = ("dropout", 0.07)
"""First changes, after which none of the following setups has been computed before."""

Change = tuple[str, object, dict[str, object]]
"""A control, its value, and what changes together with it."""


def form_changes(*first: tuple[str, object]) -> list[Change]:
    """What a reader does, in order, after some first changes for each model."""
    return [(*step, {}) for model in MODELS for step in (("model", model), *first, *STEPS)]


def unknown_changes() -> list[Change]:
    """The same, each with a dropout of its own: nothing of it was asked, and none is one change away."""
    return [(name, value, {"dropout": 0.2 + place / 1000}) for place, (name, value, _) in enumerate(form_changes())]


def requests() -> list[dict]:
    """The changes of which nothing is known, as the requests that they lead to."""
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
    """Figures of one page, a number a run."""

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
    """A fresh profile; origins other than the server's that are asked for anything are noted."""
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
    """CPU seconds of the browser when the answer stands on the page."""
    until = time.monotonic() + ANSWER_TIMEOUT_S
    while not page.evaluate("window.answeredAt > 0"):
        if time.monotonic() > until:
            raise TimeoutError(f"no answer within {ANSWER_TIMEOUT_S} s")
        time.sleep(0.05)
    return cpu_seconds(folder)


def measure(playwright, server: SiteServer, address: str, into: Measured, origins: list[str], *, ours: bool) -> None:
    """One run: cold, then warm, then the changes of a reader."""
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
    assert len(times) > len(changes) / 2, "answers were known before they were asked"
    return times


def page_that_leads_to(server: SiteServer, address: str) -> str:
    """URL of an empty page that goes on to the address after a rest."""
    refresh = f"<!doctype html><title>At rest</title><meta http-equiv=refresh content='{REST_S};url=/{address}'>"
    server.files["/at-rest.html"] = refresh.encode()
    return f"{server.url}at-rest.html"


def longest_task(server: SiteServer, address: str, script: str) -> tuple[float, float]:
    """Longest task in ms of the main thread that runs `script`, in a fresh profile: by the clock and in CPU time."""
    # The browser's children may still write when it has ended.
    with tempfile.TemporaryDirectory(prefix="page-benchmark-", ignore_cleanup_errors=True) as folder:
        trace = Path(folder, "trace.json")
        program = subprocess.Popen(
            [
                os.environ.get("CHROMIUM") or shutil.which("chromium"),
                "--headless=new",
                "--no-sandbox",
                "--no-first-run",
                "--disable-gpu",
                f"--user-data-dir={folder}/profile",
                "--trace-startup=toplevel,devtools.timeline",
                f"--trace-startup-file={trace}",
                f"--trace-startup-duration={TRACED_S}",
                "--trace-startup-format=json",
                page_that_leads_to(server, address),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            events = _written(trace)
        finally:
            program.terminate()
            program.wait()
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    spans = [event for event in events if event.get("ph") == "X" and (event["pid"], event["tid"]) in mains]
    shown = {span["pid"] for span in spans if script in json.dumps(span.get("args", {}))}
    opened = min(span["ts"] for span in spans if address in json.dumps(span.get("args", {}))) - OPENING_US
    freezes = [_freezes([span for span in spans if span["pid"] == pid and span["ts"] > opened]) for pid in shown]
    walls, cpus = zip(*(freeze for of_process in freezes for freeze in of_process), strict=True)
    return max(walls) / 1000, max(cpus) / 1000


def _freezes(spans: list[dict]) -> list[tuple[int, int]]:
    """Microseconds, by the clock and in CPU time, of each task of a thread together with what its promises start.

    Chromium traces the latter beside the task, right after it; in the page that runs Python on its main thread, that is
    where Python starts.
    """
    freezes: list[tuple[int, int]] = []
    ended = 0
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        if span["ts"] < ended:
            continue  # within the one before
        wall, cpu = span["dur"], span.get("tdur", 0)
        if span["name"].endswith("PerformMicrotaskCheckpoint") and freezes:
            freezes[-1] = (freezes[-1][0] + wall, freezes[-1][1] + cpu)
        else:
            freezes.append((wall, cpu))
        ended = span["ts"] + span["dur"]
    return freezes


def _written(trace: Path) -> list[dict]:
    """Chromium's trace, when it is whole."""
    until = time.monotonic() + TRACED_S + ANSWER_TIMEOUT_S
    while time.monotonic() < until:
        time.sleep(0.5)
        try:
            return json.loads(trace.read_text())["traceEvents"]
        except (OSError, ValueError):
            continue
    raise TimeoutError("Chromium wrote no trace")


def naive_files() -> dict[str, bytes]:
    """Address -> content of the other page."""
    sources = {}
    for file in (ROOT / "calculator").rglob("*.py"):
        sources[file.relative_to(ROOT).as_posix()] = file.read_text(encoding="utf-8")
    files = {f"/naive/{name}": (PYODIDE / name).read_bytes() for name in STOCK_FILES}
    files["/naive/sources.json"] = json.dumps(sources).encode()
    files["/naive/index.html"] = NAIVE.encode()
    return files


def brotli_bytes(files: list[Path]) -> int | None:
    """Sum of the sizes after the strongest compression; None where the package is missing."""
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
    """What is sent for a first answer."""
    (runtime,) = (built / "runtime").iterdir()
    other = brotli_bytes([PYODIDE / name for name in STOCK_FILES]) if peer else None
    rows = []
    for metric, names in (("with the snapshot", SNAPSHOT_FILES), ("without it", LIBRARY_FILES)):
        size = brotli_bytes([runtime / name for name in names])
        if size is None:
            print("Sizes are left out: brotli is missing (pip install brotli).", file=sys.stderr)
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
    """For people."""
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
"""What is measured of a page: its name, its unit, and where `Measured` has it."""


def _rows(ours: Measured, peer: Measured) -> list[dict]:
    """The median of each metric, beside the other page's where that was measured."""
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
    """Measures; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--site", default="public", metavar="FOLDER", help="a built site (public)")
    arguments.add_argument("--runs", type=int, default=5, help="runs of each page (5)")
    arguments.add_argument("--ours-only", action="store_true", help="leave the other page out")
    arguments.add_argument("--json", metavar="FILE", help="write the results there")
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
