"""State folders of volunteers: where they are, which is free, and which belong to a running volunteer."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from training.processes.servers.only_one import STATE_LOCK_FILE, is_locked


def state_folders() -> Path:
    """Folder for state folders that volunteers do not name: in `XDG_STATE_HOME`, or else in `~/.local/state`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "training-together"


def free_folder(parent: Path, run_id: str) -> Path:
    """Finds a state folder for a run: the first that no program on this machine uses, such as `demo` or `demo-2`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as parent:
    ...     free_folder(Path(parent), "demo").name
    'demo'
    """
    names = itertools.chain([run_id], (f"{run_id}-{number}" for number in itertools.count(2)))
    return next(folder for name in names if not is_locked((folder := parent / name) / STATE_LOCK_FILE))


def of_running(folder: Path) -> list[Path]:
    """Returns the state folders of running volunteers: the folder itself, if it is a state folder, or those in it."""
    candidates = [folder] if (folder / STATE_LOCK_FILE).exists() else sorted(folder.glob("*/"))
    return [one for one in candidates if is_locked(one / STATE_LOCK_FILE)]
