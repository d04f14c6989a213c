"""Input that `prepare` does not use: counts by reason, with the names of the first files and lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LEFT_OUT_FILE = "left-out.jsonl"
"""File in the folder of shards that lists the unused files and lines with their reasons."""
MOST_NAMED, MOST_KEYS = 10, 20
"""Names of each reason that a text's `left-out.jsonl` has, and keys that a message has."""
HIDDEN = "hidden file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unusable:
    """A file, or a line of one, that is not used."""

    reason: str
    file: str | None = None
    """Name of the file, and the place in it: `captions.jsonl, line 3`."""
    keys: tuple[str, ...] = ()
    """Keys or columns that were found, if the needed ones were not."""


@dataclass(kw_only=True)
class Unused:
    """Counts and first names of unused files and lines, by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)
    """The first files or lines of each reason."""
    keys: list[str] = field(default_factory=list)
    """Keys or columns that were found where the needed ones were not."""

    def add(self, one: Unusable) -> None:
        """Counts a file or line, and keeps its name if it is one of the first for its reason."""
        self.counts[one.reason] = self.counts.get(one.reason, 0) + 1
        self.name(one.reason, one.file)
        new = dict.fromkeys(f"{key:.40}" for key in one.keys if key not in self.keys)
        self.keys += list(new)[: MOST_KEYS - len(self.keys)]

    def name(self, reason: str, file: str | None) -> None:
        """Keeps a name for a reason if it is one of the first, and counts nothing."""
        names = self.named.setdefault(reason, [])
        if file is not None and len(names) < MOST_NAMED:
            names.append(file)

    def update(self, other: Unused) -> None:
        """Adds the counts and names of another `Unused`."""
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        for reason, names in other.named.items():
            for name in names:
                self.name(reason, name)
        self.keys = list(dict.fromkeys([*self.keys, *other.keys]))[:MOST_KEYS]

    def listed(self) -> list[dict[str, str]]:
        """Lists the kept names: dictionaries with `file` and `reason`."""
        return [{"file": name, "reason": reason} for reason, names in sorted(self.named.items()) for name in names]

    def told(self, cure: str) -> str:
        """Makes sentences with the first name of each reason, the keys that were found, and `cure`, the advice.

        >>> one = Unusable(reason="line without text", file="a.jsonl, line 1", keys=("id", "body"))
        >>> (unused := Unused()).add(one)
        >>> unused.told("Give one with --text-column.")
        'The first ones: line without text: a.jsonl, line 1. The keys are id, body. Give one with --text-column.'
        """
        first = "; ".join(f"{reason}: {names[0]}" for reason, names in self.named.items() if names)
        sentences = [f"The first ones: {first}."] if first else []
        if self.keys:
            sentences += [f"The keys are {', '.join(self.keys)}.", cure]
        return " ".join(sentences)


def told_reasons(left_out: Mapping[str, int]) -> str:
    """Formats counts with their reasons as a part of a sentence; empty if there are none.

    >>> told_reasons({"missing file": 3, "broken line": 1})
    '3 missing file, 1 broken line'
    """
    return ", ".join(f"{count} {reason}" for reason, count in left_out.items())


def write_left_out(folder: Path, listed: Iterable[dict[str, str]]) -> None:
    """Writes the list of what was left out, which may be long, as JSON lines."""
    with (folder / LEFT_OUT_FILE).open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in listed)


def first_left_out(folder: Path, most: int) -> dict[str, tuple[int, list[str]]]:
    """Returns how many names the list of what was left out has for each reason, and the first ones.

    Args:
        folder: Folder of the shards; if others made them, it may lack the list.
        most: Names of each reason to return.
    """
    path = folder / LEFT_OUT_FILE
    counts, names = Counter[str](), dict[str, list[str]]()
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            for one in map(json.loads, lines):
                counts[one["reason"]] += 1
                if counts[one["reason"]] <= most:
                    names.setdefault(one["reason"], []).append(one["file"])
    return {reason: (counts[reason], names[reason]) for reason in names}
