"""Posts this peer's status in the DHT for as long as the peer runs."""

from __future__ import annotations

import importlib.metadata
import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

from training.config import RunConfig
from training.swarm.node.clocks import time_of_day
from training.swarm.node.dht import DHT, WORD_SECONDS, post_recipe
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import LARGEST_LOSS, MetricsBoard, PeerRecord, RecentEpoch
from training.swarm.node.tokens import tell_tokens
from training.swarm.run.lineage import Word, post_lineage
from training.volunteer.belonging import Belonging
from training.volunteer.contribution import Contribution
from training.volunteer.recent import RecentEpochs


@dataclass(frozen=True, kw_only=True)
class PeerStatus:
    """The peer's current status; the trainer replaces it, the reporter reads it."""

    status: str = "joining"
    epoch: int = 0
    loss: float | None = None
    samples_per_second: float = 0.0
    group_size: int = 0
    contribution: Contribution = field(default_factory=Contribution)


class Reporter:
    """A thread that posts the peer's record as often as the recipe says, even in the middle of an epoch.

    It also renews the peer's announcements of its recipe, tokens and lineage before they expire.
    """

    def __init__(
        self,
        run: RunConfig,
        dht: DHT,
        identity: Identity,
        *,
        name: str,
        micro_batch_size: int,
        tokens: str,
        belonging: Belonging,
        recent: RecentEpochs,
    ):
        self._run, self._dht, self._identity, self._belonging = run, dht, identity, belonging
        self._name, self.micro_batch_size, self._tokens = name, micro_batch_size, tokens
        self._board = MetricsBoard(dht=dht, run_id=run.run_id, expiration_seconds=run.swarm.metrics_expiration_seconds)
        self._version = importlib.metadata.version("training-transformers-together") if _installed() else "checkout"
        self.status = PeerStatus()
        self._recent = recent
        self._news, self._finished = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="reporter")
        self._thread.start()

    def update(self, status: PeerStatus) -> None:
        """Replaces the status; the thread posts it soon."""
        self.status = status
        self._news.set()

    def end_epoch(self, status: PeerStatus, samples: int) -> None:
        """As `update`, after an epoch to which this peer has contributed so many samples."""
        if status.loss is not None and status.loss > LARGEST_LOSS:
            status = replace(status, loss=None)  # others would refuse the record
        if status.loss is not None:
            ended = RecentEpoch(epoch=status.epoch, loss=status.loss, samples=samples, time=time_of_day())
            self._recent.add(self._belonging.lineage.id, ended)
        self.update(status)

    def leave(self, timeout_seconds: float = 1.5) -> None:
        """Posts a last record, once, which says that the peer leaves, and withdraws its tokens."""
        if self._finished.is_set():
            return
        self._finished.set()
        self._news.set()
        self._thread.join(timeout_seconds)
        with suppress(Exception):  # the network may be gone already
            tell_tokens(self._dht, self._run, self._identity, "")
            self._post(replace(self.status, status="leaving")).result(timeout=timeout_seconds)

    def _work(self) -> None:
        renewed, announced = -math.inf, None
        while not self._finished.is_set():
            with suppress(Exception):  # a record that could not be posted is posted again soon
                self._post(self.status)
                lineage = self._belonging.lineage
                if time.monotonic() - renewed > WORD_SECONDS / 3 or lineage != announced:
                    post_recipe(self._dht, self._run, self._identity)
                    tell_tokens(self._dht, self._run, self._identity, self._tokens)
                    word = Word(lineage=lineage, epoch=self.status.epoch)
                    post_lineage(self._dht, self._run.run_id, word, self._identity)
                    renewed, announced = time.monotonic(), lineage
            self._news.wait(self._run.swarm.metrics_every_seconds)
            self._news.clear()

    def _post(self, status: PeerStatus):
        done, lineage = status.contribution, self._belonging.lineage.id
        record = PeerRecord(
            name=self._name,
            peer_id=str(self._identity.peer_id),
            status=status.status,
            lineage=lineage,
            epoch=status.epoch,
            loss=status.loss,
            samples=done.samples,
            samples_per_second=status.samples_per_second,
            seconds=done.seconds,
            group_size=status.group_size,
            averaged_epochs=done.averaged_epochs,
            alone_epochs=done.alone_epochs,
            micro_batch_size=self.micro_batch_size,
            bytes_sent=done.bytes_sent,
            bytes_received=done.bytes_received,
            version=self._version,
            time=time_of_day(),
            recent=self._recent.until(lineage, status.epoch),
        )
        return self._board.post(record, self._identity)


def _installed() -> bool:
    with suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("training-transformers-together"))
    return False
