"""Programs that a program starts: each in its own session, marked, and ended with the program that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

_MARK = "TRAINING_PART"
"""Environment variable that marks all processes of a program, since child processes inherit it."""
_PR_SET_PDEATHSIG = 1


def start_program(command: Sequence[str], *, mark: str, threads: int | None = 1, **options) -> subprocess.Popen:
    """Starts a program, which gets SIGTERM if the calling thread ends first (on Linux).

    Args:
        command: Program and arguments.
        mark: Text that marks the program and all that it starts; see `marked_processes`.
        threads: Number of threads that compute in the program; None: no limit.
        options: Further arguments of `subprocess.Popen`.
    """
    limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # Ctrl-C in the terminal then reaches only this program, which ends the programs that it has started in order.
        start_new_session=True,
        preexec_fn=_end_with_parent,
        env={
            **os.environ,
            **limits,
            "PYTHONUNBUFFERED": "1",  # each line is passed on as soon as it is printed
            "PYTHONFAULTHANDLER": "1",  # SIGABRT then writes the stacks of all threads to standard error
            "TOKENIZERS_PARALLELISM": "false",  # otherwise tokenizers warns after each fork
            "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait slow each other down
            _MARK: mark,
        },
        **options,
    )


def marked_processes(marks: Iterable[str]) -> list[psutil.Process]:
    """Finds all running processes with these marks, which child processes inherit."""
    # Children that change their process group or session, as hivemind's do, keep their environment.
    wanted, found = set(marks), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) in wanted and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_marked(marks: Iterable[str]) -> None:
    """Kills all processes with these marks, except torch's shared-memory manager, which frees their memory and then
    ends."""
    for process in marked_processes(marks):
        with suppress(psutil.Error):
            if process.name() != "torch_shm_manager":
                process.kill()


def ending(exit_code: int | None) -> str:
    """Description of how a program ended, by its exit code.

    >>> ending(2), ending(-9), ending(None)
    ('exit code 2', 'killed by SIGKILL', 'still running')
    """
    if exit_code is None:
        return "still running"
    return f"exit code {exit_code}" if exit_code >= 0 else f"killed by {signal.Signals(-exit_code).name}"


# Loaded before any fork: between fork and exec, a child of a program with threads may not load libraries.
_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Asks Linux to send SIGTERM when the parent dies; runs in the child before its program starts."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
