"""What the demo's language model has learned after ten minutes: the share of stories that it continues without a fault.

    python benchmarks/model/stories.py --json benchmarks/results/stories.json

For each seed of the weights, the command `demo --recipe stories` prepares the stories and trains with three volunteers,
and is stopped ten minutes after its start; `evaluate` then judges the last checkpoint by the grammar's rules, on
openings of training stories, on others, and on those whose thing and colour never occur together in training. Ten
minutes are those of this machine: its load is in the record. Takes a quarter of an hour for each seed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result

PROGRAM = [sys.executable, "-m", "training"]


def judged(seed: int, minutes: float, count: int) -> dict:
    """Trains for so many minutes, preparation included; what `evaluate` says of so many prompts of each kind."""
    from training.recipe import read_recipe

    with tempfile.TemporaryDirectory() as folder:
        recipe, run_dir = Path(folder, "stories.toml"), Path(folder, "run")
        text = read_recipe("stories")
        assert "\nseed = 0\n" in text
        recipe.write_text(text.replace("\nseed = 0\n", f"\nseed = {seed}\n"), encoding="utf-8")
        begun = time.monotonic()
        with Path(folder, "demo.log").open("wb") as log:
            asked = {"--recipe": recipe, "--run-dir": run_dir}
            command = [*PROGRAM, "demo", *(str(word) for flag in asked.items() for word in flag)]
            demo = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                demo.wait(60 * minutes)
            except subprocess.TimeoutExpired:
                demo.send_signal(signal.SIGINT)
                demo.wait(120)
            finally:
                demo.kill()
        trained = min(time.monotonic() - begun, 60 * minutes)
        asked = ["--checkpoint", str(run_dir), "--count", str(count), "--json"]
        done = subprocess.run([*PROGRAM, "evaluate", *asked], cwd=ROOT, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        found["checkpoint"] = Path(found["checkpoint"]).name
        return found | {"trained_seconds": trained, "training_seed": seed}


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each seed and kind, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the weights (0 1 2)")
    parser.add_argument("--minutes", type=float, default=10.0, help="from the start of the demo (10)")
    parser.add_argument("--count", type=int, default=400, help="prompts of each kind (400)")
    flags = parser.parse_args(arguments)
    runs = []
    for seed in flags.seeds:
        runs.append(judged(seed, flags.minutes, flags.count))
        for kind, facts in runs[-1]["kinds"].items():
            low, high = facts["interval"]
            print(f"seed {seed}, epoch {runs[-1]['epoch']}, {kind}: {facts['right']:.1%} ({low:.1%} to {high:.1%})")
    if flags.json:
        results = []
        for kind in runs[0]["kinds"]:
            shares = sorted(run["kinds"][kind]["right"] for run in runs)
            name = f"{kind} openings that are continued without a fault after {flags.minutes:g} minutes"
            ends = {"min": shares[0], "max": shares[-1]}
            results.append(result(name, "", statistics.median(shares), runs=len(runs), **ends))
        versions = {name: version(name) for name in ("torch", "hivemind", "transformers")}
        record(flags.json, "stories", versions, results, courses=runs)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
