"""Signals, such as Ctrl-C, that end a program which has started other programs."""

from __future__ import annotations

import signal
import threading


class Interrupted(Exception):
    """The program has received Ctrl-C or another signal to end."""


class Stop:
    """Context that records SIGINT, SIGTERM and SIGHUP; a second Ctrl-C sets `impatient`."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.impatient = False
        self._event = threading.Event()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        # Only noted: an exception here could come while the program ends the others, and leave some of them running.
        self.impatient = self.impatient or (number == self.signal_number == signal.SIGINT)
        self.signal_number = self.signal_number or number
        self._event.set()

    @property
    def reason(self) -> str:
        return "Ctrl-C" if self.signal_number == signal.SIGINT else signal.Signals(self.signal_number).name

    def wait(self, seconds: float) -> None:
        """Sleeps this long, or raises `Interrupted` as soon as a signal arrives."""
        if self._event.wait(seconds):
            raise Interrupted
