"""The published comparison: it reports errors as they are, and the calculator is within the figures it promises."""

import json
from pathlib import Path

import pytest

from benchmarks.memory import memory_accuracy as accuracy
from calculator.step.setups import Setup

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("held_out", [False, True])
def test_errors_are_within_the_promised_figures(held_out):
    steps = [step for step in accuracy.reference_steps() if step["held_out"] == held_out]
    assert len(steps) >= 50
    rows = accuracy.judge(steps, accuracy.ours)
    for figure, (median, p95, worst) in {
        "parameters": (0, 0, 0),
        "saved_activations": (0.5, 0.5, 0.5),
        "peak": (1, 3, 6),
        "host": (3, 3, 3),
    }.items():
        found = accuracy.summary([row[figure] for row in rows if figure in row])
        assert found["median"] <= median and found["p95"] <= p95 and found["worst"] <= worst, figure


def test_a_wrong_calculator_is_shown_as_wrong():
    steps = accuracy.reference_steps()[:4]

    def doubled(setup: Setup):
        return {name: 2 * value for name, value in accuracy.ours(setup).items()}

    rows = accuracy.judge(steps, doubled)
    assert accuracy.summary([row["peak"] for row in rows])["median"] == pytest.approx(100, abs=0.01)
    assert accuracy.error_percent(50, 100) == -50
    assert accuracy.error_percent(1, 0) == 100
    assert accuracy.summary([-4, 1, 2]) == {"median": 2, "p95": 4, "worst": 4}


def test_recorded_result_is_of_these_steps():
    recorded = json.loads((ROOT / "benchmarks/results/memory_accuracy.json").read_text())
    steps = accuracy.reference_steps()
    assert [case["step"] for case in recorded["cases"]] == [accuracy.name_of(step) for step in steps]
