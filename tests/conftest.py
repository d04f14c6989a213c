"""What holds for all tests: a tier of them runs, and nothing that they start outlives them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

from tests.support.programs import Programs, end_forked_children, guard_tests
from tests.tiers import LONG, is_quick

STATE = tempfile.TemporaryDirectory(prefix="states-", ignore_cleanup_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--quick`."""
    parser.addoption("--quick", action="store_true", help="run the first tier of the tests only, see tests/tiers.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of the tier; those of real peers and of pages start first."""
    marks = {item: {mark.name for mark in item.iter_markers()} for item in items}
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(marks[item])])
        items[:] = [item for item in items if is_quick(marks[item])]
    items.sort(key=lambda item: not marks[item] & LONG)


def pytest_configure() -> None:
    """Before any test module is imported: some start programs as they are."""
    os.environ["XDG_STATE_HOME"] = STATE.name  # volunteers without a folder of their own leave none at home
    os.environ["TRAINING_PAUSE_WHEN"] = "never"  # this machine may run on battery, or be hot
    guard_tests()
    # A busy machine takes longer than hypothesis allows for an example, which is no fault of the code.
    hypothesis.settings.register_profile("busy", deadline=None)
    hypothesis.settings.load_profile("busy")


def pytest_unconfigure() -> None:
    """Also after an interruption."""
    end_forked_children()
    STATE.cleanup()


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Starts programs that end with the test."""
    with Programs() as started:
        yield started
