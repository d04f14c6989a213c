"""Two tiers of tests: `pytest --quick` runs the first one (`nox -s tests`), plain `pytest` runs all (`nox -s all`).

The quick tier runs each test that has none of the `SLOW` marks, and each test marked `smoke` whatever else marks it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

SLOW = frozenset({"swarm", "programs", "browser", "exhaustive"})
"""Marks of tests that only `nox -s all` runs; pyproject.toml says what each means."""
LONG = frozenset({"swarm", "browser"})
"""Marks of the tests that take longest, which start first."""


def is_quick(marks: set[str]) -> bool:
    """Returns whether the quick tier runs a test with these marks."""
    return "smoke" in marks or not marks & SLOW


def sample(cases: Iterable, *, every: int) -> list:
    """Marks as `exhaustive` all parameters of a test but each `every`-th, which the quick tier runs."""
    return [
        case if index % every == 0 else pytest.param(case, marks=pytest.mark.exhaustive)
        for index, case in enumerate(cases)
    ]
