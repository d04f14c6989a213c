"""Notices of a program: for people on the console, for other programs in the event log."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from training.processes.events import EventLog


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A setting in use, and the reason for its value."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Notices:
    """Console and event log of a program.

    A program that shows its state otherwise, as `join` does on a screen, has a quiet console, and follows the events.
    """

    events: EventLog
    console: Console

    def warn(self, text: str) -> None:
        """Writes a warning to console and event log."""
        self.events.write("warning", text=text)
        self.console.print(text, style="yellow", markup=False)  # the text may quote what another peer has sent

    def tell(self, text: str) -> None:
        """Writes what people want to know, and is no fault, to console and event log."""
        self.events.write("notice", text=text)
        self.console.print(text, markup=False)

    def show(self, setting: Setting) -> None:
        """Prints a setting with its reason."""
        self.console.print(Text.assemble(f"{setting.name:<12} ", (setting.value, "bold"), f": {setting.reason}."))
