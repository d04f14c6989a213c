"""Clocks that nobody can set: the time since the machine was started, and the time that it has slept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

LEAST_SLEEP_SECONDS = 15.0
"""Shortest sleep that counts: connections and other peers outlast a shorter one."""


def seconds_since_boot() -> float:
    """Seconds since the machine was started, those of its sleep included.

    `time.monotonic` stands still while the machine sleeps. Linux has `CLOCK_BOOTTIME` for the time that goes on, and
    macOS `CLOCK_MONOTONIC_RAW`.
    """
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Sleep:
    """Notices that the machine has slept, by a clock that goes on meanwhile and one that stands still.

    Args:
        ever: Returns seconds of the clock that goes on.
        awake: Returns seconds of the clock that stands still.

    >>> ever, awake = [100.0], [50.0]
    >>> sleep = Sleep(lambda: ever[0], lambda: awake[0])
    >>> ever[0] += 3610; awake[0] += 10
    >>> sleep.noticed(), sleep.noticed()
    (3600.0, 0.0)
    """

    def __init__(self, ever: Callable[[], float] = seconds_since_boot, awake: Callable[[], float] = time.monotonic):
        self._ever, self._awake = ever, awake
        self._apart = ever() - awake()

    def noticed(self) -> float:
        """Returns the seconds of sleep since the last call; 0 if the machine has not slept."""
        apart = self._ever() - self._awake()
        slept, self._apart = apart - self._apart, apart
        return slept if slept >= LEAST_SLEEP_SECONDS else 0.0
