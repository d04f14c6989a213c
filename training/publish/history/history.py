"""The run's history in one SQLite file: epochs, volunteers, events, pictures, and losses on held-out samples.

Only the monitor writes, in one transaction per observation, so a kill at any moment loses at most the last
observation. A peer's record repeats its recent epochs, so the history also has epochs that ended while no monitor
watched. An epoch's loss is the mean of its peers' losses, weighted by the samples that each contributed to it. Readers
(the live API, the export) open the same file concurrently. All peers of a volunteer (`volunteers`), one after another
or at once, add to one total, which counts the samples that averages show (`credit`).

A run that goes back to an earlier epoch continues as a new branch (`branches`), so no epoch mixes the samples of two
trainings. The epochs that the run has dropped stay in the file, except for what banned peers have claimed of them.
Readers see the current branch and the epochs of its ancestors from which it continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from training.errors import BadInput, TrainingError
from training.processes.servers.only_one import is_locked
from training.publish.history.backup import mend
from training.publish.history.banned import drop_claims
from training.publish.history.board import contribution, count_contributors, leaderboard, pages
from training.publish.history.branches import Branches
from training.publish.history.credit import Averages, credit_of, what_averages_show, with_believed_epochs
from training.publish.history.schema import (
    SCHEMA_VERSION,
    SHOWN_COLUMNS,
    create,
    first_of,
    last_of,
    no_history,
    show,
    version_of,
)
from training.publish.history.sound import DamagedHistory, is_damage, open_seal, seal
from training.publish.history.volunteers import note_volunteer, voucher_of
from training.publish.showcase import Shown
from training.recipe import parse_recipe
from training.swarm.node.metrics import RECENT_EPOCHS, TAIL, Missed, PeerRecord, RecentEpoch
from training.swarm.peers.epochs import MOST_BATCHES

if TYPE_CHECKING:  # it loads torch
    from training.tasks.held_out import HeldOut

EventKind = Literal["joined", "left", "unseen", "checkpoint", "warning", "started", "stopped", "branch"]


_REPORT = """INSERT INTO reports (branch, epoch, peer_id, loss, samples, credited, seconds)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
SAME_EPOCH_SECONDS = 10.0
"""Peers of a group end an epoch within this time of each other. Peers do an epoch again only after all have left."""


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
        with self._reading():
            pass  # which checks the version

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        # A connection for each query: the server answers in many threads, and a connection belongs to one.
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
        connection.row_factory = sqlite3.Row
        try:
            version_of(connection, self.path)
            show(connection)
            yield connection
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                raise DamagedHistory(self.path, str(error)) from None
            raise
        finally:
            connection.close()

    def _rows(self, query: str, *values: object) -> list[dict]:
        """Rows of a query whose values are given in their order, or as one dictionary."""
        named = values[0] if values and isinstance(values[0], dict) else values
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query, named)]

    def run_value(self, key: str) -> str | None:
        """Value that `History.set_run_value` stored under a key; None if there is none."""
        rows = self._rows("SELECT value FROM run WHERE key = ?", key)
        return rows[0]["value"] if rows else None

    def epochs(self, since: int = -1) -> list[dict]:
        """Epochs after `since`, oldest first: epoch, time, loss, active_peers, samples, samples_per_second."""
        return self._rows("SELECT * FROM shown_epochs WHERE epoch > ? ORDER BY epoch", since)

    def thinned_epochs(self, points: int, exact: int = 500) -> list[dict]:
        """Returns rows as `epochs` does, one for each of the last `exact` epochs, and about `points` for all before.

        These average neighbouring epochs (the loss by samples) and have the number of the last of them.
        """
        return self._rows(
            f"""WITH bounds AS (SELECT {first_of("epochs", "-1")} AS first, {last_of("epochs")} - ? AS until),
            width AS (SELECT until, 1 + max(0, until - first) / ? AS epochs FROM bounds)
            SELECT max(epoch) AS epoch, max(time) AS time, sum(loss * samples) / sum(samples) AS loss,
                CAST(round(avg(active_peers)) AS INTEGER) AS active_peers, sum(samples) AS samples,
                avg(samples_per_second) AS samples_per_second
            FROM shown_epochs, width
            GROUP BY iif(epoch > until, epoch, -1 - epoch / width.epochs) ORDER BY 1""",
            exact,
            points,
        )

    def last_epoch(self) -> dict | None:
        """The newest row of `epochs`."""
        rows = self._rows("SELECT * FROM shown_epochs ORDER BY epoch DESC LIMIT 1")
        return rows[0] if rows else None

    def branches(self) -> list[dict]:
        """The branches of the run, oldest first: number, lineage, kind, parent, parent_epoch, time, current, left.

        `kind` is `begun`, `restored` (a maintainer went back to `parent_epoch`) or `resumed` (all had left, and those
        who came back went on from `parent_epoch`). `left` lists the branch's epochs that the run has dropped.
        """
        with self._reading() as connection:
            branches = [dict(row) for row in connection.execute("SELECT * FROM branches ORDER BY number")]
            left = connection.execute(
                """SELECT * FROM epochs WHERE NOT EXISTS
                (SELECT 1 FROM path WHERE path.branch = epochs.branch AND epochs.epoch <= path.until)
                ORDER BY branch, epoch"""
            ).fetchall()
            current = connection.execute("SELECT max(branch) FROM path WHERE until = (SELECT max(until) FROM path)")
            (number,) = current.fetchone()
        for branch in branches:
            del branch["newest_epoch"]
            branch["current"] = branch["number"] == number
            rows = [dict(row) for row in left if row["branch"] == branch["number"]]
            branch["left"] = [{key: value for key, value in row.items() if key != "branch"} for row in rows]
        return branches

    def epoch_losses(self, last: int, *, until: int | None = None) -> list[float]:
        """Losses of the last epochs, oldest first; each is the median of the volunteers' reports.

        Args:
            last: Number of epochs; there may be fewer.
            until: The last of these epochs; None: the run's last.
        """
        rows = self._rows(
            f"""WITH newest AS (SELECT coalesce(:until, {last_of("reports")}) AS epoch)
            SELECT shown_reports.epoch, loss FROM shown_reports, newest
            WHERE shown_reports.epoch > newest.epoch - :last AND shown_reports.epoch <= newest.epoch ORDER BY 1""",
            {"last": last, "until": until},
        )
        return [median(row["loss"] for row in group) for _, group in groupby(rows, key=itemgetter("epoch"))]

    def active_peers(self) -> int:
        """Peers whose record was renewed within the expiration time."""
        return self._rows("SELECT count(*) AS n FROM peers WHERE active")[0]["n"]

    def last_seen(self) -> float | None:
        """Time at which the latest record of any peer came; None if there was none."""
        return self._rows("SELECT max(last_seen) AS latest FROM peers")[0]["latest"]

    def is_watched(self) -> bool:
        """True if a monitor writes this history now."""
        return is_locked(_lock_path(self.path))

    def samples_per_second(self) -> float | None:
        """Samples per second of all active peers together; None if no peer reports any."""
        return self._rows("SELECT sum(samples_per_second) AS rate FROM peers WHERE active")[0]["rate"]

    def peer(self, peer_id: str) -> dict | None:
        """Time of a peer's latest record (`last_seen`) and its credited samples; None if no record has come."""
        rows = self._rows("SELECT last_seen, samples FROM peers WHERE peer_id = ?", peer_id)
        return rows[0] if rows else None

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
            max_points: Most points of each volunteer.
            since: Only epochs after this one.
            names: Only these volunteers; None: all.
        """
        rows = self._rows(
            f"""WITH bounds AS (SELECT {first_of("reports", ":since")} AS first, {last_of("reports")} AS last),
            width AS (SELECT 1 + coalesce(last - first, 0) / :points AS epochs FROM bounds)
            SELECT name, min(epoch) AS epoch, sum(loss * samples) / sum(samples) AS loss
            FROM shown_reports, width, (SELECT peer_id, volunteers.name FROM peers JOIN volunteers ON id = volunteer
                WHERE :names IS NULL OR volunteers.name IN (SELECT value FROM json_each(:names))) USING (peer_id)
            WHERE epoch > :since
            GROUP BY name, epoch / width.epochs ORDER BY name, 2""",
            {"since": since, "points": max_points, "names": None if names is None else json.dumps(list(names))},
        )
        losses: dict[str, list[list]] = {}
        for row in rows:
            losses.setdefault(row["name"], []).append([row["epoch"], row["loss"]])
        return losses

    def count_names(self) -> int:
        """Volunteers that have ever taken part."""
        return self._rows("SELECT count(*) AS n FROM volunteers")[0]["n"]

    def first_names(self, most: int) -> list[str]:
        """Names of the volunteers that have contributed most."""
        query = """SELECT volunteers.name FROM peers JOIN volunteers ON id = volunteer
            GROUP BY id ORDER BY sum(samples) DESC, volunteers.name LIMIT ?"""
        return [row["name"] for row in self._rows(query, most)]

    def names_of_peers(self) -> dict[str, str]:
        """The shown name of each peer's volunteer, by peer id."""
        rows = self._rows("SELECT peer_id, volunteers.name FROM peers JOIN volunteers ON id = volunteer")
        return {row["peer_id"]: row["name"] for row in rows}

    def leaderboard(self, *, hours: int | None = None, most: int | None = None, offset: int = 0) -> list[dict]:
        """Volunteers by credited samples; see `board.leaderboard`."""
        with self._reading() as connection:
            return leaderboard(connection, now=self._clock(), hours=hours, most=most, offset=offset)

    def count_contributors(self, *, hours: int | None = None) -> dict[str, int]:
        """Numbers of volunteers; see `board.count_contributors`."""
        with self._reading() as connection:
            return count_contributors(connection, now=self._clock(), hours=hours)

    def pages(self) -> list[str]:
        """Ids of all volunteers' pages."""
        with self._reading() as connection:
            return pages(connection)

    def has_page(self, page: str) -> bool:
        """Returns True if a volunteer has this page."""
        return bool(self._rows("SELECT 1 FROM volunteers WHERE page = ?", page))

    def contribution(self, page: str) -> dict | None:
        """What the volunteer with this page has contributed; see `board.contribution`."""
        with self._reading() as connection:
            return contribution(connection, page, now=self._clock())

    def snapshots(self) -> list[dict]:
        """Pictures or texts that the model made of the fixed prompts, oldest first: epoch, time, pictures.

        A picture has prompt, file, shape, colour; a text has prompt, text, good (see `Shown`).
        """
        snapshots = self._rows("SELECT * FROM shown_snapshots ORDER BY epoch")
        pictures = self._rows("SELECT * FROM shown_pictures ORDER BY epoch, number")
        by_epoch: dict[int, list[dict]] = {snapshot["epoch"]: [] for snapshot in snapshots}
        for row in pictures:
            for verdict in ("shape", "colour", "good"):
                row[verdict] = None if row[verdict] is None else bool(row[verdict])
            fields = ("prompt", "text", "good") if row["file"] is None else ("prompt", "file", "shape", "colour")
            by_epoch.get(row["epoch"], []).append({field: row[field] for field in fields})
        return [{**snapshot, "pictures": by_epoch[snapshot["epoch"]]} for snapshot in snapshots]

    def held_out(self, since: int | None = None) -> list[dict]:
        """Losses of checkpoints on held-out samples, oldest first: epoch, time, loss, samples, tokens, clip_score.

        Args:
            since: Only rows that were measured when the run was beyond this epoch. A loss comes later than its epoch,
                so readers who know the epoch may lack the loss. None: all.
        """
        query = """SELECT * FROM shown_held_out
            WHERE ?1 IS NULL OR time >= (SELECT min(time) FROM shown_epochs WHERE epoch > ?1) ORDER BY epoch"""
        return self._rows(query, since)

    def events(self, limit: int = 200) -> list[dict]:
        """The latest events, oldest first: time, kind, name, text."""
        query = """SELECT time, kind, coalesce(volunteers.name, events.name) AS name, text
            FROM events LEFT JOIN volunteers ON id = volunteer ORDER BY number DESC LIMIT ?"""
        return self._rows(query, limit)[::-1]


