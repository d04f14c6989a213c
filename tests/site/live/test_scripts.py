"""The parts of the site's scripts that need no document: node runs each file below tests/site/scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node import run_node

FOLDER = Path(__file__).parents[1] / "scripts"
FILES = sorted(FOLDER.rglob("*.test.mjs"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_scripts(file):
    ended = run_node("--test", "--test-reporter=tap", file)
    assert ended.returncode == 0, ended.stdout
    written = len(re.findall(r"^test\(", file.read_text(encoding="utf-8"), re.MULTILINE))
    assert re.search(rf"^# pass {written}$", ended.stdout, re.MULTILINE) and written > 0, ended.stdout


def test_every_file_is_run():
    assert len(FILES) >= 9


def test_a_failing_test_is_seen(tmp_path):
    file = tmp_path / "broken.test.mjs"
    file.write_text('import { test } from "node:test";\ntest("fails", () => { throw new Error("as it should"); });\n')
    ended = run_node("--test", "--test-reporter=tap", file)
    assert ended.returncode != 0 and "as it should" in ended.stdout
