"""Clock that cannot be set: the time since the machine was started."""

from __future__ import annotations

import time


def seconds_since_boot() -> float:
    """Seconds since the machine was started, including those of its sleep where the system counts them (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
