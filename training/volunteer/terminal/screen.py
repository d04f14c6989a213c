"""The live screen of `join`: at most 16 rows of 80 columns, drawn again twice a second."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from calculator.units import show_time
from training.volunteer.manners import keys
from training.volunteer.terminal.view import View

ROWS, COLUMNS = 16, 80
"""Largest size of the screen; a terminal of 80 x 24 shows it whole."""
DRAWN_PER_SECOND = 2
LABEL_COLUMNS = 12
SPINNER = "|/-\\"
FIGURES = {
    "now": "What the peer does: with how many others it trains, or why it waits or pauses.",
    "epoch": "Updates of the shared model so far, of those that are planned; all volunteers together compute one.",
    "loss": "How wrong the model was on this peer's samples of the last epoch, and how that changed between the last "
    "ten epochs and the ten before. Lower is better.",
    "you": "This peer's speed in the last epoch, waiting included, and its part of the samples in that update.",
    "credit": "Samples of this peer that have entered updates, since it joined, and of all starts with this state "
    "folder. The run's page credits those that others have seen in an average, usually within a minute.",
    "link": "How others reach this peer: `direct`; `relay`, through the run's servers; or `client`, not at all: it "
    "calls them. Then a server's time to answer, the speed at which the weights came, and the most that it sends.",
    "exchange": "When the next average is due, by the length of the last epoch.",
    "problem": "The last warning, for ten minutes, and what to do about it.",
    "dashboard": "Address of the run's page.",
    "keys": "Keys that command the peer, where the terminal passes on single keys.",
    "stop": "How to leave, where it does not.",
}
"""Meaning of each row, by its label; the join page shows this."""


@contextmanager
def live_screen(view: View, stream: TextIO) -> Iterator[None]:
    """Shows the view on a terminal until the end of the block, and erases it then.

    Args:
        view: What to show.
        stream: The terminal. Another one than `sys.stdout`: hivemind forks processes while this one is written to, and
            they would write what is in its buffer once more.
    """
    console = Console(file=stream, highlight=False)
    live = Live(
        console=console,
        get_renderable=lambda: Group(*screen(view, console.width)),
        refresh_per_second=DRAWN_PER_SECOND,
        transient=True,
        # Forked processes would write to their standard error through this screen, and wait for its lock for ever.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with live:
        console.show_cursor(True)  # a second Ctrl-C ends the program at once, and nobody would show it again
        yield


def screen(view: View, width: int = COLUMNS) -> list[Text]:
    """The rows of the screen, at most `ROWS`.

    Args:
        view: What to show.
        width: Columns of the terminal.
    """
    width = max(min(width, COLUMNS), LABEL_COLUMNS + 20)
    sign = SPINNER[int(DRAWN_PER_SECOND * view.seconds) % len(SPINNER)]
    time = show_time(round(view.seconds))
    heading = textwrap.shorten(f"{view.title} ({view.run_id})", width - 12)
    rows = [_row((f"{heading:<{width - 12}}{sign}{time:>11}", "bold"))]
    facts = [
        ("now", view.stage, 2),
        ("epoch", view.progress(), 1),
        ("loss", view.loss(), 1),
        ("you", view.own_part(), 1),
        ("credit", view.credit(), 1),
        ("link", view.link(), 1),
        ("exchange", view.next_exchange(), 1),
    ]
    for label, text, most in facts:
        rows += _fact(label, text, width, most)
    if (found := view.recent_problem()) is None:
        rows += _fact("problem", "none", width, 1)
    else:
        problem, when = found
        rows += _fact("problem", f"({when}) {problem}", width, ROWS - 2 - len(rows), style="yellow")
    rows += _fact("dashboard", view.site or "this run's site is not known here", width, 1)
    if view.has_keys:
        rows += _fact("keys", keys.HELP, width, 1)
    else:
        rows += _fact("stop", "Ctrl-C: you keep your credit, and the others go on", width, 1)
    return rows


def _fact(label: str, text: str, width: int, most: int, *, style: str = "") -> list[Text]:
    """Rows of a fact: its label, and its text, which is cut off after `most` rows."""
    lines = textwrap.wrap(
        text,
        width - LABEL_COLUMNS,
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    labels = [label, *[""] * len(lines)]
    return [
        _row((f"{label:<{LABEL_COLUMNS}}", "dim"), (line, style)) for label, line in zip(labels, lines, strict=False)
    ]


def _row(*parts: tuple[str, str]) -> Text:
    """One row, which is cut off where signs are wider than a column."""
    return Text.assemble(*parts, no_wrap=True, overflow="crop")
