"""Programs that try for the doctor what may hang or crash: the GPU's driver, torch, hivemind's network daemon.

Such a program writes one JSON object a line to standard output, each with the `step` that it describes. What it has
written before it crashed or was given up counts.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The folder that has the package `training`."""
SAMPLED_SECONDS, COMPUTING_SHARE = 0.4, 0.1
"""A program that takes so much of a core for so long computes; one that waits for a driver does not."""
END_SECONDS = 1.0
"""Longest wait for the end of a program that was killed."""
LAST_WORDS = 2000
"""Characters of a crashed program's standard error that are kept."""


class NoAnswer(Exception):
    """A program has ended, or was given up, before it came to a step; the message says how.

    Args:
        late: Whether it was given up.
        computing: Whether it still computed then: it is slow, because others compute too, and does not hang.
    """

    def __init__(self, message: str, *, late: bool, computing: bool = False):
        super().__init__(message)
        self.late, self.computing = late, computing


class Child:
    """A program in a process group of its own, all of which ends with `end`.

    Its step `folder` names a folder for temporary files, which `end` removes.

    Args:
        module: Name of the module to run.
        arguments: Its arguments.
        life_seconds: It ends itself after so long, in case that the doctor is killed.
    """

    def __init__(self, module: str, *arguments: str, life_seconds: float):
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(math.ceil(life_seconds)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._facts: dict[str, dict] = {}
        self._news = threading.Condition()
        self._readers = 2
        self._last_words = ""
        for read in (self._read_facts, self._read_errors):
            threading.Thread(target=read, daemon=True).start()

    def tell(self, request: dict) -> None:
        """Gives the program what it waits for on its standard input; call it once."""
        with suppress(OSError, ValueError):  # it has ended; the next step that is asked for says how
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.close()

    def fact(self, step: str, *, within: float) -> dict:
        """What the program has written of a step; waits for it.

        Args:
            step: Its name.
            within: Seconds.

        Raises:
            NoAnswer: If it ends before, or takes longer.
        """
        with self._news:
            if not self._comes(step, within):
                before = self._computed_seconds()
                if not self._comes(step, SAMPLED_SECONDS):
                    computing = self._computed_seconds() - before > COMPUTING_SHARE * SAMPLED_SECONDS
                    raise NoAnswer(f"there was no answer within {within:.0f} s", late=True, computing=computing)
            if step in self._facts:
                return self._facts[step]
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        raise NoAnswer(self._how_it_ended(), late=False)

    def end(self) -> None:
        """Kills it and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Not longer: what hangs in a driver cannot be killed, and the volunteer waits for the findings.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with self._news:
            self._news.wait_for(lambda: not self._readers, END_SECONDS)
        if (told := self._facts.get("folder")) is not None:
            shutil.rmtree(told["path"], ignore_errors=True)

    def _comes(self, step: str, seconds: float) -> bool:
        """Waits until the program has written a step, or has ended; False if the time is over before."""
        return self._news.wait_for(lambda: step in self._facts or not self._readers, seconds)

    def _computed_seconds(self) -> float:
        """CPU time that it has taken; 0 if it is gone."""
        import psutil

        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return times.user + times.system
        return 0.0

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        lines = [line.strip() for line in self._last_words.splitlines() if line.strip()]
        if code is not None and code < 0:
            return f"the program was ended by {signal.Signals(-code).name}"
        return lines[-1] if lines else f"the program ended with code {code}"

    def _read_facts(self) -> None:
        for line in self._process.stdout:
            with suppress(ValueError, KeyError, TypeError):  # a library's own output
                fact = json.loads(line)
                with self._news:
                    self._facts[fact["step"]] = fact
                    self._news.notify_all()
        self._done()

    def _read_errors(self) -> None:
        for line in self._process.stderr:
            self._last_words = (self._last_words + line.decode(errors="replace"))[-LAST_WORDS:]
        self._done()

    def _done(self) -> None:
        with self._news:
            self._readers -= 1
            self._news.notify_all()
