"""The response time of the site's figures to a dragged slider: from the slider's event to the new drawing.

    python site/build.py && python benchmarks/page/figures.py
    python benchmarks/page/figures.py --json benchmarks/results/figures.json

After the browser's Python has started, each slider of each figure is moved as by hand, from one end to the other and
back; a move follows when the last one is answered and a frame has passed. For each move two times are measured from the
input event: until the new drawing is in the page (its DOM), the request to the worker included, and until the browser
has drawn the frame that shows it. Frames come every 16.7 ms. CHROMIUM names the browser's program.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "site"), str(ROOT), str(ROOT / "tests" / "site")]

from benchmarks.record import percentile, record, result
from calculator.figures.catalogue import FIGURES
from site_server import SiteServer

FRAME_MS = 16
START_TIMEOUT_MS = 60_000

DRAG = """async ([name, control, moves]) => {
    const figure = document.querySelector(`[data-figure="${name}"]`);
    const slider = figure.querySelector(`[data-control="${control}"]`);
    const drawing = figure.querySelector("[data-slot=drawing]");
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
    const drawn = async () => {
        await frame();
        await new Promise((resolve) => {
            const after = new MessageChannel();
            after.port1.onmessage = resolve;
            after.port2.postMessage(null);
        });
        return performance.now();
    };
    const [low, high, first] = [Number(slider.min), Number(slider.max), slider.value];
    const answers = [];
    const frames = [];
    // A slider with few places is moved to and fro until it has made as many moves as the others.
    const places = Math.round((high - low) / (Number(slider.step) || 1));
    const stride = Math.max(1, Math.round((2 * places) / moves));
    let place = 0;
    let sense = 1;
    while (answers.length < moves) {
        if (place + sense * stride < 0 || place + sense * stride > places) sense = -sense;
        place += sense * stride;
        const before = slider.value;
        slider.value = low + place * (Number(slider.step) || 1);
        if (slider.value === before) continue;
        await frame();
        const answered = new Promise((resolve) => {
            const watch = new MutationObserver(() => {
                watch.disconnect();
                resolve(performance.now());
            });
            watch.observe(drawing, { childList: true });
        });
        const start = performance.now();
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        answers.push((await answered) - start);
        frames.push((await drawn()) - start);
    }
    slider.value = first;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    return { answers, frames };
}"""


def pages_of_figures(built: Path) -> dict[str, str]:
    """Name of a figure -> address of its page."""
    return {
        name: file.relative_to(built).as_posix().removesuffix("index.html")
        for file in sorted(built.rglob("index.html"))
        for name in re.findall(r'data-figure="(\w+)"', file.read_text(encoding="utf-8"))
    }


def measure(page, name: str, moves: int) -> dict[str, list[float]]:
    """Milliseconds of all moves of all sliders of a figure on the open page: until in the page, and until drawn."""
    page.locator(f'[data-figure="{name}"]').dispatch_event("pointerenter")
    page.wait_for_function(
        "name => document.querySelector(`[data-figure=${name}]`).dataset.state === 'shown'",
        arg=name,
        timeout=START_TIMEOUT_MS,
    )
    measured: dict[str, list[float]] = {"answers": [], "frames": []}
    for control in FIGURES[name].controls:
        if (
            page.locator(f'[data-figure="{name}"] [data-control="{control.name}"]').first.get_attribute("type")
            == "range"
        ):
            for kind, times in page.evaluate(DRAG, [name, control.name, moves]).items():
                measured[kind] += times
    return measured


def main() -> int:
    """Measures, prints and, if asked, records; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--site", default=str(ROOT / "public"), metavar="FOLDER", help="the built site (public)")
    arguments.add_argument("--moves", type=int, default=60, metavar="N", help="moves of each slider (60)")
    arguments.add_argument("--json", metavar="FILE", help="record the results")
    chosen = arguments.parse_args()
    built = Path(chosen.site)
    pages = pages_of_figures(built)
    if not pages:
        print(f"Error: {built} has no pages with figures: run `python site/build.py` first.", file=sys.stderr)
        return 2
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("Error: playwright is missing: run `pip install playwright`.", file=sys.stderr)
        return 2
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    rows, every = [], []
    server = SiteServer(built)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        for name, address in pages.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(server.url + address, wait_until="networkidle")
            measured = measure(page, name, chosen.moves)
            every += measured["answers"]
            for kind, what in (("answers", "new drawing in the page"), ("frames", "its frame drawn")):
                times = measured[kind]
                spread = {"runs": len(times), "min": min(times), "max": max(times)}
                rows.append(result(f"{name}: {what}, median", "ms", statistics.median(times), **spread))
                rows.append(result(f"{name}: {what}, 95th percentile", "ms", percentile(times, 0.95), **spread))
            print(f"{name:<14} load {os.getloadavg()[0]:.1f}", flush=True)
            page.close()
        browser.close()
    server.close()
    rows.append(
        result(
            "all figures: new drawing in the page, 95th percentile",
            "ms",
            percentile(every, 0.95),
            runs=len(every),
            min=min(every),
            max=max(every),
        )
    )
    late = sum(time > FRAME_MS for time in every)
    rows.append(result(f"moves answered later than {FRAME_MS} ms", "moves", late, runs=len(every)))
    for row in rows:
        print(f"{row['metric']:<62} {row['ours']:>8.1f} {row['unit']}  ({row['runs']} moves)")
    if chosen.json:
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
        record(Path(chosen.json), "figures", {"chromium": version}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
