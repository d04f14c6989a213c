"""The package runs without argparse in the browser, and its examples are true."""

import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import calculator
from tests.programs import run_program

ROOT = Path(calculator.__file__).parent
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(ROOT)], "calculator."))


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
