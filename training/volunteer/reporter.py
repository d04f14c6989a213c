"""Reporter of a peer: keeps its metric record up to date, and posts it in the DHT for as long as the peer runs."""

from __future__ import annotations

import importlib.metadata
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from training.errors import first_line, reason_of
from training.recipe import RunConfig
from training.storage.checked import packed, unpacked
from training.storage.whole import move_aside, write_whole
from training.swarm.node.clocks import time_of_day
from training.swarm.node.dht import MESSAGE_SECONDS, post_recipe
from training.swarm.node.metrics import LARGEST_LOSS, RECENT_EPOCHS, MetricsBoard, PeerRecord, RecentEpoch
from training.swarm.node.tokens import post_tokens
from training.swarm.peers.epochs import EpochReport
from training.swarm.run.lineage import LineageMessage, post_lineage
from training.volunteer.belonging import Belonging
from training.volunteer.connection import Connection

TOTALS_FILE = "contribution.json"
"""File in the state folder with the peer's contribution over its whole life, restarts included."""
TOTALS = ("samples", "seconds", "averaged_epochs", "alone_epochs", "bytes_sent", "bytes_received")
"""Fields of a record that the totals file keeps."""


class Reporter:
    """A thread that posts the peer's record as often as the recipe says, even in the middle of an epoch.

    It also renews the peer's announcements of its recipe, tokens and lineage before they expire.

    Args:
        run: The recipe.
        connection: Connection to the run.
        belonging: The lineage that the peer trains.
        state_dir: State folder, which keeps totals across restarts.
        micro_batch_size: Samples per forward pass.
        tokens: Digest of the tokens that the peer trains on.
        warn: Called with a sentence if the totals cannot be kept.
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
        self._totals_file = state_dir / TOTALS_FILE
        self._recent: deque[tuple[str, RecentEpoch]] = deque(maxlen=RECENT_EPOCHS)
        """Lineage and result of each of the last epochs, for a monitor that was away when they ended."""
        self._are_kept = True
        """True if the totals were written when the last epoch ended."""
        self.record = _first_record(
            self._totals_file,
            name=connection.name,
            peer_id=str(self._identity.peer_id),
            micro_batch_size=micro_batch_size,
            warn=warn,
        )
        """The peer's record; the trainer changes it, the thread posts it."""
        self._news, self._finished = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="reporter")
        self._thread.start()

    def update(self, **facts: object) -> None:
        """Changes fields of the record; the thread posts it soon."""
        self.record = self.record.copy(update=facts)
        self._news.set()

    def begin_anew(self) -> None:
        """Empties the record for another lineage that the peer joins; its totals stay."""
        self.update(status="joining", epoch=0, loss=None, samples_per_second=0.0, group_size=0)

    def end_epoch(self, report: EpochReport, loss: float, seconds: float) -> None:
        """Adds an epoch that the peer has trained in `seconds`, and keeps the totals."""
        before = self.record
        told = loss if loss <= LARGEST_LOSS else None  # others would refuse a record with a non-finite loss
        if told is not None:
            ended = RecentEpoch(epoch=report.epoch, loss=told, samples=report.samples, time=time_of_day())
            self._recent.append((self._belonging.lineage.id, ended))
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
        """Writes the totals. If the disk is full, training continues, and the volunteer is warned once."""
        try:
            write_whole(self._totals_file, packed({name: getattr(self.record, name) for name in TOTALS}))
            self._are_kept = True
        except OSError as error:
            if self._are_kept:
                self._warn(
                    f"What you have contributed cannot be written to {self._totals_file} ({reason_of(error)}); "
                    "training goes on. What is not written when this peer ends is missing from its totals later."
                )
            self._are_kept = False

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
        record, lineage = self.record, self._belonging.lineage.id
        # If an epoch was repeated, its last result counts.
        ended = {one.epoch: one for of, one in list(self._recent) if of == lineage and one.epoch <= record.epoch}
        recent = [ended[epoch] for epoch in sorted(ended)]
        now = {"lineage": lineage, "time": time_of_day(), "recent": recent}
        return self._board.post(record.copy(update=now), self._identity)


def _first_record(file: Path, *, warn: Callable[[str], None], **facts: object) -> PeerRecord:
    """Makes the record of a joining peer, with the totals in the file; zeros if the file is missing.

    A damaged file counts as missing, with a warning, and is renamed.
    """
    facts |= {"status": "joining", "epoch": 0, "loss": None, "samples_per_second": 0.0, "group_size": 0}
    facts |= {"version": _version(), "time": time_of_day()}
    try:
        kept = unpacked(file.read_text(encoding="utf-8"))
        return PeerRecord(**facts, **{name: kept[name] for name in TOTALS})
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        aside = file.with_name(f"{file.name}.damaged")
        warn(
            f"{file} with what you have contributed is damaged ({first_line(error)}) and now {aside}: this peer counts "
            "from 0. What the run's monitor has counted before stays."
        )
        with suppress(OSError):
            move_aside(file, aside)
    return PeerRecord(**facts, **dict.fromkeys(TOTALS, 0) | {"seconds": 0.0})


def _version() -> str:
    try:
        return importlib.metadata.version("training-transformers-together")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"
