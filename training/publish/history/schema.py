"""The tables of a history file, their versions, and what a reader sees of them.

A run that goes back to an earlier epoch trains some epochs again. Both trainings stay in the file: each is a branch,
and every row belongs to one. Readers see the current branch with the part of its ancestors that it goes on from.

Version 3 also keeps texts; version 2 had only pictures, and version 1 no branches. Both are migrated when a monitor
opens them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from training.errors import BadInput, TrainingError
from training.publish.history.backup import backups

SCHEMA_VERSION = 3
"""Kept in SQLite's `user_version`."""
FIRST_BRANCH = 1

_BRANCHED = """
CREATE TABLE branches (
    number INTEGER PRIMARY KEY, lineage TEXT, kind TEXT NOT NULL,
    parent INTEGER REFERENCES branches (number), parent_epoch INTEGER NOT NULL,
    newest_epoch INTEGER NOT NULL, time REAL NOT NULL
) STRICT;
CREATE TABLE reports (
    branch INTEGER NOT NULL, epoch INTEGER NOT NULL, name TEXT NOT NULL, peer_id TEXT NOT NULL,
    loss REAL NOT NULL, samples INTEGER NOT NULL,
    PRIMARY KEY (branch, epoch, name, peer_id)
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
) STRICT, WITHOUT ROWID
"""
_UNBRANCHED = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE peers (
    name TEXT NOT NULL, peer_id TEXT NOT NULL,
    last_seen REAL NOT NULL, active INTEGER NOT NULL, record_time REAL,
    samples INTEGER NOT NULL, seconds REAL NOT NULL, samples_per_second REAL,
    since_epoch INTEGER, since_samples INTEGER NOT NULL, branch INTEGER,
    PRIMARY KEY (name, peer_id)
) STRICT;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL
) STRICT
"""
_MOVED = ("reports", "epochs", "snapshots", "pictures")
"""Tables whose rows got a branch in version 2."""

SHOWN_COLUMNS = ("prompt", "file", "shape", "colour", "text", "good")
"""Of the table `pictures`, in the order of its columns."""
_COLUMNS = {
    "epochs": "epoch, time, loss, active_peers, samples, samples_per_second",
    "reports": "epoch, name, peer_id, loss, samples",
    "snapshots": "epoch, time",
    "pictures": f"epoch, number, {', '.join(SHOWN_COLUMNS)}",
}
_COLUMNS_OF_2 = _COLUMNS | {"pictures": "epoch, number, prompt, file, shape, colour"}
"""Of versions 1 and 2."""
_WITHOUT_TEXTS = "CREATE TEMP VIEW pictures AS SELECT {branch}*, NULL AS text, NULL AS good FROM main.pictures;"
_PATH = """
CREATE TEMP VIEW path AS
WITH RECURSIVE up (branch, until) AS (
    SELECT CAST(value AS INTEGER), 9223372036854775807 FROM run WHERE key = 'branch'
    UNION ALL
    SELECT parent, min(until, parent_epoch) FROM up JOIN branches ON number = branch WHERE parent IS NOT NULL
) SELECT branch, until FROM up;
"""
_ONE_BRANCH = f"""
CREATE TEMP VIEW path AS SELECT {FIRST_BRANCH} AS branch, 9223372036854775807 AS until;
CREATE TEMP VIEW branches AS SELECT {FIRST_BRANCH} AS number, NULL AS lineage, 'begun' AS kind, NULL AS parent,
    0 AS parent_epoch, 0 AS newest_epoch, CAST(value AS REAL) AS time FROM run WHERE key = 'started_at';
