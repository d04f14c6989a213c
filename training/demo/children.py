"""The programs that the demo starts, each in its own session with its own logs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from training.errors import TrainingError

_MARK = "TRAINING_DEMO_PART"
"""Environment variable that marks all processes of a part, since child processes inherit it."""
_PR_SET_PDEATHSIG = 1


class Part:
    """One program of the demo, in its own session together with all that it starts.

    Args:
        name: Its name in messages.
        command: Program and arguments.
        log: Receives its output; an older log is replaced. A role's event log is next to it, with the suffix `.jsonl`.
        output: Receives standard output in place of the log: a file descriptor or `subprocess.PIPE`.
        threads: Threads that it may compute with; None: no limit.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, output: int | None = None, threads: int | None = 1
    ):
        self.name = name
        self.log = log
        self.events = log.with_suffix(".jsonl")
        log.parent.mkdir(parents=True, exist_ok=True)
        self.events.unlink(missing_ok=True)
        self.mark = f"{os.getpid()} {log}"
        limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        log.unlink(missing_ok=True)
        with log.open("ab") as log_file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file if output is None else output,
                stderr=log_file,
                # Ctrl-C in the terminal then reaches only the demo, which ends the parts in order.
                start_new_session=True,
                preexec_fn=_end_with_parent,
                env={
                    **os.environ,
                    **limits,
                    "PYTHONUNBUFFERED": "1",  # each line is in the log as soon as it is printed
                    "PYTHONFAULTHANDLER": "1",  # SIGABRT then writes the stacks of all threads into the log
                    "TOKENIZERS_PARALLELISM": "false",  # otherwise tokenizers warns after each fork
                    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait slow each other down
                    _MARK: self.mark,
                },
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self.process.poll()

    def send(self, signal_number: int) -> None:
        """Signals only the program, which stops its own children."""
        if self.exit_code is None:
            self.process.send_signal(signal_number)

    def failure(self, what: str) -> TrainingError:
        """An error that names the part, how it ended, its log and the log's last lines."""
        tail = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        lines = "".join(f"\n    {line}" for line in tail)
        return TrainingError(f"{self.name} {what} ({ending(self.exit_code)}). Its log: {self.log}{lines}")


def processes_of(parts: Sequence[Part]) -> list[psutil.Process]:
    """All running processes of the parts, themselves included: those that have inherited the parts' marks."""
    # Children that change their process group or session, as hivemind's do, keep their environment.
    marks, found = {part.mark for part in parts}, []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) in marks and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(parts: Sequence[Part]) -> None:
    """Kills what is left of the parts, except torch's shared-memory manager, which frees their memory and then ends."""
    for process in processes_of(parts):
        with suppress(psutil.Error):
            if process.name() != "torch_shm_manager":
                process.kill()
    for part in parts:
        with suppress(subprocess.TimeoutExpired):
            # Collects the exit code; the part would otherwise stay a zombie until the demo ends.
            part.process.wait(timeout=1)


def read_events(path: Path) -> Iterator[dict]:
    """The complete lines of an event log so far; none if the log does not exist yet."""
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            # The last line may still be incomplete.
            if line.endswith("\n"):
                yield json.loads(line)


def ending(exit_code: int | None) -> str:
    """How a program ended, in words."""
    if exit_code is None:
        return "still running"
    return f"exit code {exit_code}" if exit_code >= 0 else f"killed by {signal.Signals(-exit_code).name}"


# Loaded before any fork: between fork and exec, a child of a program with threads may not load libraries.
_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Runs in the child before its program starts: makes Linux end the part when the demo dies in any way."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
