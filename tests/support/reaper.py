"""Kills what the tests have started as soon as their process is gone; `tests.support.programs` starts it beside them.

Tests that are killed with SIGKILL end nothing themselves, and nox does so half a second after Ctrl-C by default.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

import psutil

MARK = "TESTS_MARK"
"""Variable of the environment by which all programs of the tests, and what these start, are known."""
POLL_SECONDS = 0.2
LAST_WORK_SECONDS = 3.0
ENDS_BY_ITSELF = ("torch_shm_manager", "watchdog.py")
"""torch's janitor frees the shared memory of the dead, a role's watchdog removes its files; then both end."""


def marked(mark: str) -> list[psutil.Process]:
    """The processes that run and whose mark begins with this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK, "").startswith(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_marked(mark: str) -> None:
    """Kills all that carry the mark except this process; the last to go are those that clean up and then end."""
    deadline = time.monotonic() + LAST_WORK_SECONDS
    while left := [process for process in marked(mark) if process.pid != os.getpid()]:
        late = time.monotonic() > deadline
        for process in left:
            with suppress(psutil.Error):
                if late or not any(name in word for word in process.cmdline() for name in ENDS_BY_ITSELF):
                    process.kill()
        time.sleep(0.05)


def watch(tests: int, mark: str, parent: int | None) -> None:
    """Waits for the end of the process `tests`, this one's parent; then ends its programs and its forked children.

    Args:
        tests: Process id of the tests.
        mark: What the tests' programs carry.
        parent: Process id of the tests' own parent, with which they are to end; None: they outlive it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(tests)
        while os.getppid() == tests:
            if parent is not None and process.ppid() != parent:
                process.kill()
            time.sleep(POLL_SECONDS)
    kill_marked(mark)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None)
