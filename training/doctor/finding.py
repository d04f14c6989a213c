"""What a check finds: that all is well, or a fault by its name, with the reason and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "skipped", "warning", "fault"]
"""`skipped`: not checked, since something else that it needs has failed. `warning`: it can join all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One result of a check."""

    level: Level
    found: str
    """What was seen, with its figures."""
    name: str = ""
    """Of the fault; empty if there is none."""
    why: str = ""
    """What happens in training because of it."""
    remedy: str = ""
    check: str = ""
    """Name of the check, which the examination fills in."""


class Unusable(Exception):
    """What a check needs cannot be read or fetched; `finding` says why."""

    def __init__(self, finding: Finding):
        super().__init__(finding.found)
        self.finding = finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that can be wrong."""

    name: str
    why: str
    remedy: str
    """Words in braces are filled in by `found`."""
    level: Literal["warning", "fault"] = "fault"

    def found(self, text: str, **words: object) -> Finding:
        """That this machine has the fault.

        Args:
            text: What was seen, as a sentence.
            words: For the braces in the remedy.
        """
        return Finding(level=self.level, name=self.name, found=text, why=self.why, remedy=self.remedy.format_map(words))


def fine(text: str) -> Finding:
    """That nothing is wrong; the text says what was seen."""
    return Finding(level="ok", found=text)


def skipped(text: str) -> Finding:
    """That this was not checked, and why."""
    return Finding(level="skipped", found=text)
