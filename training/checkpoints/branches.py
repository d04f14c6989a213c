"""Sets aside the checkpoints of a branch that a run has gone back from.

    CHECKPOINTS/epoch-000060  ->  CHECKPOINTS/../branches/LINEAGE/000060

The latest checkpoint in the folder is then the one that the run goes on from, for everyone who reads the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from training.checkpoints.checkpoint import ancestors_of, checkpoint_epoch, lineage_of, list_checkpoints, set_lineage
from training.errors import BadInput
from training.storage.whole import move_folder

if TYPE_CHECKING:
    from training.swarm.run.lineage import Lineage

STATE_FOLDER = "monitor"
"""A monitor's state folder, within the run's."""
UNKNOWN = "unknown"
"""Folder of checkpoints that do not say their lineage."""


def set_aside(folder: Path, lineage: Lineage) -> list[Path]:
    """Makes a folder that of a branch; done again, it changes nothing.

    Args:
        folder: Of the run's checkpoints.
        lineage: The branch; one without ancestors has gone back from nothing.

    Returns:
        Where the later checkpoints of its ancestors are now.
    """
    if not lineage.ancestors:
        return []
    moved = []
    for path in list_checkpoints(folder):
        epoch = checkpoint_epoch(path)
        try:
            own = lineage_of(path)
        except BadInput:  # it is damaged: whoever reads it says so
            continue
        if own == lineage.id or epoch < lineage.first_epoch:
            continue
        if epoch == lineage.first_epoch:
            set_lineage(path, lineage)  # newcomers ask for checkpoints of the branch
            continue
        place = _free(branches_beside(folder) / (own or UNKNOWN) / f"{epoch:06d}")
        move_folder(path, place)
        moved.append(place)
    return moved


def branches_beside(folder: Path) -> Path:
    """Folder of the checkpoints of left branches, beside that of the run's checkpoints."""
    return folder.parent / "branches"


def folder_name(path: Path) -> str:
    """Names what is made of a checkpoint: its epoch, and its lineage if that is a branch.

    In a branch, epochs come again that were in what it has branched off.
    """
    epoch = f"{checkpoint_epoch(path):06d}"
    return f"{epoch}-{lineage_of(path)[:8]}" if ancestors_of(path) else epoch


def _free(place: Path) -> Path:
    """The place, or one beside it if there is something: a run may go back to the same epoch more than once."""
    places = [place, *(place.with_name(f"{place.name}-{number}") for number in range(2, 100))]
    return next(one for one in places if not one.exists())
