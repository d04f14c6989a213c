"""Reads the records of the benchmarks, benchmarks/results/*.json."""

from __future__ import annotations

import json
from functools import cache

from builder.folders import RESULTS


@cache
def record(name: str) -> dict:
    """The whole content of one record, by its file's name without `.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def recorded(name: str) -> list[dict]:
    """The results of a record, by its file's name without `.json`: a dictionary for each figure."""
    return record(name)["results"]
