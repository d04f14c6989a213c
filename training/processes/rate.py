"""Limit of the bytes a second that several processes send together."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable


class RateLimit:
    """Limit of bytes a second that this process and its later forks send together.

    A message may be sent at once if nothing was sent lately; the next one waits until its turn comes.

    Args:
        bytes_per_second: The limit.
        clock: Returns seconds of a clock that all processes share and that only grows.

    >>> now = [100.0]
    >>> limit = RateLimit(1000, lambda: now[0])
    >>> limit.take(500), limit.take(2000), limit.take(10)
    (0.0, 0.5, 2.5)
    >>> now[0] += 60
    >>> limit.take(500)
    0.0
    """

    def __init__(self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic):
        self._rate, self._clock = bytes_per_second, clock
        self._free_at = multiprocessing.get_context("fork").Value("d", -math.inf)

    def take(self, sent_bytes: float) -> float:
        """Counts bytes that are about to be sent. Returns the seconds to wait before they are."""
        with self._free_at.get_lock():
            now = self._clock()
            begins = max(self._free_at.value, now)
            self._free_at.value = begins + sent_bytes / self._rate
            return begins - now
