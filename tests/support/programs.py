"""Programs that tests start: they end with their test, and with the tests' process however that ends.

Each carries a mark in its environment, which all that it starts inherits. When the tests' process is gone, a reaper
kills what carries the mark.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from tests.support import reaper

ROOT = Path(__file__).parents[2]
END_WITH_PARENT = "TESTS_END_WITH_PARENT"
"""Variable in which nox, which starts the tests, gives its process id; they end with it, however soon it is gone."""
_numbers = itertools.count()
Found = TypeVar("Found")


def guard_tests() -> None:
    """Starts the reaper; call it once, before the tests start anything.

    A child that the tests fork themselves, as hivemind does, has no mark: its environment is the tests' own from before
    the mark. It joins the reaper's process group instead, which the reaper kills.
    """
    mark = os.environ[reaper.MARK] = f"{_mark()}{os.getpid()}/"
    parent = [os.environ.pop(END_WITH_PARENT)] if END_WITH_PARENT in os.environ else []
    started = subprocess.Popen(
        [sys.executable, "-I", reaper.__file__, str(os.getpid()), mark, *parent],
        process_group=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.register_at_fork(after_in_child=partial(_join_group, started.pid))


def end_forked_children() -> None:
    """Kills what the tests have forked themselves and not ended: at its exit Python would wait for it."""
    for child in multiprocessing.active_children():
        child.kill()


class Programs:
    """Programs that belong to one test, or to several that share them, with all that they start.

    The fixture `programs` gives a test its own; as a context manager it ends them with the block.
    """

    def __init__(self) -> None:
        self._mark = f"{_mark()}{next(_numbers)}/"
        self._started: list[subprocess.Popen] = []

    def start(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **options
    ) -> subprocess.Popen:
        """Starts a program at the repository's root, in a session of its own: Ctrl-C in a terminal does not reach it.

        Args:
            command: Program and arguments.
            env: The whole environment, but for the mark; None: that of the tests.
            options: Of `subprocess.Popen`.
        """
        environment = {**(os.environ if env is None else env), reaper.MARK: self._mark}
        options = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        self._started.append(subprocess.Popen([str(word) for word in command], env=environment, **options))
        return self._started[-1]

    def running(self) -> list[psutil.Process]:
        """What has been started and still runs."""
        return reaper.marked(self._mark)

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills all that still runs."""
        for process in self._started:
            process.kill()
        reaper.kill_marked(self._mark)
        for process in self._started:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                with suppress(BrokenPipeError):
                    pipe.close()


def run_program(
    command: Sequence[str | Path], *, within: float = 240, input: str | None = None, **options
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; what it prints is text, standard error apart.

    Args:
        command: Program and arguments.
        within: Seconds; after so many it is killed, and `subprocess.TimeoutExpired` is raised.
        input: Its standard input.
        options: As `Programs.start` takes them.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if input is not None:
        pipes["stdin"] = subprocess.PIPE
    with Programs() as started:
        process = started.start(command, **{**pipes, **options})
        output, errors = process.communicate(input, timeout=within)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def until(condition: Callable[[], Found], within: float = 120, said: Callable[[], str] = str) -> Found:
    """What the condition gives as soon as that is true; after `within` seconds an error with what `said` returns."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within} s\n{said()}"
        time.sleep(0.05)
    return found


def are_gone(processes: Iterable[psutil.Process], within: float) -> bool:
    """True if all have ended in time. Zombies count as ended, and torch's janitor of shared memory ends by itself."""
    deadline = time.monotonic() + within
    while any(_runs(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return process.name() != "torch_shm_manager"
    return False


def _mark() -> str:
    return os.environ.get(reaper.MARK, "")


def _join_group(leader: int) -> None:
    """Runs in a forked child; without the reaper there is no group."""
    with suppress(OSError):
        os.setpgid(0, leader)
