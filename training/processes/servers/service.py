"""A role that runs as a child program and is started again, after a pause, whenever it ends or falls silent."""

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
    """When a service is started again."""

    first_pause_seconds: float = 1.0
    """After the first end; the next pause is twice as long,"""
    longest_pause_seconds: float = 60.0
    """up to this: a fault that does not pass by itself, such as a full disk, would otherwise fill the log."""
    calm_seconds: float = 120.0
    """A service that ran for so long is given the first pause again."""
    ready_seconds: float = 180.0
    """A service that is not ready after so long is started again; most of it is importing on a slow machine."""
    look_seconds: float = 10.0
    """How often a service is asked for a sign of life."""
    silent_seconds: float = 60.0
    """A service that has given none for so long is started again."""


class Service:
    """One role of a run as a child program.

    Call `look` several times a second, always from the same thread: Linux ends the child when that thread ends.

    Args:
        name: Its name in messages and before each line that it prints, such as "monitor".
        command: Gives program and arguments for the next start, without `--log-json`.
        show: Gets each line that it prints and each sentence about it.
        event: Gets each event that it logs; `look` calls it.
        alive: Asks it for a sign of life once it is ready; must return within some seconds.
        pace: When it is started again.
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
        """The `ready` event of its last start that got so far; None before the first."""
        self.ended: int | None = None
        """How its last start ended; None while it runs."""
        self.last_line = ""
        """What it printed last: its error, if it ended with one."""
        self._command, self._show, self._event, self._alive, self._pace = command, show, event, alive, pace
        self._mark = f"{os.getpid()} {name} {id(self)}"
        self._process: subprocess.Popen | None = None
        self._readers: list[threading.Thread] = []
        self._events: queue.SimpleQueue[dict] = queue.SimpleQueue()
        self._failures = 0
        self._due = self._started = self._heard = 0.0
        self._is_ready = False
        self._asking: threading.Thread | None = None
        self._asked = 0.0

    @property
    def runs(self) -> bool:
        """Whether its program runs now."""
        return self._process is not None

    def look(self) -> None:
        """Starts the program if it is due; passes its events on; notices its end or its silence."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due:
                self._start(now)
            return
        self._pass_events(now)
        if self._process.poll() is not None:
            self._bury(now)
        elif not self._is_ready and now - self._started > self._pace.ready_seconds:
            self._show(f"The {self.name} is not ready after {self._pace.ready_seconds:g} s; it is ended.")
            self._abort()
        elif self._is_ready:
            self._ask(now)

    def stop(self) -> None:
        """Asks the program to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kills whatever of it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        kill_marked([self._mark])
        self._process = None

    def has_ended(self) -> bool:
        """Whether the program has ended after `stop`; all that it printed has then been shown."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            return False
        self._await_readers()
        self._pass_events(time.monotonic())
        return True

    def _start(self, now: float) -> None:
        # A pipe in place of a log file: what it holds is of this start only, and nobody has to clear it away.
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
        jobs = ((self._read_lines, self._process.stdout), (self._read_events, os.fdopen(events, "rb")))
        self._readers = [threading.Thread(target=read, args=(pipe,), daemon=True) for read, pipe in jobs]
        for reader in self._readers:
            reader.start()

    def _bury(self, now: float) -> None:
        """Notes how the program has ended, and when it is started again."""
        # Its own children, which may hold its ports, end with its watchdog; these are those that do not.
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
        """Kills the program; its stacks, which Python prints on SIGABRT, say where it hangs."""
        self._process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._process.kill()
        self._process.wait()

    def _ask(self, now: float) -> None:
        """Asks for a sign of life in a thread, so that a service that hangs does not hold up the others."""
        waits = self._asking is not None and self._asking.is_alive()
        if not waits and now - self._asked >= self._pace.look_seconds:
            self._asked = now
            self._asking = threading.Thread(target=self._listen, daemon=True)
            self._asking.start()
        if now - self._heard > self._pace.silent_seconds:
            self._show(f"The {self.name} runs but has not answered for {now - self._heard:.0f} s; it is ended.")
            self._abort()

    def _listen(self) -> None:
        if self._alive():
            self._heard = time.monotonic()

    def _pass_events(self, now: float) -> None:
        with suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if event.get("event") == "ready":
                    self.ready, self._is_ready, self._heard = event, True, now
                self._event(event)

    def _read_lines(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                if line := raw.decode(errors="replace").rstrip():
                    self.last_line = line
                    self._show(f"{self.name}: {line}")

    def _read_events(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                with suppress(ValueError):
                    self._events.put(json.loads(raw))

    def _await_readers(self) -> None:
        for reader in self._readers:
            reader.join(1)
