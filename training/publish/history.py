"""The run's history in one SQLite file: epochs, volunteers, events and pictures.

Only the monitor writes, in one transaction per observation, so a kill at any moment loses at most the last one. An
epoch's loss is the mean of its peers' losses, weighted by the samples that each contributed since its last epoch.
Readers (the live API, the export) open the same file concurrently. A volunteer is a name: all peers with the same name,
one after another or at once, add to one total, as one person's machines did in the 2021 run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Literal, Protocol

from training.errors import BadInput, TrainingError
from training.publish.backup import backups

SCHEMA_VERSION = 1
"""Kept in SQLite's `user_version`."""

EventKind = Literal["joined", "left", "unseen", "checkpoint", "warning", "started", "stopped"]

_SCHEMA = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE peers (
    name TEXT NOT NULL, peer_id TEXT NOT NULL,
    last_seen REAL NOT NULL, active INTEGER NOT NULL, record_time REAL,
    samples INTEGER NOT NULL, seconds REAL NOT NULL, samples_per_second REAL,
    since_epoch INTEGER, since_samples INTEGER NOT NULL,
    PRIMARY KEY (name, peer_id)
) STRICT;
CREATE TABLE reports (
    epoch INTEGER NOT NULL, name TEXT NOT NULL, peer_id TEXT NOT NULL,
    loss REAL NOT NULL, samples INTEGER NOT NULL,
    PRIMARY KEY (epoch, name, peer_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY, time REAL NOT NULL, loss REAL NOT NULL, active_peers INTEGER NOT NULL,
    samples INTEGER NOT NULL, samples_per_second REAL
) STRICT;
CREATE TABLE events (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE TABLE snapshots (epoch INTEGER PRIMARY KEY, time REAL NOT NULL) STRICT;
CREATE TABLE pictures (
    epoch INTEGER NOT NULL REFERENCES snapshots (epoch), number INTEGER NOT NULL,
    prompt TEXT NOT NULL, file TEXT NOT NULL, shape INTEGER, colour INTEGER,
    PRIMARY KEY (epoch, number)
) STRICT, WITHOUT ROWID;
"""


class PeerReport(Protocol):
    """The fields of a peer's metric record that the history reads; `training.swarm.metrics.PeerRecord` has them."""

    name: str
    peer_id: str
    status: str
    """`joining`, `training` or `leaving`."""
    epoch: int
    """Updates in the peer's weights, made by itself or downloaded."""
    loss: float | None
    """Mean over its samples of the last complete epoch."""
    samples: int
    """All samples of this peer, including those before a restart."""
    samples_per_second: float
    seconds: float
    """All the time that this peer has trained."""
    time: float
    """When the peer wrote the record, by its own clock; a different value means that the record was renewed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A drawn prompt and what the rule-based judge says of it."""

    prompt: str
    file: str
    """Path below the pictures' folder, such as `000040/0.png`."""
    shape: bool | None
    """Whether every shape is as the prompt says; None if the judge does not know the prompt's words."""
    colour: bool | None


class HistoryReader:
    """Reads a history while another process or thread may write it.

    Args:
        path: The SQLite file.
        clock: Seconds since the epoch; a test passes its own.

    Raises:
        BadInput: If there is no such file, or it is not a history of this version.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time):
        self.path = path
        self._clock = clock
        if not path.is_file():
            raise BadInput(f"There is no history at {path}; give the folder of a run that has been monitored.")
        with self._reading() as connection:
            _check_version(connection, path)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        # A connection for each query: the server answers in many threads, and a connection belongs to one.
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        connection.row_factory = sqlite3.Row
        try:
            yield connection
        finally:
            connection.close()

    def _rows(self, query: str, *values: object) -> list[dict]:
        """Rows of a query whose values are given in their order, or as one dictionary."""
        named = values[0] if values and isinstance(values[0], dict) else values
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query, named)]

    def run_value(self, key: str) -> str | None:
        """What `History.set_run_value` stored, or None."""
        rows = self._rows("SELECT value FROM run WHERE key = ?", key)
        return rows[0]["value"] if rows else None

    def epochs(self, since: int = -1) -> list[dict]:
        """Epochs after `since`, oldest first: epoch, time, loss, active_peers, samples, samples_per_second."""
        return self._rows("SELECT * FROM epochs WHERE epoch > ? ORDER BY epoch", since)

    def thinned_epochs(self, points: int, exact: int = 500) -> list[dict]:
        """As `epochs`, but of all except the last `exact` epochs only `points` rows: neighbours are averaged (the loss
        by samples) and listed under the last of them."""
        return self._rows(
            """WITH bounds AS (SELECT (SELECT min(epoch) FROM epochs) AS first,
                (SELECT max(epoch) FROM epochs) - ? AS until),
            width AS (SELECT until, 1 + max(0, until - first) / ? AS epochs FROM bounds)
            SELECT max(epoch) AS epoch, max(time) AS time, sum(loss * samples) / sum(samples) AS loss,
                CAST(round(avg(active_peers)) AS INTEGER) AS active_peers, sum(samples) AS samples,
                avg(samples_per_second) AS samples_per_second
            FROM epochs, width
            GROUP BY iif(epoch > until, epoch, -1 - epoch / width.epochs) ORDER BY 1""",
            exact,
            points,
        )

    def last_epoch(self) -> dict | None:
        """The newest row of `epochs`."""
        rows = self._rows("SELECT * FROM epochs ORDER BY epoch DESC LIMIT 1")
        return rows[0] if rows else None

    def epoch_losses(self, last: int) -> list[float]:
        """The losses of the last so many epochs, oldest first; each is the median of what its volunteers reported."""
        rows = self._rows(
            "SELECT epoch, loss FROM reports WHERE epoch > (SELECT max(epoch) FROM reports) - ? ORDER BY epoch", last
        )
        return [median(row["loss"] for row in group) for _, group in groupby(rows, key=itemgetter("epoch"))]

    def active_peers(self) -> int:
        """Peers whose record was renewed within the expiration time."""
        return self._rows("SELECT count(*) AS n FROM peers WHERE active")[0]["n"]

    def last_seen(self) -> float | None:
        """When the latest record of any peer came; None if there was none."""
        return self._rows("SELECT max(last_seen) AS latest FROM peers")[0]["latest"]

    def is_watched(self) -> bool:
        """Whether a monitor writes this history now."""
        try:
            with _lock_path(self.path).open() as lock_file:
                fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def samples_per_second(self) -> float | None:
        """Samples per second of all active peers together; None if no peer reports any."""
        return self._rows("SELECT sum(samples_per_second) AS rate FROM peers WHERE active")[0]["rate"]

    def total_samples(self) -> int:
        """Samples that all volunteers have contributed so far."""
        return self._rows("SELECT coalesce(sum(samples), 0) AS n FROM peers")[0]["n"]

    def losses(
        self, max_points: int = 1000, *, since: int = -1, names: Sequence[str] | None = None
    ) -> dict[str, list[list]]:
        """Loss of each volunteer over epochs, as `{name: [[epoch, loss], ...]}`.

        If more than `max_points` epochs are asked for, neighbouring epochs are averaged (weighted by samples) and
        listed under the first of them.

        Args:
            max_points: Of each volunteer.
            since: Only epochs after this one.
            names: Only these volunteers; None: all.
        """
        rows = self._rows(
            """WITH bounds AS (SELECT (SELECT min(epoch) FROM reports WHERE epoch > :since) AS first,
                (SELECT max(epoch) FROM reports) AS last),
            width AS (SELECT 1 + coalesce(last - first, 0) / :points AS epochs FROM bounds)
            SELECT name, min(epoch) AS epoch, sum(loss * samples) / sum(samples) AS loss
            FROM reports, width
            WHERE epoch > :since AND (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
            GROUP BY name, epoch / width.epochs ORDER BY name, 2""",
            {"since": since, "points": max_points, "names": None if names is None else json.dumps(list(names))},
        )
        losses: dict[str, list[list]] = {}
        for row in rows:
            losses.setdefault(row["name"], []).append([row["epoch"], row["loss"]])
        return losses

    def count_names(self) -> int:
        """Volunteers that have ever taken part."""
        return self._rows("SELECT count(DISTINCT name) AS n FROM peers")[0]["n"]

    def first_names(self, most: int) -> list[str]:
        """Names of the volunteers that have contributed most."""
        query = "SELECT name FROM peers GROUP BY name ORDER BY sum(samples) DESC, name LIMIT ?"
        return [row["name"] for row in self._rows(query, most)]

    def leaderboard(self, *, most: int | None = None, offset: int = 0) -> list[dict]:
        """Volunteers by contributed samples, most first; `share` is of all samples, None while there are none.

        Args:
            most: At most so many; None: all.
            offset: Without so many of the first.
        """
        # The page is cut out before epochs are counted: counting those of all volunteers takes seconds in a large run.
        rows = self._rows(
            """SELECT name, samples, seconds, active, last_seen, samples_per_second,
                (SELECT peer_id FROM peers AS latest WHERE latest.name = totals.name
                 ORDER BY active DESC, last_seen DESC, peer_id LIMIT 1) AS peer_id,
                (SELECT count(DISTINCT epoch) FROM reports WHERE reports.name = totals.name) AS epochs
            FROM (
                SELECT name, sum(samples) AS samples, sum(seconds) AS seconds, max(active) AS active,
                    max(last_seen) AS last_seen, sum(iif(active, samples_per_second, NULL)) AS samples_per_second
                FROM peers GROUP BY name ORDER BY samples DESC, name LIMIT ? OFFSET ?
            ) AS totals""",
            -1 if most is None else most,
            offset,
        )
        total = self.total_samples()
        for row in rows:
            row["active"] = bool(row["active"])
            row["share"] = row["samples"] / total if total else None
        return rows

    def snapshots(self) -> list[dict]:
        """Pictures of the fixed prompts, oldest first: epoch, time, pictures (prompt, file, shape, colour)."""
        snapshots = self._rows("SELECT * FROM snapshots ORDER BY epoch")
        pictures = self._rows("SELECT * FROM pictures ORDER BY epoch, number")
        by_epoch: dict[int, list[dict]] = {snapshot["epoch"]: [] for snapshot in snapshots}
        for picture in pictures:
            del picture["number"]
            for verdict in ("shape", "colour"):
                picture[verdict] = None if picture[verdict] is None else bool(picture[verdict])
            by_epoch.get(picture.pop("epoch"), []).append(picture)
        return [{**snapshot, "pictures": by_epoch[snapshot["epoch"]]} for snapshot in snapshots]

    def events(self, limit: int = 200) -> list[dict]:
        """The latest events, oldest first: time, kind, name, text."""
        return self._rows("SELECT time, kind, name, text FROM events ORDER BY number DESC LIMIT ?", limit)[::-1]


class History(HistoryReader):
    """The writing side. A lock file ensures one writer at a time.

    Args:
        path: The SQLite file; created, with its folder, if it does not exist.
        run_id: The run whose history this is.
        recipe_digest: `RunConfig.digest` of its recipe.
        expiration_seconds: A peer whose record is not renewed for this long counts as gone.
        clock: Seconds since the epoch; a test passes its own.

    Raises:
        TrainingError: If another process writes this history now.
        BadInput: If the file is the history of another run or recipe, or not a history of this version.
    """

    def __init__(
        self,
        path: Path,
        *,
        run_id: str,
        recipe_digest: str,
        expiration_seconds: float,
        clock: Callable[[], float] = time.time,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._expiration_seconds = expiration_seconds
        self._watching_since = clock()
        self._lock_file = _lock_path(path).open("a")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise TrainingError(f"Another monitor writes {path} now; stop it or give another folder.") from None
        self._guard = threading.Lock()
        # Without an isolation level, Python opens no transactions of its own. Several threads write, one at a time
        # (`_guard`).
        self._connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            self._set_up(path, run_id, recipe_digest, clock())
            super().__init__(path, clock=clock)
        except BaseException:
            self.close()
            raise

    def _set_up(self, path: Path, run_id: str, recipe_digest: str, now: float) -> None:
        try:
            # In this mode readers do not wait for the writer, and it does not wait for them.
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may take the last transactions, but cannot damage the file; FULL would flush after each of
            # them.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            if self._connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                with self._writing() as connection:
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                    connection.executemany(
                        "INSERT INTO run VALUES (?, ?)",
                        [("run_id", run_id), ("recipe_digest", recipe_digest), ("started_at", repr(now))],
                    )
            _check_version(self._connection, path)
            known = dict(self._connection.execute("SELECT key, value FROM run").fetchall())
        except sqlite3.DatabaseError as error:
            raise _no_history(path, error) from None
        if (known["run_id"], known["recipe_digest"]) != (run_id, recipe_digest):
            raise BadInput(
                f"{path} is the history of {known['run_id']} (recipe {known['recipe_digest']}), not of {run_id} "
                f"(recipe {recipe_digest}); give another folder, or remove that one to start over."
            )
        with self._writing() as connection:
            # Without it, a volunteer's losses and epochs are searched for among those of all volunteers.
            connection.execute("CREATE INDEX IF NOT EXISTS reports_by_name ON reports (name)")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: on an exception, none of it is written.

        Raises:
            TrainingError: If the file cannot be written, such as on a full disk; the next one may succeed.
        """
        with self._guard:
            try:
                # IMMEDIATE takes the lock for writing now; a transaction that begins by reading may be refused when it
                # writes.
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise TrainingError(
                    f"The history cannot be written: {error}.",
                    cure="Make room on the disk; the monitor then goes on by itself.",
                ) from None
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def set_run_value(self, key: str, value: str) -> None:
        """Stores what readers need to know of the run, such as its recipe."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, value))

    def observe(self, reports: Sequence[PeerReport]) -> None:
        """Takes in the peers' current records, and marks peers as gone that have not renewed theirs in time."""
        now = self._clock()
        with self._writing() as connection:
            epochs = {report.epoch for report in reports if self._observe_one(connection, report, now)}
            self._expire(connection, now)
            for epoch in epochs:
                self._sum_up_epoch(connection, epoch, now)

    def _observe_one(self, connection: sqlite3.Connection, report: PeerReport, now: float) -> bool:
        """Takes in one record; returns whether it reports a new epoch."""
        key = (report.name, report.peer_id)
        query = "SELECT * FROM peers WHERE name = ? AND peer_id = ?"
        known = connection.execute(query, key).fetchone()
        if known is None:
            connection.execute(
                "INSERT INTO peers VALUES (?, ?, ?, FALSE, NULL, 0, 0.0, NULL, ?, ?)",
                (*key, now, _epoch_of(report), report.samples),
            )
            known = connection.execute(query, key).fetchone()
        if known["record_time"] == report.time:
            return False
        if report.status != "leaving" and not known["active"]:
            again = connection.execute("SELECT 1 FROM events WHERE kind = 'joined' AND name = ?", key[:1]).fetchone()
            self._add_event(connection, now, "joined", report.name, "is back" if again else "joined the run")
        elif report.status == "leaving" and known["active"]:
            self._add_event(connection, now, "left", report.name, "left the run")
        epochs = 1 if known["since_epoch"] is None else report.epoch - known["since_epoch"]
        # Negative if the peer has restarted without its state: counting then begins anew.
        samples = report.samples - known["since_samples"]
        finished = epochs > 0 and samples > 0 and _finite(report.loss) is not None
        if finished:
            connection.execute(
                "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?, ?)",
                # The record may be read only once in several epochs; the samples then count evenly for all of them.
                (report.epoch, *key, report.loss, max(1, samples // epochs)),
            )
        connection.execute(
            """UPDATE peers SET last_seen = max(last_seen, ?), active = ?, record_time = ?, samples = max(samples, ?),
            seconds = max(seconds, ?), samples_per_second = ?, since_epoch = ?, since_samples = ?
            WHERE name = ? AND peer_id = ?""",
            (
                now,
                report.status != "leaving",
                report.time,
                report.samples,
                report.seconds,
                _finite(report.samples_per_second),
                _epoch_of(report),
                report.samples if finished or samples < 0 else known["since_samples"],
                *key,
            ),
        )
        return finished

    def _expire(self, connection: sqlite3.Connection, now: float) -> None:
        """Marks peers whose record has expired as gone. Only the time since this monitor started counts as silence: a
        restarted monitor does not know when peers left before."""
        gone = connection.execute(
            "SELECT name, peer_id, last_seen FROM peers WHERE active AND max(last_seen, ?) < ?",
            (self._watching_since, now - self._expiration_seconds),
        ).fetchall()
        for name, peer_id, last_seen in gone:
            connection.execute("UPDATE peers SET active = FALSE WHERE name = ? AND peer_id = ?", (name, peer_id))
            unseen = last_seen < self._watching_since
            # It may train on, and only not have found the run's servers again since they were away too.
            text = (
                "was not seen again since the monitor was away"
                if unseen
                else f"left: no word for {now - last_seen:.0f} s"
            )
            self._add_event(connection, now, "unseen" if unseen else "left", name, text)

    def _sum_up_epoch(self, connection: sqlite3.Connection, epoch: int, now: float) -> None:
        connection.execute(
            """INSERT INTO epochs
            SELECT epoch, ?, sum(loss * samples) / sum(samples),
                (SELECT count(*) FROM peers WHERE active), sum(samples),
                (SELECT sum(samples_per_second) FROM peers WHERE active)
            FROM reports WHERE epoch = ? GROUP BY epoch
            ON CONFLICT (epoch) DO UPDATE SET loss = excluded.loss, samples = excluded.samples,
                active_peers = excluded.active_peers, samples_per_second = excluded.samples_per_second""",
            (now, epoch),
        )

    def rewind(self, epoch: int) -> None:
        """Deletes all after an epoch, whose checkpoint the run continues from. Volunteers keep their totals."""
        with self._writing() as connection:
            for table in ("epochs", "reports", "snapshots", "pictures"):
                connection.execute(f"DELETE FROM {table} WHERE epoch > ?", (epoch,))

    def add_event(self, kind: EventKind, name: str, text: str) -> None:
        """Appends an event with the current time."""
        with self._writing() as connection:
            self._add_event(connection, self._clock(), kind, name, text)

    def _add_event(self, connection: sqlite3.Connection, now: float, kind: EventKind, name: str, text: str) -> None:
        connection.execute("INSERT INTO events (time, kind, name, text) VALUES (?, ?, ?, ?)", (now, kind, name, text))

    def add_snapshot(self, epoch: int, pictures: Sequence[Picture]) -> None:
        """Stores the pictures of an epoch, in place of earlier ones of the same epoch."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (epoch, self._clock()))
            connection.execute("DELETE FROM pictures WHERE epoch = ?", (epoch,))
            connection.executemany(
                "INSERT INTO pictures VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (epoch, number, picture.prompt, picture.file, picture.shape, picture.colour)
                    for number, picture in enumerate(pictures)
                ],
            )

    def close(self) -> None:
        """Closes the file and releases the lock for another writer."""
        self._connection.close()
        self._lock_file.close()


def _lock_path(path: Path) -> Path:
    """The file that the one writer of a history has locked."""
    return path.with_name(path.name + ".lock")


def _epoch_of(report: PeerReport) -> int | None:
    """The peer's epoch; a newcomer has none before it has taken over the run's state."""
    return None if report.status == "joining" else report.epoch


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _no_history(path: Path, error: Exception) -> BadInput:
    newest = (backups(path.parent) or [None])[-1]
    return BadInput(
        f"{path} is no history of a run ({error}); move it and the files {path.name}-* away, or give another folder.",
        cure=""
        if newest is None
        else f"Its newest backup is {newest}: copy that to {path} after moving the others away.",
    )


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise _no_history(path, error) from None
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has history version {version}; this program reads version {SCHEMA_VERSION}. "
            "Use the release that wrote it, or give another folder."
        )
