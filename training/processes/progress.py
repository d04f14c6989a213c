"""Progress of long work: bars on a terminal, otherwise a line every few seconds, so that logs show it too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

LINE_SECONDS = 5.0

Show = Callable[[str, int, int | None], None]
"""Called with (stage, amount done, total amount or None while it is unknown)."""


@contextmanager
def show_progress(stream: TextIO | None = None) -> Iterator[Show]:
    """Yields a function that shows the progress of each stage of some work.

    Args:
        stream: Where to write; None means standard error.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _Lines(stream).show
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=stream)) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


class _Lines:
    """Writes a line when a stage begins, every few seconds, and when it is done."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._stage: str | None = None
        self._written = 0.0

    def show(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if stage == self._stage and done != total and now - self._written < LINE_SECONDS:
            return
        self._stage, self._written = stage, now
        self._stream.write(f"{stage}: {done:,}" + (f" of {total:,}\n" if total else "\n"))
        self._stream.flush()
