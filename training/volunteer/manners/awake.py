"""Keeps the machine awake while a peer computes: without this, most systems go to sleep when nobody uses them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

Start = Callable[[Sequence[str]], subprocess.Popen]
"""Function that starts a program which ends with this one."""


class Awake:
    """Asks the system not to sleep by itself. A volunteer who closes the lid or chooses to sleep is obeyed.

    Where the system has no program for that, nothing happens.

    Args:
        start: Starts a program; None: nothing keeps the machine awake.
        command: The program that keeps the machine awake until it is ended; None: that of this system.
    """

    def __init__(self, start: Start | None = None, command: Sequence[str] | None = None):
        command = command_of(sys.platform) if command is None else command
        self._start, self._command = start, command
        self._can = start is not None and shutil.which(command[0]) is not None
        self._program: subprocess.Popen | None = None

    def hold(self) -> None:
        """Keeps the machine awake from now on."""
        if self._can and self._program is None:
            self._program = self._start(self._command)

    def release(self) -> None:
        """Lets the machine sleep."""
        program, self._program = self._program, None
        if program is not None:
            program.terminate()
            program.wait()


def command_of(platform: str) -> tuple[str, ...]:
    """Program that keeps a system awake, for a name as in `sys.platform`."""
    if platform == "darwin":
        return ("caffeinate", "-i")
    why = ("--who=training", "--why=A training run computes", "--what=idle", "--mode=block")
    return ("systemd-inhibit", *why, "sleep", "infinity")
