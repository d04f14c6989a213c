"""Priority of a program that computes for a long time on a machine that its owner uses for other work as well."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOW = 10
"""Niceness of a peer's computing: the owner's programs, at 0, get about nine times as much of a busy core."""
SERVING = 5
"""Niceness of a peer's other processes, its network node and its averagers: the owner's programs get three times as
much. All other peers wait for their answers, so they come before the computing; they compute little."""
AUTOGROUP = Path("/proc/self/autogroup")
"""File of Linux with the niceness of this session's group of processes."""


def lower_priority(niceness: int = LOW) -> None:
    """Lowers the priority of this process and of those that it starts later, but not of its running child processes.

    Linux has a niceness for each thread, so this function sets that of each: PyTorch's worker threads exist already
    when training begins. The priority of reading and writing disks follows the niceness.
    """
    threads = [int(task.name) for task in Path("/proc/self/task").glob("*")] or [0]
    for thread in threads:
        with suppress(OSError):  # a thread that has just ended
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


def lower_session(niceness: int = LOW, file: Path = AUTOGROUP) -> Callable[[], None]:
    """Lowers the priority of this terminal's session. Returns a function that raises it again.

    On many desktops Linux shares a busy core between sessions first, and by niceness only within each of them: a
    terminal whose programs have any niceness would get as much as all windows of a browser.

    Args:
        niceness: Niceness of the session.
        file: File like Linux's /proc/self/autogroup; other systems have none, and there nothing happens.
    """

    def write(value: int) -> None:
        with suppress(OSError):
            file.write_text(f"{value}\n")

    try:
        before = int(file.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return lambda: None
    write(max(niceness, before))
    return lambda: write(before)
