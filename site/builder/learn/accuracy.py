"""The errors of memory calculators for the page Accuracy, as `benchmarks/memory_accuracy.py` recorded them."""

from __future__ import annotations

import html
import json

from builder.benchmark_records import record, recorded
from builder.folders import RESULTS
from builder.markup.tables import table

LATER = RESULTS.parent / "later_steps.json"
"""Training steps that were drawn after the last change of a rule (tests/calculator/test_reference_steps.py)."""

STATISTICS = ("median", "p95", "worst")


def accuracy_table() -> str:
    """HTML table: the errors of each calculator, figure by figure: median, 95th percentile, worst."""
    errors: dict[str, dict[str, list[str]]] = {}
    for result in recorded("memory_accuracy"):
        figure, _, statistic = result["metric"].partition(": ")
        if result["unit"] != "%" or statistic.split()[0] not in STATISTICS:
            continue
        row = errors.setdefault(figure, {})
        row.setdefault("this calculator", [])
        row.setdefault(result["peer_name"], []).append(_percent(result["peer"]))
        # The record repeats our error for each other calculator that has this figure; it is shown once.
        if len(row["this calculator"]) < len(row[result["peer_name"]]):
            row["this calculator"].append(_percent(result["ours"]))
    names = ("this calculator", *dict.fromkeys(name for row in errors.values() for name in list(row)[1:]))
    rows = [
        (html.escape(figure), *(" / ".join(row[name]) if name in row else "–" for name in names))
        for figure, row in errors.items()
    ]
    return table("Errors of memory calculators", ("Error, %", *names), rows, kind="numbers errors")


def worst_cases() -> str:
    """Markdown list: for each calculator the steps at which the error of its peak is largest."""
    lines = []
    for name, cases in record("memory_accuracy")["worst_cases"].items():
        named = [f"{case['step']}: {_percent(case['error_percent'])} %" for case in cases if case["error_percent"]]
        lines.append(f"- **{name}**: " + ("; ".join(named) if named else "no error at any step") + ".")
    return "\n".join(lines)


def accuracy_counts() -> dict[str, int]:
    """How many steps there are, and how many of them were drawn at random, drawn later, or fit EleutherAI's options."""
    cases = record("memory_accuracy")["cases"]
    return {
        "steps": len(cases),
        "held_out": sum(case["held_out"] for case in cases),
        "later": len(json.loads(LATER.read_text(encoding="utf-8"))),
        "eleutherai": sum("EleutherAI cookbook" in case["errors"] for case in cases),
    }


def _percent(value: float) -> str:
    """A number with two significant digits."""
    return "0" if value == 0 else f"{value:.0f}" if value >= 10 else f"{value:.2g}"
