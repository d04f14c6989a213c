"""The package runs without argparse in the browser, and its examples are true."""

import ast
import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import calculator
from tests.support.programs import run_program

ROOT = Path(calculator.__file__).parent
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(ROOT)], "calculator."))


FOLDERS = ("models", "tape", "families", "parts", "step", "choose", "swarm", "reports", "page", "figures", "exercises")
"""From the bottom to the top: a file imports from its own folder and from those before it."""
DOORS = {"__init__.py", "__main__.py", "browser.py", "errors.py", "units.py"}
MOST_FILES = 12


def test_files_stand_in_folders_of_a_dozen():
    assert {path.name for path in ROOT.glob("*.py")} == DOORS
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} - {"__pycache__"} == set(FOLDERS)
    counts = {folder: len(list(folder.glob("*.py"))) for folder in ROOT.rglob("*") if folder.is_dir()}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_import_downwards(folder):
    allowed = {*FOLDERS[: FOLDERS.index(folder) + 1], "errors", "units"}
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "calculator":
                names = [f"{node.module}.{alias.name}".split(".")[1] for alias in node.names]
                assert set(names) <= allowed, f"{path.relative_to(ROOT)} imports {node.module}"


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_page_needs_no_command_line():
    """What the page imports: no argparse, no process, no socket."""
    program = (
        "import sys; import calculator.browser; "
        "print([name for name in ('argparse', 'subprocess', 'socket', 'torch') if name in sys.modules])"
    )
    done = run_program([sys.executable, "-c", program])
    assert done.stdout.strip() == "[]", done.stderr
