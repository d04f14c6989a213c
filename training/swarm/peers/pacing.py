"""Pauses between the reports of a peer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


class PacedEvent(threading.Event):
    """An event whose waiting thread goes on at most once in a pause, unless `hurry` is called.

    Args:
        pause: Returns the current length of the pause, in seconds.
    """

    def __init__(self, pause: Callable[[], float]):
        super().__init__()
        self._pause, self._seen, self._hurried = pause, -math.inf, threading.Event()

    def hurry(self) -> None:
        """Sets the event, and ends the pause: the waiting thread goes on now."""
        self._hurried.set()
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits as `threading.Event` does; the pause is added to the timeout."""
        came = super().wait(timeout)
        if came:
            self._hurried.wait(max(self._seen + self._pause() - time.monotonic(), 0.0))
        self._hurried.clear()
        self._seen = time.monotonic()
        return came
