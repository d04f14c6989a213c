"""What holds for all tests: nothing that they start outlives them."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from tests.programs import Programs, end_forked_children, guard_tests


def pytest_configure() -> None:
    """Before any test module is imported: some start programs as they are."""
    guard_tests()
    # A busy machine takes longer than hypothesis allows for an example, which is no fault of the code.
    hypothesis.settings.register_profile("busy", deadline=None)
    hypothesis.settings.load_profile("busy")


def pytest_unconfigure() -> None:
    """Also after an interruption."""
    end_forked_children()


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Starts programs that end with the test."""
    with Programs() as started:
        yield started
