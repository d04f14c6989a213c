"""The recorded steps of benchmarks/memory/steps, and traces of them by the program that drew them."""

import json
import sys
from pathlib import Path

from tests.support.programs import run_program

MEMORY = Path(__file__).parents[2] / "benchmarks" / "memory"


def steps_of(file: str, *kinds: str) -> list[dict]:
    """Reads the steps of some kinds, or of all, from a file in benchmarks/memory/steps."""
    recorded = json.loads((MEMORY / "steps" / f"{file}.json").read_text(encoding="utf-8"))
    return [step for kind in kinds or recorded for step in recorded[kind]]


def assert_equal_when_traced_again(steps: list[dict], folder: Path) -> None:
    """Compares each figure of recorded steps with what the tracer counts now.

    Args:
        steps: Of one GPU, or of several.
        folder: Empty.
    """
    record = folder / "steps.json"
    record.write_text(json.dumps({"some": steps}))
    program = [sys.executable, "-W", "ignore", MEMORY / "trace_steps.py"]
    done = run_program([*program, "some", "--check", record])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal; peak ") == len(steps), done.stdout
    assert f"{len(steps)} steps traced" in done.stdout
