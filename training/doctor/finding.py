"""Findings of checks: nothing is wrong, or a fault by its name, with the reason and the remedy."""

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
    """Observation of the check, as a sentence with figures."""
    name: str = ""
    """Name of the fault; empty if there is none."""
    why: str = ""
    """Effect of the fault on training; empty without a fault."""
    remedy: str = ""
    check: str = ""
    """Name of the check, which the examination fills in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Fault that a check can find."""

    name: str
    why: str
    remedy: str
    """Advice; `found` fills in the words in braces."""
    level: Literal["warning", "fault"] = "fault"

    def found(self, text: str, **words: object) -> Finding:
        """Makes the finding that this machine has the fault.

        Args:
            text: Observation of the check, as a sentence.
            words: Words for the braces in the remedy.
        """
        return Finding(level=self.level, name=self.name, found=text, why=self.why, remedy=self.remedy.format_map(words))


def fine(text: str) -> Finding:
    """A finding without a fault; `text` says what the check saw."""
    return Finding(level="ok", found=text)


def skipped(text: str) -> Finding:
    """A finding that the check did not take place; `text` says why."""
    return Finding(level="skipped", found=text)
