"""The time of the DHT: the time of day, but a change of the machine's clock counts only if it lasts.

A clock may be set while a peer trains, or when a virtual machine wakes up. Without this module, that would spoil the
other peers' epoch: to this peer their samples seem to be complete already, it goes on to the next epoch, and they
follow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from training.processes.uptime import seconds_since_boot

SMALL_STEP_SECONDS = 1.0
"""Longest step of a machine's clock that counts at once. The clocks of hivemind's nodes may differ by 3 s."""
STEP_LASTS_SECONDS = 120.0
"""Time for which a longer step must last before it counts."""


class SteadyClock:
    """Clock that shows the time of day. A step of the machine's clock counts only if it lasts.

    Each process has one. All notice a step at almost the same time, since each asks for the time many times a second.

    Args:
        wall: Returns the machine's time of day, in seconds since 1970.
        steady: Returns seconds of a clock that cannot be set.

    >>> wall = [1000.0]
    >>> now = SteadyClock(wall=lambda: wall[0], steady=lambda: 5.0)
    >>> wall[0] += 300
    >>> now()
    1000.0
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = seconds_since_boot):
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        self._step: tuple[float, float] | None = None
        """Time at which a step was first seen, and its length; None: no step."""

    @property
    def is_settling(self) -> bool:
        """True while a step of the machine's clock does not count yet."""
        return self._step is not None

    def __call__(self) -> float:
        steady = self._steady()
        offset = self._wall() - steady
        step = offset - self._offset
        # Threads may run this at the same time: each of these assignments is equal in all of them.
        if abs(step) <= SMALL_STEP_SECONDS:
            self._offset, self._step = offset, None
        elif self._step is None or abs(step - self._step[1]) > SMALL_STEP_SECONDS:
            self._step = steady, step
        elif steady - self._step[0] >= STEP_LASTS_SECONDS:
            self._offset, self._step = offset, None
        return steady + self._offset


def use_steady_clock() -> None:
    """Makes a `SteadyClock` the DHT's clock in this process and in its later forks."""
    clock = SteadyClock()
    for name, module in list(sys.modules.items()):
        # Modules have hivemind's function by name. Modules that are imported later take it from `hivemind.utils`.
        if name.startswith(("hivemind", "training.")) and hasattr(module, "get_dht_time"):
            module.get_dht_time = clock
