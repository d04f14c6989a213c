"""Backups of a run's history, made by SQLite while the monitor goes on writing.

Copying the file would not do: what was written last lies in a second file beside it, and a copy may be torn.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from training.errors import BadInput, TrainingError, reason_of
from training.storage.whole import delete_drafts, whole_file

KEPT = 3
"""Number of backups that a run keeps, the newest ones."""
HISTORY_FILE, _FOLDER = "history.sqlite", "backups"


def back_up(history: Path, file: Path) -> None:
    """Copies a history into one file, whole or not at all; an older file there is replaced.

    Args:
        history: The SQLite file; another program may write it meanwhile.
        file: The copy. To use it, put it in the place of the history while no monitor runs.

    Raises:
        BadInput: If there is no history.
        TrainingError: If it is damaged, or the copy cannot be written.
    """
    if not history.is_file():
        raise BadInput(f"There is no history at {history}; give the folder of a run that has been monitored.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        address = f"{history.absolute().as_uri()}?mode=ro"
        with whole_file(file) as draft, closing(sqlite3.connect(address, uri=True, timeout=10)) as source:
            source.execute("VACUUM INTO ?", (str(draft),))
    except (OSError, sqlite3.Error) as error:
        raise TrainingError(
            f"The history {history} cannot be copied to {file}: {reason_of(error)}.",
            cure="Give another file, or make room on the disk.",
        ) from None


def back_up_run(run_dir: Path, epoch: int) -> Path:
    """Backs up the history of a run to `run_dir/backups/history-EPOCH.sqlite`, and deletes older backups,
    and what backups have left that were killed.

    Raises:
        TrainingError: If it cannot be done; the older backups are then still there.
    """
    file = run_dir / _FOLDER / f"history-{epoch:06d}.sqlite"
    with suppress(OSError):
        delete_drafts(file.parent)
    back_up(run_dir / HISTORY_FILE, file)
    for old in backups(run_dir)[:-KEPT]:
        with suppress(OSError):
            old.unlink()
    return file


def backups(run_dir: Path) -> list[Path]:
    """A run's backups, oldest first by the time when they were made: a run may have gone back to an earlier epoch."""
    return sorted((run_dir / _FOLDER).glob("history-*.sqlite"), key=lambda file: (file.stat().st_mtime_ns, file.name))
