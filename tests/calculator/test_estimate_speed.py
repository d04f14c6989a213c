"""The benchmark of the calculator's speed draws setups that have an answer: a refusal would be a faster estimate."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from calculator import PRESETS
from calculator.__main__ import batch_line

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def benchmark():
    path = list(sys.path)
    sys.path.insert(0, BENCHMARKS)
    yield importlib.import_module("estimate_speed")
    sys.path[:] = path


def test_every_line_of_the_batches_is_answered(benchmark):
    lines = benchmark.drawn_lines(list(PRESETS))
    assert len(lines) == benchmark.LINES
    assert not [line for line in lines if "error" in json.loads(batch_line(line))]
    assert {json.loads(line)["model"] for line in lines} == set(PRESETS)
