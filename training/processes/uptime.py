"""A clock that nobody sets."""

from __future__ import annotations

import time


def seconds_since_boot() -> float:
    """Seconds since the machine was started, those of its sleep included where the system counts them (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
