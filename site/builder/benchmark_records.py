"""Reads the records of the benchmarks, benchmarks/results/*.json."""

from __future__ import annotations

import json
import subprocess
from functools import cache

from builder.folders import RESULTS, ROOT

MEASURED = {
    "attacks": ("training/swarm",),
    "data": ("training/data",),
    "memory": ("calculator",),
    "model": ("training/model", "training/optim"),
    "page": ("site/javascripts", "site/builder"),
    "swarm": ("training/swarm",),
}
"""Folders of the code that the programs of a folder of benchmarks measure."""


@cache
def record(name: str) -> dict:
    """The whole content of one record, by its file's name without `.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def recorded(name: str) -> list[dict]:
    """The results of a record, by its file's name without `.json`: a dictionary for each figure."""
    return record(name)["results"]


@cache
def age(name: str, folder: str) -> tuple[str, int] | None:
    """The commit that last wrote a record, and the number of later commits that changed the code which it measures.

    Args:
        name: Of the record's file, without `.json`.
        folder: Of benchmarks, which has the record's program.

    Returns:
        None without the history of the repository, as in a shallow clone.
    """
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return None
    commit = _git("log", "-1", "--format=%h", "--", f"benchmarks/results/{name}.json")
    return (commit, int(_git("rev-list", "--count", f"{commit}..HEAD", "--", *MEASURED[folder]))) if commit else None


def _git(*arguments: str) -> str:
    """The answer of git; empty if it is not installed, or if this is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
