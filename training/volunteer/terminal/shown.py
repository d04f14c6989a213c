"""Chooses how `join` shows what its peer does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from training.processes.role import StopRequest
from training.volunteer.manners import keys
from training.volunteer.terminal.lines import plain_lines
from training.volunteer.terminal.view import View


@contextmanager
def shown(view: View, stop: StopRequest, *, verbose: bool) -> Iterator[Console]:
    """Shows the view until the end of the block: on a screen if there is a terminal, else by a few lines.

    Args:
        view: Follows the peer's events.
        stop: The view tells when the volunteer has asked the peer to leave.
        verbose: Show no view; technical lines are printed instead.

    Yields:
        The console for technical lines; it is quiet unless they are asked for.
    """
    view.asked_to_leave = lambda: stop.asked
    if verbose:
        yield Console(highlight=False, soft_wrap=True)
    elif sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        from training.volunteer.terminal.screen import live_screen

        if sys.stdin.isatty():
            stop.at_end(keys.listen(sys.stdin.fileno(), view.manners))
            view.has_keys = True
        with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as terminal, live_screen(view, terminal):
            yield Console(quiet=True)
        if view.notice:  # such as the end of the run, which the screen took along
            print(view.notice, flush=True)
    else:
        with plain_lines(view):
            yield Console(quiet=True)
