"""The programs that the demo starts, each with its own logs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from training.errors import TrainingError
from training.processes.programs import ending, kill_marked, marked_processes, start_program


class Part:
    """One program of the demo, in its own session together with all that it starts.

    Args:
        name: Name of the program in messages.
        command: Program and arguments.
        log: File that receives the program's output; an older log is replaced.
            A role's event log is next to it, with the suffix `.jsonl`.
        output: File descriptor or `subprocess.PIPE` that receives standard output in place of the log.
        threads: Most threads with which the program computes; None: no limit.
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
        log.unlink(missing_ok=True)
        with log.open("ab") as log_file:
            self.process = start_program(
                command,
                mark=self.mark,
                threads=threads,
                stdout=log_file if output is None else output,
                stderr=log_file,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program; the negative signal number if a signal ended it, None while it runs."""
        return self.process.poll()

    def send(self, signal_number: int) -> None:
        """Signals only the program, which stops its own children."""
        if self.exit_code is None:
            self.process.send_signal(signal_number)

    def failure(self, what: str) -> TrainingError:
        """Makes an error that names the part, its end, its log and the log's last lines."""
        tail = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        lines = "".join(f"\n    {line}" for line in tail)
        return TrainingError(f"{self.name} {what} ({ending(self.exit_code)}). Its log: {self.log}{lines}")


def processes_of(parts: Sequence[Part]) -> list[psutil.Process]:
    """All running processes of the parts, themselves included."""
    return marked_processes(part.mark for part in parts)


def sweep(parts: Sequence[Part]) -> None:
    """Kills remaining processes of the parts, except torch's shared-memory manager,
    which frees their memory and then ends."""
    kill_marked(part.mark for part in parts)
    for part in parts:
        with suppress(subprocess.TimeoutExpired):
            # Collects the exit code; the part would otherwise stay a zombie until the demo ends.
            part.process.wait(timeout=1)


def read_events(path: Path) -> Iterator[dict]:
    """Reads the complete lines of an event log so far; an empty list if the log does not exist yet."""
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            # The last line may still be incomplete.
            if line.endswith("\n"):
                yield json.loads(line)
