"""Backups of a run's history, made by SQLite while the monitor goes on writing.

A plain copy of the file would lack the newest changes, which SQLite keeps in a second file, and may be inconsistent.
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
        TrainingError: If the history is damaged, or the copy cannot be written.
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
    """Backs up the history of a run to `run_dir/backups/history-EPOCH.sqlite`. Returns that path.

    Deletes older backups beyond the `KEPT` newest, and unfinished files of backups that were killed.

    Raises:
        TrainingError: If the backup fails; the older backups are then still there.
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
    """Lists a run's backups, oldest first by their time, since a run may go back to an earlier epoch."""
    return sorted((run_dir / _FOLDER).glob("history-*.sqlite"), key=lambda file: (file.stat().st_mtime_ns, file.name))
