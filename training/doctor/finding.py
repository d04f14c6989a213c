"""What a check finds: that all is well, or a fault by its name, with the reason and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skipped", "warning", "fault"]
"""`skipped`: not checked, because something that it needs has failed. `warning`: the machine can join all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One result of a check."""

    level: Level
    found: str
    """What the check saw, with its figures."""
    name: str = ""
    """Name of the fault; empty if there is none."""
    why: str = ""
    """What happens in training because of it."""
    remedy: str = ""
    check: str = ""
    """Name of the check, which the examination fills in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that can be wrong."""

    name: str
    why: str
    remedy: str
    """Words in braces are filled in by `found`."""
    level: Literal["warning", "fault"] = "fault"

    def found(self, text: str, **words: object) -> Finding:
        """The finding that this machine has the fault.

        Args:
            text: What the check saw, as a sentence.
            words: For the braces in the remedy.
        """
        return Finding(level=self.level, name=self.name, found=text, why=self.why, remedy=self.remedy.format_map(words))


def fine(text: str) -> Finding:
    """A finding without a fault; `text` says what the check saw."""
    return Finding(level="ok", found=text)


def skipped(text: str) -> Finding:
    """A finding that the check did not take place; `text` says why."""
    return Finding(level="skipped", found=text)
