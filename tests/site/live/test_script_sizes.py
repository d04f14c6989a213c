"""Functions of the site's scripts are small enough to be read at a glance."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from node import ROOT, run_node

MOST_LINES = 60
MEDIAN_LINES, NINE_TENTHS_LINES = 7, 25
"""Half of all functions have at most so many lines, and nine in ten."""

MEASURE = Path(__file__).parents[1] / "scripts" / "sizes.mjs"
SCRIPTS = sorted(file for kind in ("*.mjs", "*.js") for file in (ROOT / "site").rglob(kind))

TRICKY = r"""// function inAComment() {
const text = "function inAString() {" + '}' + `${((a) => {
  return `}${a}`;
})(1)}`;
const pattern = /[/}"`]function inAPattern\(\) {/;
export default async function* four(a = { b() {} }) {
  yield a / 2 /
    1;
}
class Some {
  #field = () => /}/;
  get three() {
    return 1 / this.#field;
  }
}
const five = ({ a = "}" }) => [
  // }
  a,
  text, pattern, Some,
];
"""


def functions_of(*files: Path) -> list[tuple[str, int, str, int]]:
    """File, line, name and lines of every function."""
    ended = run_node(MEASURE, *files)
    assert ended.returncode == 0, ended.stdout
    return [tuple(row) for row in json.loads(ended.stdout)]


@cache
def measured() -> list[tuple[str, int, str, int]]:
    """Every function of the site's scripts."""
    return functions_of(*SCRIPTS)


def test_the_measure_is_not_misled_by_strings_comments_and_patterns(tmp_path):
    (tmp_path / "tricky.mjs").write_text(TRICKY)
    found = [(line, name, lines) for _, line, name, lines in functions_of(tmp_path / "tricky.mjs")]
    assert found == [(2, "text", 3), (6, "four", 4), (6, "b", 1), (11, "field", 1), (12, "three", 3), (16, "five", 5)]


def test_every_script_is_measured():
    names = {file.relative_to(ROOT / "site").as_posix() for file in SCRIPTS}
    assert {"javascripts/calculator/page.mjs", "builder/assets/runtime.mjs", "builder/steps/service-worker.js"} <= names
    assert {file for file, *_ in measured()} == set(map(str, SCRIPTS))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.relative_to(ROOT / "site").as_posix())
def test_no_function_is_long(script):
    long = [(line, name, lines) for file, line, name, lines in measured() if file == str(script) and lines > MOST_LINES]
    assert not long, f"more than {MOST_LINES} lines: {long}"


def test_most_functions_are_short():
    lines = sorted(row[3] for row in measured())
    assert lines[len(lines) // 2] <= MEDIAN_LINES
    assert lines[len(lines) * 9 // 10] <= NINE_TENTHS_LINES
