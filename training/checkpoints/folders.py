"""Finds a folder's checkpoints by their names alone, without torch, whose import takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

FACTS_FILE = "checkpoint.json"
"""Written last, with the digests of the other files."""
KEPT_FOLDER = "kept"
"""What a volunteer keeps as it leaves is in a folder of this name, and none of the run's checkpoints."""
NAME = re.compile(r"epoch-(\d{6,})")
"""Name of a checkpoint's folder."""


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest epoch first; none if there is no such folder."""
    found = [path for path in folder.glob("epoch-*") if NAME.fullmatch(path.name) and (path / FACTS_FILE).is_file()]
    return sorted(found, key=checkpoint_epoch)


def checkpoint_epoch(path: Path) -> int:
    """The epoch in a checkpoint folder's name."""
    return int(NAME.fullmatch(path.name)[1])
