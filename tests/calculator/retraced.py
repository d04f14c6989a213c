"""Traces steps of a record again, by the program that has drawn them."""

import json
import sys
from pathlib import Path

from tests.programs import run_program

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def assert_equal_when_traced_again(steps: list[dict], program: str, folder: Path) -> None:
    """Each figure of each step must be what the program counts now.

    Args:
        steps: Of a record in benchmarks/.
        program: Its name there.
        folder: Empty.
    """
    record = folder / "steps.json"
    record.write_text(json.dumps(steps))
    done = run_program([sys.executable, "-W", "ignore", BENCHMARKS / "memory" / program, "--check", record])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal; peak ") == len(steps), done.stdout
    assert f"{len(steps)} steps traced" in done.stdout
