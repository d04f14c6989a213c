"""Service: a role that runs as a child program and is started again, after a pause, whenever it ends or hangs."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from training.processes.programs import ending, kill_marked, start_program


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Pauses and limits of a service that is started again."""

    first_pause_seconds: float = 1.0
    """Pause before the first new start; each further pause is twice as long."""
    longest_pause_seconds: float = 60.0
    """Longest pause: a lasting fault, such as a full disk, would otherwise fill the log."""
    calm_seconds: float = 120.0
    """Run time of a start after which the next pause is `first_pause_seconds` again."""
    ready_seconds: float = 180.0
    """Longest time until a service is ready; most of it is importing on a slow machine."""
    look_seconds: float = 10.0
    """Interval at which a ready service is asked for an answer (`alive`)."""
    silent_seconds: float = 60.0
    """Longest time without an answer; then the service is killed."""


class Service:
    """A role of a run as a child program.

    Call `look` several times a second, always from the same thread: Linux ends the child when that thread ends.

    Args:
        name: Name of the service, such as "monitor", in messages and before each line that the program prints.
        command: Returns program and arguments for the next start, without `--log-json`.
        show: Called with each line that the program prints, and with each sentence about it.
        event: Called, within `look`, with each event that the program logs.
        alive: Returns True if the ready program answers; takes some seconds at most.
        pace: Pauses and limits for new starts.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        *,
        show: Callable[[str], None],
        event: Callable[[dict], None],
        alive: Callable[[], bool],
        pace: Pace,
    ):
        self.name = name
        self.ready: dict | None = None
        """`ready` event of the last start that became ready; None before the first."""
        self.ended: int | None = None
        """Exit code of the last start; None while the program runs."""
        self.last_line = ""
        """Last line that the program printed: its error, if it ended with one."""
        self._command, self._show, self._event, self._alive, self._pace = command, show, event, alive, pace
        self._mark = f"{os.getpid()} {name} {id(self)}"
        self._process: subprocess.Popen | None = None
        self._readers: list[threading.Thread] = []
        self._events: queue.SimpleQueue[dict] = queue.SimpleQueue()
        self._failures = 0
        self._due = self._started = self._heard = self._asked = 0.0
        self._is_ready = False
        self._is_asking = False

    def look(self) -> None:
        """Starts the program if it is due; passes its events on; notices if it has ended or hangs."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self._start(now)
            return
        self._pass_events(now)
        longest = self._pace.silent_seconds if self._is_ready else self._pace.ready_seconds
        if self._process.poll() is not None:
            self._bury(now)
        elif now - self._heard > longest:
            self._show(f"The {self.name} has not answered for {now - self._heard:.0f} s; it is ended.")
            self._abort()
        elif self._is_ready and not self._is_asking and now - self._asked >= self._pace.look_seconds:
            self._asked, self._is_asking = now, True
            # In a thread: a service that hangs must not delay the others.
            threading.Thread(target=self._ask, daemon=True).start()

    def stop(self) -> None:
        """Asks the program to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kills all remaining processes of the program."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        kill_marked([self._mark])
        self._process = None

    def has_ended(self) -> bool:
        """Returns True if the program has ended after `stop`; by then, all that it printed has been shown."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            return False
        self._await_readers()
        self._pass_events(time.monotonic())
        return True

    def _start(self, now: float) -> None:
        # A pipe in place of a log file: its content is from this start only, and nobody has to delete it.
        events, for_child = os.pipe()
        try:
            self._process = start_program(
                [*self._command(), "--log-json", f"/dev/fd/{for_child}"],
                mark=self._mark,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[for_child],
            )
        finally:
            os.close(for_child)
        self._started = self._heard = self._asked = now
        self._is_ready, self.ended = False, None
        jobs = ((self._take_line, self._process.stdout), (self._take_event, os.fdopen(events, "rb")))
        self._readers = [threading.Thread(target=_each_line, args=(pipe, take), daemon=True) for take, pipe in jobs]
        for reader in self._readers:
            reader.start()

    def _bury(self, now: float) -> None:
        """Notes how the program has ended, and sets the time of its next start."""
        # Its own children, which may hold its ports, end with its watchdog; these are children that did not.
        kill_marked([self._mark])
        self._await_readers()
        self._pass_events(now)
        self.ended, self._process = self._process.returncode, None
        if now - self._started >= self._pace.calm_seconds:
            self._failures = 0
        pause = min(self._pace.longest_pause_seconds, self._pace.first_pause_seconds * 2 ** min(self._failures, 20))
        self._failures += 1
        self._due = now + pause
        if self.ready is not None:
            text = f"The {self.name} has ended ({ending(self.ended)}); it starts again in {pause:g} s."
            self._show(text)
            self._event({"event": "warning", "text": text})

    def _abort(self) -> None:
        """Kills the program. Python prints its stacks on SIGABRT, which show where it hangs."""
        self._process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()
        self._process.wait()

    def _ask(self) -> None:
        """Asks the program for an answer, which takes some seconds if there is none."""
        try:
            if self._alive():
                self._heard = time.monotonic()
        finally:
            self._is_asking = False

    def _pass_events(self, now: float) -> None:
        with suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if event.get("event") == "ready":
                    self.ready, self._is_ready, self._heard = event, True, now
                self._event(event)

    def _take_line(self, raw: bytes) -> None:
        if line := raw.decode(errors="replace").rstrip():
            self.last_line = line
            self._show(f"{self.name}: {line}")

    def _take_event(self, raw: bytes) -> None:
        with suppress(ValueError):
            self._events.put(json.loads(raw))

    def _await_readers(self) -> None:
        for reader in self._readers:
            reader.join(1)


def _each_line(pipe: IO[bytes], take: Callable[[bytes], None]) -> None:
    with pipe:
        for raw in pipe:
            take(raw)
