"""The time of the DHT: the time of day, in which a step of the machine's clock counts only if it lasts.

A clock that is set while a peer trains, or that a virtual machine sets as it wakes up, would spoil the others' epoch:
to this peer their samples seem to be there already, it goes on to the next epoch, and they follow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from training.processes.uptime import seconds_since_boot

SMALL_STEP_SECONDS = 1.0
"""A machine's clock is believed at once if it is set by no more than this. hivemind's nodes may differ by 3 s."""
STEP_LASTS_SECONDS = 120.0
"""A longer step counts when the clock has stayed there for so long."""


class SteadyClock:
    """The time of day, in which a step of the machine's clock counts only if it lasts.

    Each process has one. They notice a step at almost the same time, since each asks for the time many times a second.

    Args:
        wall: The machine's clock.
        steady: A clock that nobody sets.

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

    def __call__(self) -> float:
        steady = self._steady()
        offset = self._wall() - steady
        step = offset - self._offset
        # Threads may be here at the same time: each of these assignments is the same in all of them.
        if abs(step) <= SMALL_STEP_SECONDS:
            self._offset, self._step = offset, None
        elif self._step is None or abs(step - self._step[1]) > SMALL_STEP_SECONDS:
            self._step = steady, step
        elif steady - self._step[0] >= STEP_LASTS_SECONDS:
            self._offset, self._step = offset, None
        return steady + self._offset


def use_steady_clock() -> None:
    """Makes a `SteadyClock` the DHT's clock in this process and in those that it forks."""
    clock = SteadyClock()
    for name, module in list(sys.modules.items()):
        # Modules have hivemind's function by name. Those that come later take it from `hivemind.utils`.
        if name.startswith(("hivemind", "training.")) and hasattr(module, "get_dht_time"):
            module.get_dht_time = clock
