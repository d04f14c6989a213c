"""Functions of the site's scripts are small enough to be read at a glance."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from node import ROOT, run_node

MOST_LINES = 60

MEASURE = Path(__file__).parents[1] / "scripts" / "sizes.mjs"
SCRIPTS = sorted(file for kind in ("*.mjs", "*.js") for file in (ROOT / "site").rglob(kind))


def functions_of(*files: Path) -> list[tuple[str, int, str, int]]:
    """File, line, name and lines of every function."""
    ended = run_node(MEASURE, *files)
    assert ended.returncode == 0, ended.stdout
    return [tuple(row) for row in json.loads(ended.stdout)]


@cache
def measured() -> list[tuple[str, int, str, int]]:
    """Every function of the site's scripts."""
    return functions_of(*SCRIPTS)


def test_every_script_is_measured():
    names = {file.relative_to(ROOT / "site").as_posix() for file in SCRIPTS}
    assert {"javascripts/calculator/page.mjs", "builder/assets/runtime.mjs", "builder/steps/service-worker.js"} <= names
    assert {file for file, *_ in measured()} == set(map(str, SCRIPTS))


def test_no_function_is_long():
    assert [row for row in measured() if row[3] > MOST_LINES] == []