class History(HistoryReader):
    """History that can be written; a lock file ensures one writer at a time.

    If the file is damaged, it is set aside, and the newest sound backup takes its place; see `mended`.

    Args:
        path: The SQLite file; created, with its folder, if it does not exist.
        run_id: The run whose history this is.
        recipe_digest: `RunConfig.digest` of its recipe.
        expiration_seconds: A peer whose record is not renewed for this long counts as gone.
        target_batch_size: Samples that end an epoch, which bound credit (`credit`); None: no bound.
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
        target_batch_size: int | None = None,
        clock: Callable[[], float] = time.time,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._expiration_seconds = expiration_seconds
        self._most_samples = math.inf if target_batch_size is None else MOST_BATCHES * target_batch_size
        self._watching_since = clock()
        self._run_id = run_id
        self._averages: dict[tuple[str | None, int], Averages] = {}
        """What averages show by the records of the last observation."""
        self._lock_file = _lock_path(path).open("a")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise TrainingError(f"Another monitor writes {path} now; stop it or give another folder.") from None
        self._guard = threading.Lock()
        self.path, self._is_ready = path, False
        self.mended = self._mend(path)
        """Sentence on the damage of the file that was found, and on what was done; None if there was none."""
        # Without an isolation level, Python opens no transactions of its own. Several threads write, one at a time
        # (`_guard`).
        self._connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            self._set_up(path, run_id, recipe_digest, clock())
            super().__init__(path, clock=clock)
            self._is_ready = True
            if self.mended is not None:
                self.add_event("warning", "monitor", self.mended)
        except BaseException:
            self.close()
            raise

    def _mend(self, path: Path) -> str | None:
        try:
            return mend(path, version=SCHEMA_VERSION)
        except (OSError, sqlite3.DatabaseError) as error:
            self._lock_file.close()
            if isinstance(error, sqlite3.DatabaseError):
                raise no_history(path, error) from None
            raise

    def _set_up(self, path: Path, run_id: str, recipe_digest: str, now: float) -> None:
        try:
            # In this mode readers do not wait for the writer, and it does not wait for them.
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may take the last transactions, but cannot damage the file; FULL would flush after each of
            # them.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            if not version_of(self._connection, path):
                with self._writing() as connection:
                    create(connection, now)
                    connection.executemany(
                        "INSERT INTO run VALUES (?, ?)",
                        [("run_id", run_id), ("recipe_digest", recipe_digest), ("started_at", repr(now))],
                    )
            known = dict(self._connection.execute("SELECT key, value FROM run").fetchall())
        except sqlite3.DatabaseError as error:
            raise no_history(path, error) from None
        if known["run_id"] != run_id or not _has_digest(known, recipe_digest):
            raise BadInput(
                f"{path} is the history of {known['run_id']} (recipe {known['recipe_digest']}), not of {run_id} "
                f"(recipe {recipe_digest}); give another folder, or remove that one to start over."
            )
        open_seal(self._connection)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Runs a block in a transaction, which is undone if the block raises.

        Raises:
            TrainingError: If the file cannot be written, such as on a full disk; the next transaction may succeed.
            DamagedHistory: If the file is damaged.
        """
        with self._guard:
            try:
                # IMMEDIATE takes the lock for writing now; a transaction that begins by reading may be refused when it
                # writes.
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                if is_damage(error):
                    raise DamagedHistory(self.path, str(error)) from None
                if not isinstance(error, sqlite3.OperationalError):
                    raise
                raise TrainingError(
                    f"The history cannot be written: {error}.",
                    cure="Make room on the disk; the monitor then goes on by itself.",
                ) from None
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def set_run_value(self, key: str, value: str) -> None:
        """Stores a value for readers under a key, such as the run's recipe."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, value))

    def enter_lineage(self, lineage: str, ancestors: Sequence[tuple[str, int]] = ()) -> None:
        """Notes the lineage that the run has from now on; begins a branch if the run goes back to an earlier epoch.

        Args:
            lineage: Id of the lineage.
            ancestors: Ids of its ancestors, the nearest first, each with the last epoch whose weights the two share.
        """
        now = self._clock()
        with self._writing() as connection:
            if (text := self._branches(connection, now).enter(lineage, ancestors)) is not None:
                self._add_event(connection, now, "branch", "the run", text)

    def observe(
        self,
        records: Sequence[PeerRecord],
        *,
        accounts: Mapping[str, str] = MappingProxyType({}),
        banned: Collection[str] = (),
    ) -> None:
        """Takes in the peers' current records, and marks peers as gone that have not renewed theirs in time.

        Records of a lineage that is not of this run are left out.

        Args:
            records: Records of all peers.
            accounts: Accounts in the tickets of peers, by peer id; none in an open run.
            banned: Peers whose records are left out; what they reported of epochs that the run has dropped is deleted.
        """
        now = self._clock()
        with self._writing() as connection:
            self._forget_later_than(connection, now)
            branches = self._branches(connection, now)
            epochs: dict[tuple[int, int], float] = {}
            for volunteer, samples in (drop_claims(connection, branches, banned) if banned else {}).items():
                told = (
                    f"is banned; {samples} samples that it claimed after the epoch that the run went back to are gone"
                )
                self._add_event(connection, now, "branch", "", told, volunteer)
            believed = [
                with_believed_epochs(record, self._most_samples)
                for record in records
                if record.peer_id not in banned and branches.of_lineage(record.lineage) is not None
            ]
            for record in believed:
                account = accounts.get(record.peer_id)
                for epoch, ended_at in self._observe_one(connection, branches, record, account, now).items():
                    epochs[epoch] = min(ended_at, epochs.get(epoch, math.inf))
            self._expire(connection, now)
            for (branch, epoch), ended_at in epochs.items():
                self._sum_up_epoch(connection, branch, epoch, ended_at)
            self._credit(connection, believed, {epoch for _, epoch in epochs})

    def _branches(self, connection: sqlite3.Connection, now: float) -> Branches:
        return Branches(connection, now=now, present_since=now - self._expiration_seconds)

    def _credit(self, connection: sqlite3.Connection, records: Sequence[PeerRecord], new: Collection[int]) -> None:
        """Credits the peers for their epochs, where the records say something new.

        A volunteer that leaves, or whose record becomes too old, takes nothing back: as long as fewer volunteers show a
        peer than before, its credit stays.

        Args:
            connection: Connection to the history, in a transaction.
            records: Records of all peers.
            new: Epochs that some of them have reported now.
        """
        volunteers = dict(connection.execute("SELECT peer_id, volunteer FROM peers").fetchall())
        before, self._averages = self._averages, what_averages_show(records, volunteers)
        for record in records:
            own, missed = volunteers[record.peer_id], dict(record.missed)
            seconds = {record.epoch: 0.0} | {one.epoch: one.seconds for one in record.recent}
            for epoch in seconds:
                shown = self._averages.get((record.lineage, epoch), Averages())
                if epoch not in new and shown == before.get((record.lineage, epoch), Averages()):
                    continue
                seen = shown.samples.get(record.peer_id[-TAIL:], {})
                seen = {witness: samples for witness, samples in seen.items() if witness != own}
                others = bool(shown.averaged - {own})
                told = (record.peer_id, epoch, seconds[epoch], missed.get(epoch))
                self._credit_epoch(connection, *told, seen, others_averaged=others)

    def _credit_epoch(
        self,
        connection: sqlite3.Connection,
        peer_id: str,
        epoch: int,
        seconds: float,
        said: Missed | None,
        seen: Mapping[str, int | None],
        *,
        others_averaged: bool,
    ) -> None:
        """Credits a peer for its last report of an epoch; see `credit_of`."""
        query = "SELECT branch, samples, witnesses FROM reports WHERE peer_id = ? AND epoch = ? ORDER BY branch DESC"
        report = connection.execute(query, (peer_id, epoch)).fetchone()
        if report is None or len(seen) < report["witnesses"]:
            return
        key = (peer_id, report["branch"], epoch)
        credit = credit_of(report["samples"], said, seen, others_averaged=others_averaged)
        query = """SELECT (SELECT time FROM epochs WHERE branch = ?1 AND epoch = ?2) - coalesce(
            (SELECT time FROM epochs WHERE branch = ?1 AND epoch < ?2 ORDER BY epoch DESC),
            (SELECT CAST(value AS REAL) FROM run WHERE key = 'started_at'))"""
        (longest,) = connection.execute(query, key[1:]).fetchone()
        values = (credit.samples, max(0.0, min(seconds, longest)), credit.witnesses, *key)
        query = """UPDATE reports SET credited = ?, seconds = ?, witnesses = ?
            WHERE peer_id = ? AND branch = ? AND epoch = ?"""
        connection.execute(query, values)
        connection.execute("DELETE FROM missed WHERE peer_id = ? AND branch = ? AND epoch = ?", key)
        if credit.missed is not None:
            connection.execute("INSERT INTO missed VALUES (?, ?, ?, ?)", (*key, credit.missed))

    def _observe_one(
        self,
        connection: sqlite3.Connection,
        branches: Branches,
        record: PeerRecord,
        account: str | None,
        now: float,
    ) -> dict[tuple[int, int], float]:
        """Takes in one record. Returns the new epochs that it reports, as `{(branch, epoch): time of the end}`."""
        key = (record.peer_id,)
        known = connection.execute("SELECT * FROM peers WHERE peer_id = ?", key).fetchone()
        if known is not None and known["record_time"] == record.time:
            return {}
        vouching = voucher_of(record, self._run_id)
        named = {"account": account, "vouching": vouching}
        volunteer = note_volunteer(connection, record.peer_id, record.name, **named)
        if known is None:
            known = self._add_peer(connection, branches, record, volunteer, now)
        self._note_coming_and_going(connection, known, volunteer, record, now)
        base = known["since_epoch"]
        epochs = 1 if base is None else record.epoch - base
        samples = record.samples - known["since_samples"]
        since = _first_recent(record) - 1 if base is None else base
        listed = _recent(record, since)
        # A peer that was started again, unseen, has fewer samples than before, but lists what it has done since.
        finished = epochs > 0 and (samples > 0 or bool(listed)) and _finite(record.loss) is not None
        # A peer that has less than before, or has done nothing yet, was started again: it may go on from anywhere.
        has_restarted = record.status == "joining" or (base is not None and record.epoch < base)
        goes_on = not has_restarted and self._goes_on(connection, branches, known, record, now)
        if not goes_on:  # nor does it keep the branch, on which it was, from being left by all
            connection.execute("UPDATE peers SET branch = NULL WHERE peer_id = ?", key)
        branch = branches.note(known["branch"], record.lineage, record.epoch) if goes_on else None
        reported = {}
        if finished:
            branch, begins = branches.branch_of_report(branch, record.lineage, since, record.epoch)
            if begins:
                text = f"all had left; those who have come back go on from epoch {since}"
                self._add_event(connection, now, "branch", "the run", text)
            # Without its recent epochs, the samples since the record before count evenly for all epochs since then.
            last = (record.epoch, record.loss, min(max(1, samples // epochs), self._most_samples), record.time, 0.0)
            for epoch, loss, given, ended_at, seconds in listed or [last]:
                holder = branches.holder(branch, epoch)
                reported[holder, epoch] = _ended_at(record, ended_at, now)
                connection.execute(
                    f"""{_REPORT} ON CONFLICT DO UPDATE SET loss = excluded.loss, samples = excluded.samples,
                    credited = excluded.credited, seconds = excluded.seconds, witnesses = 0""",
                    (holder, epoch, *key, loss, given, given, seconds),
                )
        elif base is None:
            reported = self._fill_gaps(connection, branches, record, now)
        self._note_missed(connection, branches, branch, record)
        connection.execute(
            """UPDATE peers SET last_seen = max(last_seen, ?), active = ?, record_time = ?,
            samples_per_second = ?, since_epoch = ?, since_samples = ?, branch = ? WHERE peer_id = ?""",
            (
                now,
                record.status != "leaving",
                record.time,
                _finite(record.samples_per_second),
                _epoch_of(record),
                # What a peer gave before it was started again belongs to no epoch that it does from now on.
                record.samples if finished or samples < 0 or has_restarted else known["since_samples"],
                branch,
                *key,
            ),
        )
        return reported

    def _note_missed(
        self, connection: sqlite3.Connection, branches: Branches, branch: int | None, record: PeerRecord
    ) -> None:
        """Notes the last epochs that a peer says it has missed, if it has no samples of them."""
        number = branches.of_lineage(record.lineage) if branch is None else branch
        done = {one.epoch for one in record.recent if one.samples}
        for epoch, reason in record.missed:
            if epoch not in done and abs(record.epoch - epoch) <= RECENT_EPOCHS:
                row = (record.peer_id, branches.holder(number, epoch), epoch, reason)
                connection.execute("INSERT OR IGNORE INTO missed VALUES (?, ?, ?, ?)", row)

    def _goes_on(
        self, connection: sqlite3.Connection, branches: Branches, known: sqlite3.Row, record: PeerRecord, now: float
    ) -> bool:
        """Returns whether a peer may have gone on from the epoch at which it was seen last.

        The monitor may have missed a restart of the peer. Then the peer's first epoch after the restart does not follow
        the last epoch that the monitor saw, or the branch has the same epoch from another time.
        """
        number, base = known["branch"], known["since_epoch"]
        if number is None or base is None:
            return True
        current = branches.of_lineage(record.lineage)
        if current != number and _first_recent(record) > base + 1 and record.epoch <= branches.newest(current) + 1:
            return False
        return not any(
            self._is_of_another_time(connection, branches.holder(number, epoch), epoch, record, by_its_clock, now)
            for epoch, _, given, by_its_clock, _ in record.recent
            if given and epoch <= record.epoch
        )

    def _is_of_another_time(
        self,
        connection: sqlite3.Connection,
        branch: int,
        epoch: int,
        record: PeerRecord,
        by_its_clock: float,
        now: float,
    ) -> bool:
        """Returns whether a branch has an epoch that ended at another time than a peer reports."""
        query = "SELECT time FROM epochs WHERE branch = ? AND epoch = ?"
        known = connection.execute(query, (branch, epoch)).fetchone()
        return known is not None and abs(known["time"] - _ended_at(record, by_its_clock, now)) > SAME_EPOCH_SECONDS

    def _fill_gaps(
        self, connection: sqlite3.Connection, branches: Branches, record: PeerRecord, now: float
    ) -> dict[tuple[int, int], float]:
        """Adds epochs that a peer ended before it was started again, if no monitor watched then.

        Others may have repeated such an epoch from a checkpoint since, or may be about to. Then the run's weights lack
        the peer's samples, and the epoch is not added: it ended at another time than the repetition, or before the
        others went back. A peer with a wrong clock reports a wrong time, so its report is also compared with the
        reports that the history has.

        Returns:
            The added epochs, as `{(branch, epoch): time of the end}`.
        """
        number = branches.of_lineage(record.lineage)
        told: dict[tuple[int, int], float] = {}
        for epoch, loss, given, by_its_clock, seconds in record.recent:
            holder = branches.holder(number, epoch)
            is_another = _ended_at(record, by_its_clock, now) <= branches.went_back_at(holder) + SAME_EPOCH_SECONDS
            is_another |= self._is_of_another_time(connection, holder, epoch, record, by_its_clock, now)
            is_another |= _is_counted(connection, record, epoch, loss, given)
            if epoch > record.epoch or not given or is_another:
                continue
            row = (holder, epoch, record.peer_id, loss, given, given, seconds)
            if connection.execute(f"{_REPORT} ON CONFLICT DO NOTHING", row).rowcount:
                told[holder, epoch] = _ended_at(record, by_its_clock, now)
                branches.reach(number, epoch)
        return told

    def _add_peer(
        self, connection: sqlite3.Connection, branches: Branches, record: PeerRecord, volunteer: str, now: float
    ) -> sqlite3.Row:
        """Makes the row of a new peer.

        A peer that came while no monitor watched also gets credit for those of its recent epochs that are newer than
        all epochs seen: its row begins before them.
        """
        unseen = _recent(record, branches.newest_before(record.lineage))
        before = unseen[0].epoch - 1 if unseen else _epoch_of(record)
        samples = record.samples - sum(one.samples for one in unseen)
        connection.execute(
            """INSERT INTO peers (peer_id, volunteer, name, first_seen, last_seen, active, since_epoch, since_samples)
            VALUES (?, ?, ?, ?, ?, FALSE, ?, ?)""",
            (record.peer_id, volunteer, record.name, now, now, before, max(0, samples)),
        )
        return connection.execute("SELECT * FROM peers WHERE peer_id = ?", (record.peer_id,)).fetchone()

    def _note_coming_and_going(
        self, connection: sqlite3.Connection, known: sqlite3.Row, volunteer: str, record: PeerRecord, now: float
    ) -> None:
        if record.status != "leaving" and not known["active"]:
            query = "SELECT 1 FROM events WHERE kind = 'joined' AND volunteer = ?"
            again = connection.execute(query, (volunteer,)).fetchone()
            self._add_event(connection, now, "joined", "", "is back" if again else "joined the run", volunteer)
        elif record.status == "leaving" and known["active"]:
            self._add_event(connection, now, "left", "", "left the run", volunteer)

    def _forget_later_than(self, connection: sqlite3.Connection, now: float) -> None:
        """Replaces times later than `now`, which come from a clock that was ahead, by `now`.

        Otherwise a peer seen at such a time would not expire before that time.
        """
        self._watching_since = min(self._watching_since, now)
        connection.execute("UPDATE peers SET last_seen = ? WHERE last_seen > ?", (now, now))

    def _expire(self, connection: sqlite3.Connection, now: float) -> None:
        """Marks peers whose record has expired as gone. Only the time since this monitor started counts as silence: a
        restarted monitor does not know when peers left before."""
        gone = connection.execute(
            "SELECT volunteer, peer_id, last_seen FROM peers WHERE active AND max(last_seen, ?) < ?",
            (self._watching_since, now - self._expiration_seconds),
        ).fetchall()
        for volunteer, peer_id, last_seen in gone:
            connection.execute("UPDATE peers SET active = FALSE WHERE peer_id = ?", (peer_id,))
            unseen = last_seen < self._watching_since
            # It may train on, and only not have found the run's servers again since they were away too.
            text = (
                "was not seen again since the monitor was away"
                if unseen
                else f"left: no word for {now - last_seen:.0f} s"
            )
            self._add_event(connection, now, "unseen" if unseen else "left", "", text, volunteer)

    def _sum_up_epoch(self, connection: sqlite3.Connection, branch: int, epoch: int, ended_at: float) -> None:
        connection.execute(
            """INSERT INTO epochs
            SELECT branch, epoch, ?, sum(loss * samples) / sum(samples),
                (SELECT count(*) FROM peers WHERE active), sum(samples),
                (SELECT sum(samples_per_second) FROM peers WHERE active)
            FROM reports WHERE branch = ? AND epoch = ? GROUP BY branch, epoch
            ON CONFLICT (branch, epoch) DO UPDATE SET loss = excluded.loss, samples = excluded.samples,
                active_peers = excluded.active_peers, samples_per_second = excluded.samples_per_second""",
            (ended_at, branch, epoch),
        )

    def add_event(self, kind: EventKind, name: str, text: str) -> None:
        """Appends an event with the current time."""
        with self._writing() as connection:
            self._add_event(connection, self._clock(), kind, name, text)

    def _add_event(
        self,
        connection: sqlite3.Connection,
        now: float,
        kind: EventKind,
        name: str,
        text: str,
        volunteer: str | None = None,
    ) -> None:
        """Appends an event of a volunteer, whose name is looked up when it is shown, or of the named server."""
        query = "INSERT INTO events (time, kind, name, text, volunteer) VALUES (?, ?, ?, ?, ?)"
        connection.execute(query, (now, kind, name, text, volunteer))

    def add_snapshot(self, epoch: int, pictures: Sequence[Shown], *, lineage: str | None = None) -> None:
        """Stores the pictures of an epoch, in place of earlier ones of the same epoch.

        Args:
            epoch: Epoch of the weights.
            pictures: Pictures or texts that these weights made.
            lineage: Lineage of the weights, since the run may have gone back meanwhile. None, or a lineage of another
                run: the current branch.
        """
        with self._writing() as connection:
            branch = self._branch_of(connection, epoch, lineage)
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (branch, epoch, self._clock()))
            connection.execute("DELETE FROM pictures WHERE branch = ? AND epoch = ?", (branch, epoch))
            connection.executemany(
                "INSERT INTO pictures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (branch, epoch, number, *(getattr(picture, column) for column in SHOWN_COLUMNS))
                    for number, picture in enumerate(pictures)
                ],
            )

    def add_held_out(self, epoch: int, measured: HeldOut, *, lineage: str | None = None) -> None:
        """Stores the loss of an epoch's weights on held-out samples; arguments as for `add_snapshot`."""
        with self._writing() as connection:
            branch = self._branch_of(connection, epoch, lineage)
            values = (branch, epoch, self._clock(), measured.loss, measured.samples, measured.tokens)
            connection.execute("INSERT OR REPLACE INTO held_out VALUES (?, ?, ?, ?, ?, ?, NULL)", values)

    def add_clip_score(self, epoch: int, score: float, *, lineage: str | None = None) -> None:
        """Stores the CLIP score of an epoch, beside its loss on held-out samples; arguments as for `add_snapshot`."""
        with self._writing() as connection:
            branch = self._branch_of(connection, epoch, lineage)
            # With the time, so that readers who have the loss get the row again.
            values = (score, self._clock(), branch, epoch)
            connection.execute("UPDATE held_out SET clip_score = ?, time = ? WHERE branch = ? AND epoch = ?", values)

    def _branch_of(self, connection: sqlite3.Connection, epoch: int, lineage: str | None) -> int:
        """Returns the branch that holds an epoch of a lineage, or of the current branch; see `add_snapshot`."""
        branches = self._branches(connection, self._clock())
        number = branches.of_lineage(lineage)
        return branches.holder(branches.current if number is None else number, epoch)

    def close(self) -> None:
        """Closes the file, with a checksum of its content, and releases the lock for another writer."""
        self._connection.close()
        if self._is_ready:
            with contextlib.suppress(OSError):
                seal(self.path)
        self._lock_file.close()


