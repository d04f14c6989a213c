"""Retention: chooses the checkpoints to keep, so that a long run does not fill its disk.

The last checkpoints, the first ones of regular intervals, and the best are kept (`CheckpointsConfig` has the numbers);
all others are deleted. A run may have gone back to an earlier epoch and have several lineages: the last checkpoints are
then those of the lineage with the newest file, even if another lineage has a later epoch.
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
"""Bytes of a gigabyte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Facts of a checkpoint that decide whether it is kept."""

    name: str
    epoch: int
    lineage: str | None
    loss: float
    """Loss of the run when the checkpoint was written; infinite if unknown."""
    written_at: float
    bytes: int

    @classmethod
    def of_facts(cls, name: str, facts: dict) -> Stored:
        """Reads the content of a `checkpoint.json`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: If the content does not have the expected form.
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
    """Reads the checkpoints in a folder. One whose facts cannot be read is left out, and so is never deleted."""
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
    """Names of the checkpoints that should be deleted.

    Args:
        stored: All checkpoints of the folder.
        settings: Numbers of kept checkpoints, and the budget.
        needed_bytes: Bytes of a checkpoint that will be written next, and must fit into the budget.
    """
    ordered = _oldest_first(stored)
    last = ordered[-settings.keep_last :]
    best = sorted((one for one in ordered if one.loss < math.inf), key=lambda one: one.loss)[: settings.keep_best]
    keep: list[Stored] = []  # the last ones are dropped first
    for one in [*reversed(last), *best, *reversed(_first_of_each(ordered, settings.kept_every_epochs))]:
        if one not in keep:
            keep.append(one)
    budget = settings.disk_budget_gb * GB - needed_bytes
    while len(keep) > 1 and sum(one.bytes for one in keep) > budget:
        keep.pop()
    names = {one.name for one in keep}
    return [one.name for one in ordered if one.name not in names]


def _oldest_first(stored: Iterable[Stored]) -> list[Stored]:
    """Sorts by lineage, then by epoch, and not by time alone: a clock may have been set back."""
    stored = list(stored)
    newest: dict[str | None, float] = {}
    for one in stored:
        newest[one.lineage] = max(newest.get(one.lineage, -math.inf), one.written_at)
    return sorted(stored, key=lambda one: (newest[one.lineage], one.epoch, one.written_at))


def _first_of_each(ordered: Sequence[Stored], every: int) -> list[Stored]:
    """First checkpoints at or after each multiple of `every` epochs except 0, in each lineage."""
    first: dict[tuple[str | None, int], Stored] = {}
    for one in ordered if every else ():
        if one.epoch >= every:
            first.setdefault((one.lineage, one.epoch // every), one)
    return list(first.values())


def delete_from_branches(folder: Path, settings: CheckpointsConfig, *, needed_bytes: int = 0) -> list[Path]:
    """Deletes checkpoints of left branches, the earliest written first, until all checkpoints fit into the budget.

    Args:
        folder: Folder of the run's checkpoints, which have precedence.
        settings: Settings with the budget.
        needed_bytes: Bytes of a checkpoint that will be written next.

    Returns:
        Paths of the deleted checkpoints.
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
        with suppress(OSError):  # the folder has other checkpoints
            path.parent.rmdir()
        taken -= size
        deleted.append(path)
    return deleted


def delete_surplus(folder: Path, settings: CheckpointsConfig, *, needed_bytes: int = 0) -> list[str]:
    """Deletes the checkpoints of a folder that should not be kept, and returns their names; see `surplus`."""
    names = surplus(stored_checkpoints(folder), settings, needed_bytes=needed_bytes)
    for name in names:
        delete_folder(folder / name)
    return names
