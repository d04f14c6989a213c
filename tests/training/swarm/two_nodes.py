"""Two nodes of hivemind's DHT in the test's own process, of which the second knows the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from training.swarm.engine.process import DHT


def two_nodes() -> Iterator[tuple[DHT, DHT]]:
    """To make a fixture of: `nodes = pytest.fixture(two_nodes)`."""
    with ExitStack() as stack:
        first = DHT(start=True)
        stack.callback(first.shutdown)
        second = DHT(start=True, initial_peers=first.get_visible_maddrs())
        stack.callback(second.shutdown)
        yield first, second
