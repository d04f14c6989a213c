"""The benchmark of the calculator's speed draws setups that have an answer: a refusal would be a faster estimate."""

import json

from benchmarks.memory import estimate_speed
from calculator import PRESETS
from calculator.__main__ import batch_line


def test_every_line_of_the_batches_is_answered():
    lines = estimate_speed.drawn_lines(list(PRESETS))
    assert len(lines) == estimate_speed.LINES
    assert not [line for line in lines if "error" in json.loads(batch_line(line))]
    assert {json.loads(line)["model"] for line in lines} == set(PRESETS)
