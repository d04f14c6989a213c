"""Clock of a simulation: plays events in order of time. A heap of calls is enough, so no simulation library is
needed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Simulated time in seconds, and the events to come."""

    def __init__(self):
        self.now = 0.0
        self.played = 0
        """Number of events played."""
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Schedules an event, for now if the time is past; events at the same time keep their order."""
        # The running number decides between equal times; functions cannot be compared.
        heapq.heappush(self._events, (max(time, self.now), next(self._order), event))

    def play(self, until: Callable[[], bool], deadline: float) -> bool:
        """Plays events until `until` returns true. Returns whether it did before the deadline and the last event."""
        while not until():
            if not self._events or self._events[0][0] > deadline:
                return False
            self.now, _, event = heapq.heappop(self._events)
            self.played += 1
            event()
        return True