""" + "".join(
    f"CREATE TEMP VIEW {table} AS SELECT {FIRST_BRANCH} AS branch, * FROM main.{table};"
    for table in _COLUMNS
    if table != "pictures"
)


def create(connection: sqlite3.Connection, now: float) -> None:
    """Makes the tables of a new history; call it in a transaction."""
    for statement in f"{_UNBRANCHED};{_BRANCHED}".split(";"):
        connection.execute(statement)
    _begin_first_branch(connection, newest_epoch=0, now=now)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def migrate(connection: sqlite3.Connection, version: int, now: float) -> None:
    """Makes a history of an earlier version one of this version; call it in a transaction."""
    if version == 1:
        _give_branches(connection, now)
    else:
        _move(connection, ("pictures",), branch="branch")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _move(connection: sqlite3.Connection, tables: Sequence[str], *, branch: str) -> None:
    """Makes tables of earlier versions anew, with the columns of this version and the rows that they had.

    Args:
        connection: In a transaction.
        tables: In the order in which they refer to each other.
        branch: SQL of a row's branch.
    """
    for table in tables:
        connection.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    for statement in _BRANCHED.split(";"):
        connection.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
    for table in reversed(tables):
        columns = _COLUMNS_OF_2[table]
        connection.execute(f"INSERT INTO {table} (branch, {columns}) SELECT {branch}, {columns} FROM {table}_before")
        connection.execute(f"DROP TABLE {table}_before")


def _give_branches(connection: sqlite3.Connection, now: float) -> None:
    """Makes a history of version 1 one with a single branch."""
    _move(connection, _MOVED, branch=str(FIRST_BRANCH))
    connection.execute("ALTER TABLE peers ADD COLUMN branch INTEGER")
    newest = connection.execute("SELECT coalesce(max(epoch), 0) FROM epochs").fetchone()[0]
    _begin_first_branch(connection, newest_epoch=newest, now=now)
    connection.execute("UPDATE peers SET branch = ? WHERE since_epoch IS NOT NULL", (FIRST_BRANCH,))


def _begin_first_branch(connection: sqlite3.Connection, *, newest_epoch: int, now: float) -> None:
    began = connection.execute("SELECT value FROM run WHERE key = 'started_at'").fetchone()
    connection.execute(
        "INSERT INTO branches VALUES (?, NULL, 'begun', NULL, 0, ?, ?)",
        (FIRST_BRANCH, newest_epoch, float(began[0]) if began else now),
    )
    connection.execute("INSERT INTO run VALUES ('branch', ?)", (str(FIRST_BRANCH),))


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a history, 0 for an empty file.

    Raises:
        BadInput: If it is not a history, or of a version that this program does not know.
        TrainingError: If it cannot be read now.
    """
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise no_history(path, error) from None
    if version > SCHEMA_VERSION:
        raise BadInput(
            f"{path} has history version {version}; this program reads versions up to {SCHEMA_VERSION}. "
            "Use the release that wrote it, or give another folder."
        )
    return version


def show(connection: sqlite3.Connection, version: int) -> None:
    """Makes the views that readers use: `path`, and of the current branch `shown_epochs` and so on.

    In a history of version 1, all tables seem to have the one branch that such a history is. Before version 3, pictures
    seem to have no texts.
    """
    shown = "".join(
        f"CREATE TEMP VIEW shown_{table} AS SELECT {columns} "
        f"FROM path CROSS JOIN {table} USING (branch) WHERE epoch <= until;"
        for table, columns in _COLUMNS.items()
    )
    branches = _PATH if version > 1 else _ONE_BRANCH
    branch = "" if version > 1 else f"{FIRST_BRANCH} AS branch, "
    without_texts = _WITHOUT_TEXTS.format(branch=branch) if version < SCHEMA_VERSION else ""
    connection.executescript(branches + without_texts + shown)


def first_of(table: str, since: str) -> str:
    """SQL of the first epoch of the current branch after another one; an index finds it, however long the run is."""
    return f"""(SELECT min(first) FROM (SELECT
        (SELECT min(epoch) FROM {table} WHERE {table}.branch = path.branch AND epoch > {since} AND epoch <= until)
        AS first FROM path))"""


def last_of(table: str) -> str:
    """SQL of the last epoch of the current branch; see `first_of`."""
    return f"""(SELECT max(last) FROM (SELECT
        (SELECT max(epoch) FROM {table} WHERE {table}.branch = path.branch AND epoch <= until)
        AS last FROM path))"""


def no_history(path: Path, error: sqlite3.DatabaseError) -> TrainingError:
    """The error of a file that cannot be read as a history; it names the newest backup.

    A history that only cannot be read now, such as a locked one, must not be moved away.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest of it tells more
    if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:  # that one: it lacks a table
        return TrainingError(
            f"The history {path} cannot be read: {error}.",
            cure="Another program has locked it, its disk has a fault, or this program has too many files open.",
        )
    newest = (backups(path.parent) or [None])[-1]
    return BadInput(
        f"{path} is no history of a run ({error}); move it and the files {path.name}-* away, or give another folder.",
        cure=""
        if newest is None
        else f"Its newest backup is {newest}: copy that to {path} after moving the others away.",
    )
