"""The plain lines of `join` where there is no terminal, as in a log: at most two a minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from training.volunteer.terminal.view import View

MOST_LINES, WITHIN_SECONDS = 2, 60.0
"""At most this many lines within any such time."""
SUMMARY_SECONDS = 120.0
"""A line says how things stand if none was written for this long."""
LOOK_SECONDS = 1.0


class Lines:
    """Writes news when they come, and now and then how things stand.

    Args:
        view: What to write about.
        write: Takes a line.
        clock: Seconds that only grow.
    """

    def __init__(self, view: View, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._view, self._write, self._clock = view, write, clock
        self._written: deque[float] = deque(maxlen=MOST_LINES)

    def look(self) -> None:
        """Writes a line if there is something to say and the last ones are long enough ago."""
        now, written, news = self._clock(), self._written, self._view.news
        if len(written) == MOST_LINES and now - written[0] < WITHIN_SECONDS:
            return
        if news:
            *others, text = (news.popleft() for _ in range(len(news)))
            left_out = f" ({len(others)} earlier lines are left out; --verbose prints all.)" if others else ""
            line = text + left_out
        elif written and now - written[-1] >= SUMMARY_SECONDS:
            line = self._view.summary()
        else:
            return
        written.append(now)
        self._write(line)


@contextmanager
def plain_lines(view: View) -> Iterator[None]:
    """Writes lines about the view to standard output until the end of the block."""
    lines, ended = Lines(view, lambda line: print(line, flush=True)), threading.Event()

    def work() -> None:
        lines.look()
        while not ended.wait(LOOK_SECONDS):
            lines.look()

    thread = threading.Thread(target=work, daemon=True, name="lines")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lines.look()
