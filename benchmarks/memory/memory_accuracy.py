"""The errors of the memory calculator on traced steps of real model code (steps/reference.json).

    python benchmarks/memory/memory_accuracy.py --json benchmarks/results/memory_accuracy.json

Some steps were chosen by hand; the others were drawn at random after the calculator was written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import error_percent, record, result, summary
from calculator import Setup, estimate
from calculator.step.setups import setup_from

STEPS = Path(__file__).parent / "steps" / "reference.json"
FIGURES = {
    "parameters": "parameter count",
    "saved_activations": "activations kept for backward",
    "peak": "peak on the GPU",
    "optimizer_state": "optimizer state on the GPU",
    "gradients": "gradients",
    "host": "host memory with offload",
}


def reference_steps() -> list[dict]:
    """Reads the steps that were chosen, then those that were drawn, each with `held_out`."""
    steps = json.loads(STEPS.read_text(encoding="utf-8"))
    return [{**step, "held_out": kind == "held-out"} for kind in ("chosen", "held-out") for step in steps[kind]]


def true_figures(step: dict) -> dict[str, float]:
    """Takes the counted sizes of a step; host memory only if the optimizer is offloaded."""
    figures = {
        "parameters": step["parameters"],
        "saved_activations": step["saved_activations"],
        "peak": step["peak"],
        "optimizer_state": step["optimizer_state_bytes"],
        "gradients": step["gradient_bytes"],
    }
    return figures | ({"host": step["host_total"]} if step["setup"].get("offload_optimizer") else {})


def ours(setup: Setup) -> dict[str, float]:
    """Takes the calculator's answer."""
    answer = estimate(setup)
    return {
        "parameters": answer.parameters,
        "saved_activations": answer.saved_activations,
        "peak": answer.gpu.total,
        "optimizer_state": answer.optimizer_state_bytes,
        "gradients": answer.gradient_bytes,
        "host": answer.host.total,
    }


def judge(steps: list[dict], answer: Callable[[Setup], dict[str, float]]) -> list[dict[str, float]]:
    """Computes the errors of a calculator's figures in percent, for each step."""
    rows = []
    for step in steps:
        predicted, true = answer(setup_from(step["setup"])), true_figures(step)
        rows.append({figure: error_percent(predicted[figure], true[figure]) for figure in true})
    return rows


def name_of(step: dict) -> str:
    """Describes a step in a few words."""
    setup = dict(step["setup"])
    model = setup.pop("model", None) or f"{setup.pop('config')['model_type']} of a few layers"
    words = [str(setup[key]) for key in ("precision", "attention", "optimizer") if key in setup]
    words += [f"batch {setup['micro_batch_size']}"]
    every = setup.get("checkpointing")
    words += [f"every {every}th block" if every is not True else "checkpointing"] * bool(every)
    words += [f"{setup.get('shared_groups')} shared groups"] * bool(setup.get("shared_groups"))
    words += ["offload"] * bool(setup.get("offload_optimizer"))
    return ", ".join([model, *words])


def _table(title: str, rows: list[dict[str, float]]) -> None:
    print(f"\n{title}: {len(rows)} steps; errors in %")
    print(f"  {'':<32}{'steps':>6}{'median':>10}{'95th pct':>10}{'worst':>10}")
    for figure, words in FIGURES.items():
        errors = [row[figure] for row in rows if figure in row]
        s = summary(errors)
        print(f"  {words:<32}{len(errors):>6}{s['median']:>10.3f}{s['p95']:>10.3f}{s['worst']:>10.3f}")


def _results(rows: list[dict[str, float]]) -> list[dict]:
    results = []
    for figure, words in FIGURES.items():
        errors = [row[figure] for row in rows if figure in row]
        runs = {"runs": len(errors), "min": min(errors), "max": max(errors)}
        found = summary(errors)
        results += [result(f"{words}: {name} error", "%", found[name], **runs) for name in ("median", "p95", "worst")]
    return results


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    flags = parser.parse_args(arguments)
    steps = reference_steps()
    rows = judge(steps, ours)
    _table("all", rows)
    _table("drawn at random", [row for row, step in zip(rows, steps, strict=True) if step["held_out"]])
    if flags.json:
        cases = [
            {"step": name_of(step), "held_out": step["held_out"], "errors": row}
            for step, row in zip(steps, rows, strict=True)
        ]
        versions = {"transformers": "5.23 (of the steps)", "torch": "2.13 (of the steps)"}
        record(flags.json, "memory_accuracy", versions, _results(rows), cases=cases)


if __name__ == "__main__":
    main()
