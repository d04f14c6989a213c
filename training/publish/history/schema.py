"""The tables of a history file, its version, and the views through which readers see it.

A run that goes back to an earlier epoch trains some epochs again. Both trainings stay in the file: each is a branch,
and every row belongs to a branch. Readers see the current branch, and the epochs of its ancestors on which it builds.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from training.errors import BadInput, TrainingError

SCHEMA_VERSION = 6
"""Version of the history's tables, kept in SQLite's `user_version`."""
FIRST_BRANCH = 1

_TABLES = """
CREATE TABLE branches (
    number INTEGER PRIMARY KEY, lineage TEXT, kind TEXT NOT NULL,
    parent INTEGER REFERENCES branches (number), parent_epoch INTEGER NOT NULL,
    newest_epoch INTEGER NOT NULL, time REAL NOT NULL
) STRICT;
CREATE TABLE reports (
    branch INTEGER NOT NULL, epoch INTEGER NOT NULL, peer_id TEXT NOT NULL,
    loss REAL NOT NULL, samples INTEGER NOT NULL,
    credited INTEGER NOT NULL, seconds REAL NOT NULL, witnesses INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (branch, epoch, peer_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE missed (
    peer_id TEXT NOT NULL, branch INTEGER NOT NULL, epoch INTEGER NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (peer_id, branch, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE epochs (
    branch INTEGER NOT NULL, epoch INTEGER NOT NULL, time REAL NOT NULL, loss REAL NOT NULL,
    active_peers INTEGER NOT NULL, samples INTEGER NOT NULL, samples_per_second REAL,
    PRIMARY KEY (branch, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (
    branch INTEGER NOT NULL, epoch INTEGER NOT NULL, time REAL NOT NULL, PRIMARY KEY (branch, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE pictures (
    branch INTEGER NOT NULL, epoch INTEGER NOT NULL, number INTEGER NOT NULL,
    prompt TEXT NOT NULL, file TEXT, shape INTEGER, colour INTEGER, text TEXT, good INTEGER,
    PRIMARY KEY (branch, epoch, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE held_out (
    branch INTEGER NOT NULL, epoch INTEGER NOT NULL, time REAL NOT NULL,
    loss REAL NOT NULL, samples INTEGER NOT NULL, tokens INTEGER NOT NULL, clip_score REAL,
    PRIMARY KEY (branch, epoch)
) STRICT, WITHOUT ROWID;
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE volunteers (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, page TEXT NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;
CREATE TABLE peers (
    peer_id TEXT PRIMARY KEY, volunteer TEXT NOT NULL, name TEXT NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL, active INTEGER NOT NULL, record_time REAL,
    samples INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0, samples_per_second REAL,
    since_epoch INTEGER, since_samples INTEGER NOT NULL, branch INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL,
    volunteer TEXT
) STRICT;
CREATE INDEX reports_by_peer ON reports (peer_id, epoch);
CREATE INDEX epochs_by_time ON epochs (time);
CREATE INDEX events_by_volunteer ON events (volunteer, kind);
CREATE INDEX peers_by_volunteer ON peers (volunteer)
"""
_GIVE = """UPDATE peers SET samples = samples + new.credited,
    seconds = seconds + iif(new.credited, new.seconds, 0.0) WHERE peer_id = new.peer_id;"""
_TAKE = """UPDATE peers SET samples = samples - old.credited,
    seconds = seconds - iif(old.credited, old.seconds, 0.0) WHERE peer_id = old.peer_id;"""
_TRIGGERS = (
    f"CREATE TRIGGER report_comes AFTER INSERT ON reports BEGIN {_GIVE} END",
    f"CREATE TRIGGER report_changes AFTER UPDATE ON reports BEGIN {_TAKE} {_GIVE} END",
    f"CREATE TRIGGER report_goes AFTER DELETE ON reports BEGIN {_TAKE} END",
)
"""Triggers that keep the totals of `peers` equal to the sums over the peers' credited reports."""

SHOWN_COLUMNS = ("prompt", "file", "shape", "colour", "text", "good")
"""Columns of the table `pictures`, in their order."""
_COLUMNS = {
    "epochs": "epoch, time, loss, active_peers, samples, samples_per_second",
    "reports": "epoch, peer_id, loss, samples",
    "snapshots": "epoch, time",
    "held_out": "epoch, time, loss, samples, tokens, clip_score",
    "pictures": f"epoch, number, {', '.join(SHOWN_COLUMNS)}",
}
_PATH = """
CREATE TEMP VIEW path AS
WITH RECURSIVE up (branch, until) AS (
    SELECT CAST(value AS INTEGER), 9223372036854775807 FROM run WHERE key = 'branch'
    UNION ALL
    SELECT parent, min(until, parent_epoch) FROM up JOIN branches ON number = branch WHERE parent IS NOT NULL
) SELECT branch, until FROM up;
"""


def create(connection: sqlite3.Connection, now: float) -> None:
    """Makes the tables of a new history; call it in a transaction."""
    for statement in (*_TABLES.split(";"), *_TRIGGERS):
        connection.execute(statement)
    connection.execute("INSERT INTO branches VALUES (?, NULL, 'begun', NULL, 0, 0, ?)", (FIRST_BRANCH, now))
    connection.execute("INSERT INTO run VALUES ('branch', ?)", (str(FIRST_BRANCH),))
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Reads the version of a history; 0 for an empty file.

    Raises:
        BadInput: If the file is not a history, or has another version.
        TrainingError: If the file cannot be read now.
    """
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise no_history(path, error) from None
    if version not in (0, SCHEMA_VERSION):
        raise BadInput(
            f"{path} has history version {version}; this program reads version {SCHEMA_VERSION}. "
            "Use the release that wrote it, or give another folder."
        )
    return version


def show(connection: sqlite3.Connection) -> None:
    """Makes the views that readers use: `path` for the current branch, `shown_epochs` and others for its rows."""
    shown = "".join(
        f"CREATE TEMP VIEW shown_{table} AS SELECT {columns} "
        f"FROM path CROSS JOIN {table} USING (branch) WHERE epoch <= until;"
        for table, columns in _COLUMNS.items()
    )
    connection.executescript(_PATH + shown)


def first_of(table: str, since: str) -> str:
    """SQL for the current branch's first epoch after `since`; an index finds it, however long the run is."""
    return f"""(SELECT min(first) FROM (SELECT
        (SELECT min(epoch) FROM {table} WHERE {table}.branch = path.branch AND epoch > {since} AND epoch <= until)
        AS first FROM path))"""


def last_of(table: str) -> str:
    """SQL for the current branch's last epoch; see `first_of`."""
    return f"""(SELECT max(last) FROM (SELECT
        (SELECT max(epoch) FROM {table} WHERE {table}.branch = path.branch AND epoch <= until)
        AS last FROM path))"""


def no_history(path: Path, error: sqlite3.DatabaseError) -> TrainingError:
    """Returns the error to raise for a file that cannot be read as a history.

    The error proposes to move the file away, unless the history can be read again later, for example because it is
    locked now.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest of it tells more
    if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:  # that one: it lacks a table
        return TrainingError(
            f"The history {path} cannot be read: {error}.",
            cure="Another program has locked it, its disk has a fault, or this program has too many files open.",
        )
    return BadInput(
        f"{path} is no history of a run ({error}); move it and the files {path.name}-* away, or give another folder."
    )
