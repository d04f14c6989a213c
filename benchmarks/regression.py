"""Eight figures of this version compared with the recorded ones; exits with 1 if one is worse than its bound.

    .venv/bin/nox -s bench                      (as root, Linux, quiet machine; about 20 minutes)
    python benchmarks/regression.py --only "model step" estimate

Run it before and after a change in `training/swarm/`, `training/optim/`, `training/model/` or `training/data/`. Each
figure comes from the program that made its record in `benchmarks/results/`, with fewer repetitions. Figures of swarms
hardly depend on the machine, since computing is a sleep there and the links have a fixed rate. The model's step is
measured as a share of the machine's matrix rate, and that of a language model against transformers. The other figures
are in CPU time of the machine of the record: on another one, measure the version before the change as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
THREE = ("--peers", "3", "--newcomers", "0")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure, the program that measures it, and how much worse than its record it may be."""

    program: str
    """File of the program in `benchmarks/`."""
    options: tuple[str, ...]
    record: str
    """Name of the record in `benchmarks/results/`."""
    metric: str
    value: str = "ours"
    """Field of the result: `ours`, or `ratio`, which compares it with its peer in the same run."""
    higher_is_better: bool = False
    bound: float
    """Most that the ratio of the new figure over the recorded one may be; for `higher_is_better`, its reciprocal."""


PAGE = dict(program="page/page.py", options=("--ours-only", "--runs", "3"), record="page")
FIGURES = {
    "swarm of 3": Figure(
        program="swarm/swarm.py",
        options=(*THREE, "--stacks", "ours, delayed", "--epochs", "8"),
        record="swarm",
        metric="3 peers, ours, gradients delayed: seconds an epoch",
        bound=1.05,
    ),
    "death": Figure(
        program="swarm/swarm.py",
        options=(*THREE, "--stacks", "ours", "--epochs", "3", "--death"),
        record="swarm_death",
        metric="3 peers, ours, gradients awaited: seconds to a whole update after a death",
        bound=1.8,  # 2.1 to 4.8 s in thirteen runs
    ),
    "newcomer": Figure(
        program="swarm/swarm.py",
        options=("--peers", "2", "--stacks", "ours", "--epochs", "3", "--newcomers", "3"),
        record="swarm_newcomer",
        metric="2 peers, ours, gradients awaited: newcomer seconds",
        bound=1.5,  # 15 s
    ),
    "model step": Figure(
        program="model/model_step.py",
        options=("--cases", "S", "--ours-only"),
        record="model_step",
        metric="S, micro-batch 1: share of the fp32 matrix rate",
        higher_is_better=True,
        bound=1.1,
    ),
    "language step": Figure(
        program="model/language_step.py",
        options=("--rounds", "2"),
        record="language_step",
        metric="activations kept: forward + backward",
        value="ratio",
        bound=1.1,
    ),
    "stream": Figure(
        program="data/data_stream.py",
        options=("--ours-only", "--only", "whole"),
        record="data_stream",
        metric="samples, shuffled, tokenized, as tensors",
        higher_is_better=True,
        bound=1.3,
    ),
    "estimate": Figure(**PAGE, metric="recompute, worker, nothing known, median", bound=1.5),
    "page": Figure(**PAGE, metric="cold start to a recomputed answer", bound=1.3),
}


def entry(record: dict, metric: str) -> dict:
    """Returns the first result of a record with this metric."""
    return next(one for one in record["results"] if one["metric"] == metric)


def measured(figures: list[Figure], folder: Path) -> dict[tuple, dict]:
    """Runs each program once, and returns its record by program and options."""
    records = {}
    for figure in figures:
        key = figure.program, figure.options
        if key in records:
            continue
        path = folder / f"{len(records)}.json"
        if "--only" in figure.options:  # the program renews a record; without results, no earlier one counts as new
            before = json.loads((RESULTS / f"{figure.record}.json").read_text(encoding="utf-8"))
            path.write_text(json.dumps(before | {"results": []}), encoding="utf-8")
        command = [sys.executable, f"benchmarks/{figure.program}", *figure.options, "--json", str(path)]
        subprocess.run(command, cwd=ROOT, check=True)
        records[key] = json.loads(path.read_text(encoding="utf-8"))
    return records


def main() -> int:
    """Measures, prints the table, and returns the exit code: 1 if a figure is worse than its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES), help="measure these alone")
    chosen = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        records = measured([FIGURES[name] for name in chosen], Path(folder))
    table = Table("figure", "recorded", "now", "worse by", "noise", "bound", title="Now over recorded")
    failed = []
    for name in chosen:
        figure = FIGURES[name]
        record = json.loads((RESULTS / f"{figure.record}.json").read_text(encoding="utf-8"))
        before = entry(record, figure.metric)
        now = entry(records[figure.program, figure.options], figure.metric)
        old, new = before[figure.value], now[figure.value]
        ratio = old / new if figure.higher_is_better else new / old
        noise = (now["max"] - now["min"]) / now["ours"]
        unit = before["unit"] if figure.value == "ours" else f"x {before['peer_name']}"
        failed += [name] if ratio > figure.bound else []
        table.add_row(
            name,
            f"{old:.4g} {unit}",
            f"{new:.4g}",
            f"{ratio - 1:+.1%}",
            f"{noise:.1%}" if now["runs"] > 1 else "one run",
            f"{figure.bound - 1:+.0%}",
            style="red" if name in failed else "",
        )
    Console().print(table)
    if failed:
        print(f"Worse than its bound: {', '.join(failed)}. Measure the version before the change beside this one.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
