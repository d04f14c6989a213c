"""What holds for all tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real peers or a real browser get one more try: a busy machine may miss their deadlines.

    The summary names each test that needed it.
    """
    for item in items:
        if any(item.get_closest_marker(kind) for kind in ("swarm", "browser")):
            item.add_marker(pytest.mark.flaky(reruns=1))
