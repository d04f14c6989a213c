"""Priority of a program that computes for a long time on a machine that its owner uses for other work as well."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LOW = 10
"""Niceness of a peer's computing: the owner's programs, at 0, get about nine times as much of a busy core."""


def lower_priority(niceness: int = LOW) -> None:
    """Lowers the priority of this process, but not of its running child processes.

    A peer's children are its DHT node and its averagers. They compute little, and all other peers wait for their
    answers, so they keep their priority. Linux has a niceness for each thread, so this function sets that of each:
    PyTorch's worker threads exist already when training begins.
    """
    threads = [int(task.name) for task in Path("/proc/self/task").glob("*")] or [0]
    for thread in threads:
        with suppress(OSError):  # a thread that has just ended
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
