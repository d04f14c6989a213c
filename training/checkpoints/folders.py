"""Search for a folder's checkpoints by their names alone, without torch, whose import takes seconds."""

from __future__ import annotations

import re
from pathlib import Path

FACTS_FILE = "checkpoint.json"
"""Name of the file that is written last, with the digests of the other files."""
KEPT_FOLDER = "kept"
"""Name of the folder for weights that a volunteer keeps; these are not among the run's checkpoints."""
DAMAGED_FOLDER = "damaged"
"""Name of the folder for damaged files, within the run's folder."""
STATE_FOLDER = "monitor"
"""Name of a monitor's state folder, within the run's folder."""
NAME = re.compile(r"epoch-(\d{6,})")
"""Pattern of the name of a checkpoint's folder."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder, the oldest epoch first; an empty list if the folder does not exist."""
    found = [path for path in folder.glob("epoch-*") if NAME.fullmatch(path.name) and (path / FACTS_FILE).is_file()]
    return sorted(found, key=checkpoint_epoch)


def checkpoint_epoch(path: Path) -> int:
    """Epoch in the name of a checkpoint's folder."""
    return int(NAME.fullmatch(path.name)[1])
