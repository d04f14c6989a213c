"""First sign of life of every command: a line at once, and on a terminal a sign that moves until the command speaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO

SPEAKING = frozenset({"write", "writelines", "buffer", "fileno", "detach"})
"""Attributes of a stream by which a program writes to it, or past it."""


@contextmanager
def alive(command: str) -> Iterator[None]:
    """Shows at once that a command runs, before it loads anything; torch and hivemind take seconds, or a minute.

    Args:
        command: Name of the command.
    """
    words = f"Running `{command}`; it may take some seconds to load."
    stream = next((one for one in (sys.stderr, sys.stdout) if one.isatty()), None)
    if stream is None or os.environ.get("TERM") in ("dumb", "unknown"):
        print(words, file=sys.stderr, flush=True)
        yield
    else:
        with moving(words, stream):
            yield


@contextmanager
def moving(words: str, stream: TextIO) -> Iterator[None]:
    """Shows words, a sign that moves and the time on a terminal, and erases them when the program begins to write.

    Args:
        words: A line.
        stream: The terminal.
    """
    print(words, end="\r", file=stream, flush=True)  # to be drawn over; importing rich takes a while, too
    from rich.console import Console

    from training.processes.progress import moving_sign

    ends, streams, process = ExitStack(), (sys.stdout, sys.stderr), os.getpid()

    def end() -> None:
        sys.stdout, sys.stderr = streams
        # Processes that hivemind forks have no thread that draws, but a copy of its lock, which may be held for ever.
        if os.getpid() == process:
            ends.close()

    terminal = ends.enter_context(os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8"))
    console = Console(file=terminal)
    ends.enter_context(moving_sign(console)).add_task(words)
    console.show_cursor(True)  # a role may end by `os._exit`, and nobody would show it again
    # These references keep both alive: `print` holds none while the first `write` replaces `sys.stdout`.
    watched = [_Watched(one, end) for one in streams]
    sys.stdout, sys.stderr = watched
    try:
        yield
    finally:
        end()


class _Watched:
    """A stream that calls a function before the program writes to it."""

    def __init__(self, stream: TextIO, before: Callable[[], None]):
        self._stream, self._before = stream, before

    def __getattr__(self, name: str) -> object:
        if name in SPEAKING:
            self._before()
        return getattr(self._stream, name)
