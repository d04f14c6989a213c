"""Reporter of a peer: keeps its metric record up to date, and posts it in the DHT for as long as the peer runs."""

from __future__ import annotations

import importlib.metadata
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from training.errors import first_line, reason_of
from training.recipe import RunConfig
from training.storage.checked import packed, unpacked
from training.storage.whole import move_aside, write_whole
from training.swarm.node.clocks import time_of_day
from training.swarm.node.dht import MESSAGE_SECONDS, post_recipe
from training.swarm.node.metrics import (
    LARGEST_LOSS,
    MOST_SEEN,
    RECENT_EPOCHS,
    TAIL,
    MetricsBoard,
    Missed,
    MissedEpoch,
    PeerRecord,
    RecentEpoch,
    Seen,
)
from training.swarm.node.tokens import post_tokens
from training.swarm.peers.epochs import EpochReport
from training.swarm.run.lineage import LineageMessage, post_lineage
from training.volunteer.belonging import Belonging
from training.volunteer.connection import Connection
from training.volunteer.copies import own_voucher

TOTAL_FILE = "contribution.json"
"""File in the state folder with the samples of all starts of the program. Only the volunteer's own screen shows them:
the monitor adds up what averages show."""
MOST_SAMPLES = 10**12
"""Largest total that the file may have."""


class LastEpochs:
    """The last epochs of a peer in one lineage, as its record tells them: done, missed, and what others brought.

    Args:
        peer_id: Id of this peer.
    """

    def __init__(self, peer_id: str):
        self._own = peer_id[-TAIL:]
        self._until: int | None = None
        """Newest epoch that was done or missed, or that the peer's first weights had; None before there are any."""
        self._done: dict[int, RecentEpoch] = {}
        self._missed: dict[int, Missed] = {}
        self._seen: dict[tuple[int, str], int | None] = {}
        self.has_paused = False
        """True if the peer has computed nothing for a while since the last epoch."""

    def begin(self, epoch: int) -> None:
        """Notes the epoch of the weights with which the peer begins."""
        self._until = epoch

    def miss(self, epoch: int, reason: Missed) -> None:
        """Notes that the peer has missed an epoch, and all epochs before that it has not done."""
        self._reach(epoch)
        self._missed[epoch] = reason

    def end(self, report: EpochReport, loss: float | None, seconds: float) -> None:
        """Notes an epoch that the peer has ended; a repeated epoch replaces the earlier one.

        Args:
            report: Report on the epoch.
            loss: Mean loss over the peer's samples; None if others would refuse it.
            seconds: Seconds that the peer has trained for it.
        """
        epoch = report.epoch
        self._reach(epoch)
        for later in [one for one in (*self._done, *self._missed) if one >= epoch]:
            self._done.pop(later, None)
            self._missed.pop(later, None)
        if loss is not None:
            self._done[epoch] = RecentEpoch(epoch, loss, report.samples, time_of_day(), seconds)
        if report.reason is not None:
            self._missed[epoch] = report.reason
        for peer, (theirs, samples) in report.brought.items():
            self._seen[theirs, peer[-TAIL:]] = None if samples is None else min(round(samples), MOST_SAMPLES)

    def _reach(self, epoch: int) -> None:
        """Notes the epochs before this one that the peer has neither done nor missed yet."""
        if self._until is not None:
            reason = "paused" if self.has_paused else "catching up"
            for passed in range(max(self._until + 1, epoch - RECENT_EPOCHS), epoch):
                self._missed[passed] = reason
        self._until, self.has_paused = epoch, False

    def told(self) -> dict[str, list]:
        """Returns the fields of the record. Of large groups each peer tells another part, so that all are told."""
        seen = sorted(self._seen.items(), key=lambda item: (-item[0][0], item[0][1] <= self._own, item[0][1]))
        self._seen = dict(seen[:MOST_SEEN])
        first = (self._until or 0) - RECENT_EPOCHS
        self._done = {epoch: one for epoch, one in sorted(self._done.items()) if epoch > first}
        self._missed = {epoch: one for epoch, one in sorted(self._missed.items()) if epoch > first}
        return {
            "recent": list(self._done.values()),
            "missed": [MissedEpoch(epoch, reason) for epoch, reason in self._missed.items()],
            "seen": [Seen(epoch, peer, samples) for (epoch, peer), samples in self._seen.items()],
        }


