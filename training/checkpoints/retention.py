"""Chooses the checkpoints to keep, so that a long run does not fill its disk.

Kept are the last ones, the first of each so many epochs, and the best (`CheckpointsConfig` has the numbers); all others
are deleted. A run may have gone back to an earlier epoch and have several lineages: the last checkpoints are then those
of the lineage that was written to last, even if another one has come further.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.checkpoints.branches import branches_beside
from training.checkpoints.config import CheckpointsConfig
from training.checkpoints.facts import read_facts
from training.checkpoints.folders import list_checkpoints
from training.errors import BadInput
from training.storage.whole import delete_folder

GB = 10**9
"""Bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """What the choice needs to know of a checkpoint."""

    name: str
    epoch: int
    lineage: str | None
    loss: float
    """Loss of the run when it was written; infinite if it is not known."""
    written_at: float
    bytes: int

    @classmethod
    def of_facts(cls, name: str, facts: dict) -> Stored:
        """Reads the content of a `checkpoint.json`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: If it has not that form.
        """
        loss = facts["metrics"].get("loss")
        return cls(
            name=name,
            epoch=int(facts["epoch"]),
            lineage=facts.get("lineage"),
            loss=float(loss) if loss is not None and math.isfinite(loss) else math.inf,
            written_at=float(facts["written_at"]),
            bytes=sum(int(file["bytes"]) for file in facts["files"].values()),
        )


def stored_checkpoints(folder: Path) -> list[Stored]:
    """The checkpoints in a folder; one whose facts cannot be read is left out, and so is never deleted."""
    return _stored(list_checkpoints(folder))


def _stored(paths: Iterable[Path]) -> list[Stored]:
    found = []
    for path in paths:
        try:
            found.append(Stored.of_facts(path.name, read_facts(path)))
        except (BadInput, KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def surplus(stored: Iterable[Stored], settings: CheckpointsConfig, *, needed_bytes: int = 0) -> list[str]:
    """Names of the checkpoints that are not kept.

    Args:
        stored: All that are there.
        settings: How many are kept, and the budget.
        needed_bytes: What is about to be written, and must fit into the budget.
    """
    ordered = _oldest_first(stored)
    last = ordered[-settings.keep_last :]
    best = sorted((one for one in ordered if one.loss < math.inf), key=lambda one: one.loss)[: settings.keep_best]
    keep: list[Stored] = []  # what is dropped last comes first
    for one in [*reversed(last), *best, *reversed(_first_of_each(ordered, settings.kept_every_epochs))]:
        if one not in keep:
            keep.append(one)
    budget = settings.disk_budget_gb * GB - needed_bytes
    while len(keep) > 1 and sum(one.bytes for one in keep) > budget:
        keep.pop()
    names = {one.name for one in keep}
    return [one.name for one in ordered if one.name not in names]


def _oldest_first(stored: Iterable[Stored]) -> list[Stored]:
    """Sorts by lineage, then by epoch: not by time alone, for a clock may have been set back."""
    stored = list(stored)
    newest: dict[str | None, float] = {}
    for one in stored:
        newest[one.lineage] = max(newest.get(one.lineage, -math.inf), one.written_at)
    return sorted(stored, key=lambda one: (newest[one.lineage], one.epoch, one.written_at))


def _first_of_each(ordered: Sequence[Stored], every: int) -> list[Stored]:
    """The first checkpoint at or after each multiple of `every` epochs, but 0, in each lineage."""
    first: dict[tuple[str | None, int], Stored] = {}
    for one in ordered if every else ():
        if one.epoch >= every:
            first.setdefault((one.lineage, one.epoch // every), one)
    return list(first.values())


def delete_from_branches(folder: Path, settings: CheckpointsConfig, *, needed_bytes: int = 0) -> list[Path]:
    """Deletes checkpoints of left branches, those written first before the others, until all fit into the budget.

    Args:
        folder: Of the run's checkpoints, which have precedence.
        settings: With the budget.
        needed_bytes: What is about to be written.

    Returns:
        What was deleted.
    """
    aside = [
        (one.written_at, of_branch / one.name, one.bytes)
        for of_branch in sorted(branches_beside(folder).glob("*"))
        for one in _stored(path for path in of_branch.glob("*") if path.is_dir())
    ]
    taken = needed_bytes + sum(one.bytes for one in stored_checkpoints(folder)) + sum(size for *_, size in aside)
    deleted = []
    for _, path, size in sorted(aside):
        if taken <= settings.disk_budget_gb * GB:
            break
        delete_folder(path)
        with suppress(OSError):  # other checkpoints are in it
            path.parent.rmdir()
        taken -= size
        deleted.append(path)
    return deleted


def delete_surplus(folder: Path, settings: CheckpointsConfig, *, needed_bytes: int = 0) -> list[str]:
    """Deletes the checkpoints of a folder that are not kept; arguments and result as in `surplus`."""
    names = surplus(stored_checkpoints(folder), settings, needed_bytes=needed_bytes)
    for name in names:
        delete_folder(folder / name)
    return names
