"""Quotas of costly requests from other peers: how often, and how many at a time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class Quota:
    """Limits the requests of other peers. Each peer may make a few requests at once, and later one at a time.

    Args:
        at_once: Most requests of all peers together that are open at the same time.
        of_one: Most requests of one peer that are open at the same time.
        seconds: Time after which a peer has one more request.
        in_a_row: Most requests of one peer in quick succession; None: `of_one`.
        clock: Returns seconds; a test passes its own.

    >>> now = [0.0]
    >>> quota = Quota(at_once=3, of_one=2, seconds=10.0, clock=lambda: now[0])
    >>> def ask(peer):
    ...     with quota.request(peer) as allowed:
    ...         return allowed
    >>> [ask("ada"), ask("ada"), ask("ada"), ask("bob")]
    [True, True, False, True]
    >>> now[0] = 10.0
    >>> [ask("ada"), ask("ada")]
    [True, False]
    """

    def __init__(
        self,
        *,
        at_once: float,
        of_one: int,
        seconds: float,
        in_a_row: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once, self._of_one, self._seconds, self._clock = at_once, of_one, seconds, clock
        self._in_a_row = of_one if in_a_row is None else in_a_row
        self._open: Counter[Hashable] = Counter()
        # For each peer the time at which it has all its requests again; the peer that has asked last comes last.
        self._rested_at: dict[Hashable, float] = {}

    @contextmanager
    def request(self, peer: Hashable) -> Iterator[bool]:
        """Opens a request until the end of the `with` block. Yields whether the request is allowed."""
        allowed = self._open.total() < self._at_once and self._open[peer] < self._of_one and self._take(peer)
        if allowed:
            self._open[peer] += 1
        try:
            yield allowed
        finally:
            if allowed:
                self._open[peer] -= 1
                self._open += Counter()  # drops peers that have all their requests again

    @property
    def open(self) -> int:
        """Number of allowed requests that have not ended, of all peers."""
        return self._open.total()

    def _take(self, peer: Hashable) -> bool:
        now = self._clock()
        for other, rested_at in list(self._rested_at.items()):
            if rested_at > now:
                break
            del self._rested_at[other]
        rested_at = max(now, self._rested_at.get(peer, -math.inf)) + self._seconds
        if rested_at > now + self._in_a_row * self._seconds:
            return False
        self._rested_at.pop(peer, None)
        self._rested_at[peer] = rested_at
        return True