class Reporter:
    """A thread that posts the peer's record as often as the recipe says, even in the middle of an epoch.

    It also renews the peer's announcements of its recipe, tokens and lineage before they expire.

    Args:
        run: The recipe.
        connection: Connection to the run.
        belonging: The lineage that the peer trains.
        state_dir: State folder.
        micro_batch_size: Samples per forward pass.
        tokens: Digest of the tokens that the peer trains on.
        warn: Called with a sentence if a file of the state folder cannot be used.
    """

    def __init__(
        self,
        run: RunConfig,
        connection: Connection,
        belonging: Belonging,
        state_dir: Path,
        *,
        micro_batch_size: int,
        tokens: str,
        warn: Callable[[str], None],
    ):
        self._run, self._dht, self._identity, self._belonging = run, connection.dht, connection.identity, belonging
        self._tokens, self._warn = tokens, warn
        self._board = MetricsBoard(
            dht=self._dht, run_id=run.run_id, expiration_seconds=run.swarm.metrics_expiration_seconds
        )
        self._total_file = state_dir / TOTAL_FILE
        self.samples = _read_total(self._total_file, warn)
        """Samples that have entered an update, of this and all earlier starts of the program on this machine."""
        self._is_kept = True
        """True if the total was written when the last epoch ended."""
        peer_id = str(self._identity.peer_id)
        self._last = LastEpochs(peer_id)
        self.record = _first_record(
            name=connection.name,
            peer_id=peer_id,
            micro_batch_size=micro_batch_size,
            voucher=own_voucher(state_dir, run.run_id, peer_id, warn),
        )
        """The peer's record; the trainer changes it, the thread posts it."""
        self._news, self._finished = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="reporter")
        self._thread.start()

    def update(self, **facts: object) -> None:
        """Changes fields of the record; the thread posts it soon."""
        self.record = self.record.copy(update=facts)
        self._news.set()

    def begin(self, epoch: int) -> None:
        """Notes the epoch of the weights with which the peer begins to train."""
        self._last.begin(epoch)
        self.update(epoch=epoch)

    def begin_anew(self) -> None:
        """Empties the record for another lineage that the peer joins; its totals stay."""
        self._last = LastEpochs(self.record.peer_id)
        nothing = {"epoch": 0, "loss": None, "samples_per_second": 0.0, "group_size": 0, **self._last.told()}
        self.update(status="joining", **nothing)

    def wait(self, status: Literal["waiting", "paused"] = "waiting") -> None:
        """Notes that the peer computes nothing for a while."""
        self._last.has_paused = True
        self.update(status=status, samples_per_second=0.0)

    def miss_epoch(self, report: EpochReport) -> None:
        """Notes an epoch that the others have ended without the peer."""
        self._last.miss(report.epoch + 1, report.reason)
        self.update(**self._last.told())

    def end_epoch(self, report: EpochReport, loss: float, seconds: float) -> None:
        """Adds an epoch that the peer has trained in `seconds`, and keeps the totals."""
        before = self.record
        told = loss if loss <= LARGEST_LOSS else None  # others would refuse a record with a non-finite loss
        self._last.end(report, told, seconds)
        self.samples += 0 if report.reason else report.samples
        self.update(
            status="training",
            epoch=report.epoch,
            loss=told,
            samples_per_second=report.samples / seconds if seconds else 0.0,
            group_size=report.senders,
            samples=before.samples + report.samples,
            seconds=before.seconds + seconds,
            averaged_epochs=before.averaged_epochs + (report.senders > 1),
            alone_epochs=before.alone_epochs + report.alone,
            bytes_sent=before.bytes_sent + report.bytes_sent,
            bytes_received=before.bytes_received + report.bytes_received,
            **self._last.told(),
        )
        self._keep()

    def leave(self, timeout_seconds: float = 1.5) -> None:
        """Posts a last record, once, which says that the peer leaves, and withdraws its tokens."""
        if self._finished.is_set():
            return
        self._finished.set()
        self._news.set()
        self._thread.join(timeout_seconds)
        with suppress(Exception):  # the network may be gone already
            post_tokens(self._dht, self._run, self._identity, "")
            self.record = self.record.copy(update={"status": "leaving"})
            self._post().result(timeout=timeout_seconds)

    def _keep(self) -> None:
        """Writes the total. If the disk is full, training continues, and the volunteer is warned once."""
        try:
            write_whole(self._total_file, packed({"samples": self.samples}))
            self._is_kept = True
        except OSError as error:
            if self._is_kept:
                self._warn(
                    f"What this machine has contributed cannot be written to {self._total_file} ({reason_of(error)}); "
                    "training goes on. The run's leaderboard does not need this file, but this screen will count less."
                )
            self._is_kept = False

    def _work(self) -> None:
        renewed, announced = -math.inf, None
        while not self._finished.is_set():
            with suppress(Exception):  # a record that could not be posted is posted again soon
                self._post()
                lineage = self._belonging.lineage
                if time.monotonic() - renewed > MESSAGE_SECONDS / 3 or lineage != announced:
                    post_recipe(self._dht, self._run, self._identity)
                    post_tokens(self._dht, self._run, self._identity, self._tokens)
                    message = LineageMessage(lineage=lineage, epoch=self.record.epoch)
                    post_lineage(self._dht, self._run.run_id, message, self._identity)
                    renewed, announced = time.monotonic(), lineage
            self._news.wait(self._run.swarm.metrics_every_seconds)
            self._news.clear()

    def _post(self):
        now = {"lineage": self._belonging.lineage.id, "time": time_of_day()}
        return self._board.post(self.record.copy(update=now), self._identity)


def _first_record(**facts: object) -> PeerRecord:
    """Makes the record of a joining peer, with totals of zero."""
    facts |= {"status": "joining", "epoch": 0, "loss": None, "version": _version(), "time": time_of_day()}
    facts |= dict.fromkeys(("samples", "group_size", "averaged_epochs", "alone_epochs"), 0)
    facts |= dict.fromkeys(("bytes_sent", "bytes_received"), 0)
    return PeerRecord(**facts, seconds=0.0, samples_per_second=0.0)


def _read_total(file: Path, warn: Callable[[str], None]) -> int:
    """Reads the total of earlier starts; 0 if the file is missing.

    A damaged file, or one with a total that nobody can have, counts as missing, with a warning, and is renamed.
    """
    try:
        total = unpacked(file.read_text(encoding="utf-8"))["samples"]
        if type(total) is not int or not 0 <= total <= MOST_SAMPLES:
            raise ValueError("nobody can have contributed so many samples")
        return total
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        aside = file.with_name(f"{file.name}.damaged")
        warn(
            f"{file} with what this machine has contributed is damaged ({first_line(error)}) and now {aside}: this "
            "screen counts from 0. What the run's monitor has counted stays."
        )
        with suppress(OSError):
            move_aside(file, aside)
    return 0


def _version() -> str:
    try:
        return importlib.metadata.version("training-transformers-together")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"