def _lock_path(path: Path) -> Path:
    """Path of the file that the writer of a history locks."""
    return path.with_name(path.name + ".lock")


def _epoch_of(record: PeerRecord) -> int | None:
    """The epoch of the peer's weights; a newcomer has none before it has taken over the run's state."""
    return None if record.status == "joining" and not record.epoch else record.epoch


def _ended_at(record: PeerRecord, by_its_clock: float, now: float) -> float:
    """Time at which an epoch of a peer ended, by this monitor's clock."""
    return now - max(0.0, record.time - by_its_clock)


def _is_counted(connection: sqlite3.Connection, record: PeerRecord, epoch: int, loss: float, samples: int) -> bool:
    """Returns whether the history has this report of an epoch already. A repeated epoch has another loss."""
    query = "SELECT 1 FROM reports WHERE epoch = ? AND peer_id = ? AND loss = ? AND samples = ?"
    return connection.execute(query, (epoch, record.peer_id, loss, samples)).fetchone() is not None


def _recent(record: PeerRecord, since: int) -> list[RecentEpoch]:
    """Epochs after `since` that a record repeats, and for which it has samples."""
    return [one for one in record.recent if since < one.epoch <= record.epoch and one.samples > 0]


def _first_recent(record: PeerRecord) -> int:
    """First epoch that a record reports: the oldest that it repeats, or its last epoch if it repeats no older one."""
    return min([record.epoch, *(one.epoch for one in record.recent)])


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _has_digest(known: dict[str, str], recipe_digest: str) -> bool:
    """Returns whether the history's recipe has this digest.

    A later version of this program may include other fields in a digest, so the stored recipe is digested again.
    """
    if known["recipe_digest"] == recipe_digest:
        return True
    try:
        return parse_recipe(known.get("recipe.toml", "")).digest == recipe_digest
    except BadInput:
        return False
