"""Shows the run's state in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from calculator.units import show_time

LINE_SECONDS = 10.0
"""Interval at which a status line is printed if there is no terminal."""


@contextmanager
def status_display(console: Console, epochs: int) -> Iterator[Callable[[dict, float], None]]:
    """Shows the run's state: a table that stays in place on a terminal, otherwise a line every few seconds."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield lambda state, seconds: live.update(_table(state, seconds, epochs))
        return
    shown_at = float("-inf")

    def show(state: dict, seconds: float) -> None:
        nonlocal shown_at
        if seconds - shown_at >= LINE_SECONDS:
            shown_at = seconds
            console.print("  ".join(f"{name} {value}" for name, value in _figures(state, seconds, epochs).items()))

    yield show


def _figures(state: dict, seconds: float, epochs: int) -> dict[str, str]:
    return {
        "epoch": f"{formatted(state['epoch'], 'd')}, until {epochs}",
        "loss": formatted(state["loss"], ".3f"),
        "active": str(state["active_peers"]),
        "samples/s": formatted(state["samples_per_second"], ".1f"),
        "samples": f"{state['total_samples']:,}",
        "time": show_time(round(seconds)),
    }


def _table(state: dict, seconds: float, epochs: int) -> Table:
    figures = _figures(state, seconds, epochs)
    table = Table(*figures, box=None, padding=(0, 3, 0, 0))
    table.add_row(*figures.values())
    return table


def formatted(value: float | None, form: str) -> str:
    """Formats a value; a dash if it is None."""
    return "-" if value is None else format(value, form)
