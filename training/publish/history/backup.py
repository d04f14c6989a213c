"""Backups of a run's history, made by SQLite while the monitor goes on writing, and repair of a damaged history.

A plain copy of the file would lack the newest changes, which SQLite keeps in a second file, and may be inconsistent.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from training.checkpoints.folders import DAMAGED_FOLDER
from training.errors import BadInput, TrainingError, reason_of
from training.publish.history.sound import EMPTY, FOREIGN, MISSING, DamagedHistory, damage_of, seal
from training.storage.whole import delete_drafts, free_place, move_aside, whole_file

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
        DamagedHistory: If the history is damaged; an older file stays.
        TrainingError: If the history cannot be read now, or the copy cannot be written.
    """
    if not history.is_file():
        raise BadInput(f"There is no history at {history}; give the folder of a run that has been monitored.")
    try:
        if (damage := damage_of(history)) is not None:
            raise DamagedHistory(history, damage)
        file.parent.mkdir(parents=True, exist_ok=True)
        address = f"{history.absolute().as_uri()}?mode=ro"
        with whole_file(file) as draft, closing(sqlite3.connect(address, uri=True, timeout=10)) as source:
            source.execute("VACUUM INTO ?", (str(draft),))
            seal(draft)
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


def mend(history: Path, *, version: int) -> str | None:
    """Sets a damaged history aside, and puts the newest sound backup in its place.

    Call it while nobody else has the history open. A file that nothing shows to be a history stays where there is no
    backup.

    Args:
        history: The SQLite file.
        version: Version of its tables.

    Returns:
        A sentence on what was done; None if the history is sound, or is new.

    Raises:
        sqlite3.Error: If a file cannot be read now, such as a locked one.
        OSError: If a file cannot be read, moved or written.
    """
    damage, kept = damage_of(history, version=version), backups(history.parent)
    if damage is None or (damage in (MISSING, EMPTY, FOREIGN) and not kept):
        return None
    told = f"The history {history} is damaged: {damage}."
    if damage != MISSING:
        told += f" It is now {_set_aside(history)}."
    for backup in reversed(kept):
        if (damage := damage_of(backup)) is None:
            with whole_file(history) as draft:
                shutil.copyfile(backup, draft)
            return f"{told} The run goes on from the backup {backup.name}, {_RECORDS}."
        told += f" The backup {backup.name} is damaged: {damage}."
    return f"{told} There is no sound backup, so it begins anew, {_RECORDS}."


_RECORDS = "and volunteers' records fill in the later epochs that they repeat"


def _set_aside(history: Path) -> Path:
    """Moves a history and what SQLite keeps beside it; returns the new path."""
    place = free_place(history.parent / DAMAGED_FOLDER / history.name)
    for end in ("-wal", "-shm", ""):  # the history last: if this program is killed before, it does all of this again
        with suppress(FileNotFoundError):
            move_aside(history.with_name(f"{history.name}{end}"), place.with_name(f"{place.name}{end}"))
    return place
