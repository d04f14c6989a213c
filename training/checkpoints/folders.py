"""Which checkpoints a folder has, by their names alone: without torch, whose import takes seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path

from training.errors import BadInput

FACTS_FILE = "checkpoint.json"
"""Written last, with the digests of the other files."""
KEPT_FOLDER = "kept"
"""What a volunteer keeps as it leaves is in a folder of this name, and none of the run's checkpoints."""
NAME = re.compile(r"epoch-(\d{6,})")
"""Of a checkpoint's folder."""


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest epoch first; none if there is no such folder."""
    found = [path for path in folder.glob("epoch-*") if NAME.fullmatch(path.name) and (path / FACTS_FILE).is_file()]
    return sorted(found, key=checkpoint_epoch)


def checkpoint_epoch(path: Path) -> int:
    """The epoch in a checkpoint folder's name."""
    return int(NAME.fullmatch(path.name)[1])


def check_has(folder: Path, epoch: int) -> None:
    """Checks that a folder has a checkpoint of an epoch, or that the epoch is 0, which needs none.

    Raises:
        BadInput: If it has not.
    """
    there = {checkpoint_epoch(path): path for path in list_checkpoints(folder)}
    if epoch and epoch not in there:
        # With the losses one can see which are from before the weights were spoiled.
        offered = ", ".join(f"{number}{_with_loss(path)}" for number, path in there.items())
        what = f"only those of epochs {offered}" if there else "none at all"
        raise BadInput(
            f"{folder} has no checkpoint of epoch {epoch}, {what}.",
            cure="Give --to the epoch of one of these, or 0 to begin anew.",
        )


def _with_loss(path: Path) -> str:
    """The run's loss when a checkpoint was written, in brackets; nothing if that is not known."""
    try:
        loss = json.loads((path / FACTS_FILE).read_text(encoding="utf-8"))["metrics"]["loss"]
        return f" (loss {loss:.3g})"
    except (OSError, ValueError, TypeError, KeyError):
        return ""
