"""What a peer reports: to its volunteer on the console, and to programs in the event log."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from training.compute.choices import Setting
from training.processes.events import EventLog


@dataclass(frozen=True, kw_only=True)
class Notices:
    """Console and event log of a peer."""

    events: EventLog
    console: Console

    def warn(self, text: str) -> None:
        """Writes a warning to console and event log."""
        self.events.write("warning", text=text)
        self.console.print(text, style="yellow", markup=False)  # it may quote what another peer has sent

    def show(self, setting: Setting) -> None:
        """Prints a setting with its reason."""
        self.console.print(Text.assemble(f"{setting.name:<12} ", (setting.value, "bold"), f": {setting.reason}."))
