"""What the benchmarks have recorded."""

from __future__ import annotations

import json
from functools import cache

from builder.folders import RESULTS


@cache
def record(name: str) -> dict:
    """A program's last record, whole."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def recorded(name: str) -> list[dict]:
    """The results of a program's last record."""
    return record(name)["results"]
