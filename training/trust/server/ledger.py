"""The SQLite file behind the register of members: its tables and their version, its transactions, and the audit log.

The server and `moderate` write it at the same time. Rows of the audit log cannot be changed or deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from training.errors import BadInput, reason_of
from training.trust.keys import OTHERS

REGISTER_VERSION = 2
"""Version of the register's tables, kept in SQLite's `user_version`."""
REGISTER_FILE = "members.sqlite"
LOCK_SECONDS = 5.0
"""Longest wait for another program's change; a peer waits longer for its ticket."""

_TABLES = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE members (
    account TEXT PRIMARY KEY, standing TEXT NOT NULL, joined INTEGER NOT NULL, shown_until INTEGER, hub_id TEXT
) STRICT;
CREATE TABLE peers (
    peer_id TEXT PRIMARY KEY, account TEXT NOT NULL REFERENCES members (account) ON DELETE CASCADE,
    first_seen INTEGER NOT NULL, ticket_ends INTEGER NOT NULL
) STRICT;
CREATE INDEX peers_of_account ON peers (account);
CREATE TABLE invitations (
    label TEXT PRIMARY KEY, code_hash BLOB NOT NULL UNIQUE, uses INTEGER NOT NULL, used INTEGER NOT NULL,
    expires INTEGER NOT NULL, made INTEGER NOT NULL
) STRICT;
CREATE TABLE bans (
    name TEXT PRIMARY KEY, account TEXT, is_ban INTEGER NOT NULL, since INTEGER NOT NULL,
    listed_until INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY, time INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'append only'); END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'append only'); END
"""
"""Tables of the register. `shown_until`: time at which a member must show their credential again; NULL: never.
`listed_until`: time at which the last ticket of a banned or removed member ends."""


class Ledger:
    """The register's SQLite file; the constructor opens it, and makes it if there is none and `run_id` is given.

    Args:
        path: Path of the file.
        run_id: Run whose members the file lists; None: the run that the file names, which must exist then.
        clock: Seconds since 1970; a test passes its own.

    Raises:
        BadInput: If the file belongs to another run, is not a register, or can be read by other users.
    """

    def __init__(self, path: Path, *, run_id: str | None = None, clock: Callable[[], float] = time.time):
        self.path, self._clock = path, clock
        try:
            if run_id is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives the files beside it, which hold the newest changes, the mode of this one.
            os.close(os.open(path, os.O_RDWR | (os.O_CREAT if run_id is not None else 0), 0o600))
            mode = path.stat().st_mode
        except OSError as error:
            raise BadInput(
                f"{path} cannot be used: {reason_of(error)}.", cure="Give another folder with --state-dir."
            ) from None
        if mode & OTHERS:
            raise BadInput(f"Others can read the register {path}; run `chmod 600 {path}`.")
        try:
            self.run_id = self._open(run_id)
        except sqlite3.DatabaseError as error:
            raise BadInput(
                f"{path} is no register of members ({error}).",
                cure="Put a copy of the file back, or give another folder with --state-dir.",
            ) from None

    @property
    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def _open(self, run_id: str | None) -> str:
        """Makes the tables of a new file. Returns the id of the run whose members the file lists."""
        with self._connected() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with self._changing() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and run_id is not None:
                _create(connection, _TABLES)
                connection.execute("INSERT INTO facts VALUES ('run_id', ?), ('version', '0')", (run_id,))
                connection.execute(f"PRAGMA user_version = {REGISTER_VERSION}")
            elif version != REGISTER_VERSION:
                raise BadInput(
                    f"{self.path} has register version {version}; this program knows {REGISTER_VERSION}. Use the "
                    "release that wrote it, or give another folder with --state-dir."
                )
            of_run = connection.execute("SELECT value FROM facts WHERE key = 'run_id'").fetchone()[0]
        if run_id not in (None, of_run):
            raise BadInput(
                f"{self.path} has the members of the run {of_run}, not of {run_id}; give another folder with "
                "--state-dir."
            )
        return of_run

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        # A connection for each query: the server answers in many threads, and a connection belongs to one.
        connection = sqlite3.connect(self.path, timeout=LOCK_SECONDS, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")  # a ban is on the disk before it is confirmed
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Runs a block in a transaction, which is undone if the block raises."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _rows(self, query: str, *values: object) -> list[dict]:
        with self._connected() as connection:
            return [dict(row) for row in connection.execute(query, values)]

    def log(self, connection: sqlite3.Connection, who: str, what: str, subject: str, detail: str) -> None:
        """Adds an entry to the audit log, within a transaction."""
        values = (self.now, who, what, subject, detail)
        connection.execute("INSERT INTO audit (time, who, what, subject, detail) VALUES (?, ?, ?, ?, ?)", values)


def _create(connection: sqlite3.Connection, tables: str) -> None:
    # One by one: `executescript` would end the transaction.
    for statement in re.split(r";\n(?=CREATE)", tables.strip()):
        connection.execute(statement)
