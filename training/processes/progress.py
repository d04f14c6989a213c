"""Progress of long work: shown as bars on a terminal, otherwise as a line every few seconds, so that logs show it
too."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from calculator.units import show_number, show_time

LINE_SECONDS = 5.0
PACE_SECONDS, LOOK_SECONDS = 30.0, 0.5
"""Seconds over which the pace is measured, and between two looks at it."""

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Show = Callable[[str, int, int | None], None]
"""Function called with the stage, the amount done, and the total amount, or None while it is unknown."""


@contextmanager
def show_progress(stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Yields a function that shows the progress of each stage of some work: the amount done, the pace, and the time
    left.

    Args:
        stream: Stream to write to; None: standard error.
        clock: Returns seconds of a clock that never goes back.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _Lines(stream, clock).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    # Bars of 16 signs: with rich's 40, a terminal of 80 has no room for the rest.
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as bars:
        tasks, paces = {}, {}

        def show(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage], paces[stage] = bars.add_task(stage, total=total, pace=""), _Pace()
            paces[stage].look(clock(), done)
            bars.update(tasks[stage], completed=done, total=total, pace=paces[stage].told(total))

        yield show


def moving_sign(console: Console) -> Progress:
    """A line at the bottom of a terminal for what takes place now, with a sign that moves and the time.

    It vanishes at its end, and is not shown where there is no terminal.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn("line"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )


class _Pace:
    """Speed of a stage over the last half minute. Over the whole time it would be too high after an interruption: the
    work then finds much of it done already, in no time."""

    def __init__(self):
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, now: float, done: int) -> None:
        """Notes the amount that is done now."""
        looks = self._looks
        if len(looks) > 1 and looks[-1][0] - looks[-2][0] < LOOK_SECONDS:
            looks.pop()
        looks.append((now, done))
        while now - looks[0][0] > PACE_SECONDS and len(looks) > 2:
            looks.popleft()

    def told(self, total: int | None) -> str:
        """Text on speed and remaining time, such as `41.3/s, 7 min left`; empty until the pace is known."""
        (first, before), (now, done) = self._looks[0], self._looks[-1]
        if now - first < LOOK_SECONDS or done <= before:
            return ""
        rate = (done - before) / (now - first)
        left = f", {show_time((total - done) / rate)} left" if total and done < total else ""
        return f"{show_number(rate)}/s{left}"


class _Lines:
    """Writes a line when a stage begins, every few seconds, and when it is done."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]):
        self._stream, self._clock = stream, clock
        self._stage: str | None = None
        self._written, self._done = 0.0, 0
        self._pace = _Pace()

    def show(self, stage: str, done: int, total: int | None) -> None:
        now = self._clock()
        if stage != self._stage:
            self._pace = _Pace()
        self._pace.look(now, done)
        says_more = stage != self._stage or (done == total and done != self._done)
        if not says_more and now - self._written < LINE_SECONDS:
            return
        self._stage, self._written, self._done = stage, now, done
        of, pace = f" of {total:,}" if total else "", self._pace.told(total)
        self._stream.write(f"{stage}: {done:,}{of}{', ' if pace else ''}{pace}\n")
        self._stream.flush()
