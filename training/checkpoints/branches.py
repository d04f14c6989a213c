"""Checkpoints set aside: moves those from which a run has gone back, and damaged ones, out of the run's checkpoints.

    CHECKPOINTS/epoch-000060  ->  CHECKPOINTS/../branches/LINEAGE/000060  or  CHECKPOINTS/../damaged/epoch-000060

The latest checkpoint in the folder is then the one from which the run goes on, for all programs that read the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from training.checkpoints.checkpoint import ancestors_of, checkpoint_epoch, lineage_of, list_checkpoints, set_lineage
from training.checkpoints.facts import damage_of
from training.checkpoints.folders import DAMAGED_FOLDER, NAME
from training.errors import BadInput
from training.storage.whole import free_place, move_aside

if TYPE_CHECKING:
    from training.swarm.run.lineage import Lineage

UNKNOWN = "unknown"
"""Name of the folder of checkpoints that do not say their lineage."""


def set_aside(folder: Path, lineage: Lineage) -> list[Path]:
    """Moves later checkpoints of a branch's ancestors out of the run's folder. A second call changes nothing.

    Args:
        folder: Folder of the run's checkpoints.
        lineage: Lineage of the branch; without ancestors, nothing is moved.

    Returns:
        New paths of the moved checkpoints.
    """
    if not lineage.ancestors:
        return []
    moved = []
    for path in list_checkpoints(folder):
        epoch = checkpoint_epoch(path)
        try:
            own = lineage_of(path)
        except BadInput:  # it is damaged: the programs that read it report that
            continue
        if own == lineage.id or epoch < lineage.first_epoch:
            continue
        if epoch == lineage.first_epoch:
            set_lineage(path, lineage)  # newcomers want checkpoints of the branch
            continue
        # A run may go back to one epoch more than once.
        place = free_place(branches_beside(folder) / (own or UNKNOWN) / f"{epoch:06d}")
        move_aside(path, place)
        moved.append(place)
    return moved


def set_aside_damaged(folder: Path, *, older: bool = False) -> list[str]:
    """Moves damaged checkpoints out of the run's folder, from the newest one down to the first sound one.

    Args:
        folder: Folder of the run's checkpoints; this process is its only writer.
        older: True to look at all but the newest one instead, which may take a minute.

    Returns:
        A sentence on each moved checkpoint.
    """
    said = []
    there = sorted((path for path in folder.glob("epoch-*") if NAME.fullmatch(path.name)), key=checkpoint_epoch)
    for path in reversed(there[:-1] if older else there):
        damage = damage_of(path)
        if damage is None and not older:
            break
        if damage is None:
            continue
        place = free_place(folder.parent / DAMAGED_FOLDER / path.name)
        move_aside(path, place)
        said.append(f"The checkpoint {path} is not used: {damage}. It is now {place}.")
    return said


def branches_beside(folder: Path) -> Path:
    """Folder of the checkpoints of left branches, beside that of the run's checkpoints."""
    return folder.parent / "branches"


def folder_name(path: Path) -> str:
    """Name for files made from a checkpoint: its epoch, and its lineage if that is a branch.

    A branch repeats epochs of the lineage from which it has branched off.
    """
    epoch = f"{checkpoint_epoch(path):06d}"
    return f"{epoch}-{lineage_of(path)[:8]}" if ancestors_of(path) else epoch
