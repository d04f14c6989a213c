"""Estimate of the progress of all peers together, from the records that one peer sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from training.swarm.peers.records import PeerProgress
from training.swarm.peers.table import Peers

ENDLESS_SECONDS = 1e9
"""Seconds that no epoch takes: an estimate of this length means that no peer computes, or that no rate is known yet."""
HALVINGS = 40
"""Halvings by which the end of an epoch is found: `ENDLESS_SECONDS` becomes a thousandth of a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalProgress:
    """Progress of all peers, as this peer sees it."""

    epoch: int
    """Newest epoch that peers with a voice have begun, as far as they agree; see `agreed_epoch`."""
    reported: int
    """Same as `epoch`, but by the reports of all peers while no peer has a voice. Such reports only make this peer look
    for a state to download."""
    of_most: int
    """Newest epoch that at least half of the peers have begun, by the reports counted in `reported`; see
    `begun_by_most`."""
    has_voices: bool
    """True if any other peer has a voice."""
    num_peers: int
    """Number of peers with a record, this one included; 0 if no record is found, not even this peer's."""
    epoch_seconds: float
    """Duration of an epoch; `ENDLESS_SECONDS` if nobody computes."""
    full_at: float
    """DHT time at which the epoch's samples will be complete if newcomers' samples counted; this peer looks for a group
    by this time."""
    others_bring: Callable[[float], float]
    """Takes a DHT time; returns the samples of this epoch that the others can bring to an average then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The epoch that this peer is in."""

    number: int
    began: float
    """DHT time at which this peer began the epoch."""
    target_batch_size: int

    def samples_of(self, record: PeerProgress, epoch: int, at: float) -> float:
        """Estimates the samples of `epoch` that a peer has at the DHT time `at`: the target batch size at most.

        Those of a micro-batch under way do not count, because the peer could not bring them to an average.

        A peer that is ahead has ended the epoch. It has computed since this peer began it, first for this epoch and
        then for the next.
        """
        if record.epoch > epoch == self.number:
            computed = (record.counted_at - self.began) * record.samples_per_second
            samples = max(0.0, computed - record.samples_accumulated)
        elif record.epoch == epoch:
            samples = record.samples_accumulated + record.whole_samples(at)
        else:
            samples = 0.0
        return min(samples, self.target_batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The records found at one moment, and what this peer knows of the peers that posted them."""

    now: float
    """DHT time of the look."""
    others: Sequence[PeerProgress]
    own: PeerProgress
    """This peer's record."""
    num_peers: int
    """Number of records found."""
    epoch: Epoch
    """The epoch that this peer is in."""
    peers: Peers
    lively_seconds: float
    patience_seconds: float
    """Seconds for which a group waits for a peer that computes."""

    def is_lively(self, peer: bytes) -> bool:
        """Returns True if a peer has reported recently."""
        return self.peers.is_alive(peer, self.lively_seconds)

    def leaders(self) -> list[PeerProgress]:
        """Returns the other peers that can lead a group: if there are any, only live peers that have trained.

        A newcomer reports epoch 0, whichever epoch the run is at.
        """
        leaders = [record for record in self.others if not record.client_mode]
        leaders = [record for record in leaders if self.is_lively(record.peer_id)] or leaders
        return [record for record in leaders if record.epoch or record.samples_accumulated] or leaders

    def progress(self) -> GlobalProgress:
        """Adds up the records; if none was found, takes this peer's own progress."""
        leaders, peers, own = self.leaders(), self.peers, self.epoch.number
        voices = peers.voices({} if peers.are_doubted else {one.peer_id: one.epoch for one in leaders})
        has_voices = any(peers.has_voice(one.peer_id) for one in leaders)
        reported = max(own, agreed_epoch(voices))
        epoch = reported if has_voices else own
        counts = peers.counted_samples if has_voices else peers.expected_samples
        return GlobalProgress(
            epoch=epoch,
            reported=reported,
            of_most=max(own, begun_by_most(voices)),
            has_voices=has_voices,
            num_peers=self.num_peers,
            epoch_seconds=self.seconds_until_full(counts, self.samples_from_now),
            full_at=self.now + self.seconds_until_full(peers.expected_samples, partial(self.samples_due, epoch=epoch)),
            others_bring=partial(self.others_bring, epoch),
        )

    def others_bring(self, epoch: int, at: float) -> float:
        """Samples of an epoch that the others can bring to an average at a DHT time: none of a peer in a micro-batch
        that lasts longer than a group waits for it."""
        quick = [one for one in self.others if one.step_samples <= self.patience_seconds * one.samples_per_second]
        return sum(self.peers.counted_samples(one.peer_id, self.epoch.samples_of(one, epoch, at)) for one in quick)

    def samples_due(self, record: PeerProgress, at: float, *, epoch: int) -> float:
        """Samples of an epoch that a peer should have at a DHT time. A peer at an older epoch soon catches up."""
        is_older = record.epoch < epoch
        return self.samples_from_now(record, at) if is_older else self.epoch.samples_of(record, epoch, at)

    def samples_from_now(self, record: PeerProgress, at: float) -> float:
        """Samples that a peer should compute from the look to a DHT time: the target batch size at most."""
        return min((at - self.now) * record.samples_per_second, self.epoch.target_batch_size)

    def seconds_until_full(
        self, counts: Callable[[bytes, float], float], samples: Callable[[PeerProgress, float], float]
    ) -> float:
        """Seconds until all peers together have the epoch's samples: at most `ENDLESS_SECONDS`.

        Args:
            counts: Takes another peer and its samples; returns how many of them count.
            samples: Estimates the samples of a record's peer at a DHT time.
        """

        def is_full(seconds: float) -> bool:
            at = self.now + seconds
            total = samples(self.own, at) + sum(counts(one.peer_id, samples(one, at)) for one in self.others)
            return total >= self.epoch.target_batch_size

        if is_full(0.0):
            return 0.0
        early, late = 0.0, ENDLESS_SECONDS
        for _ in range(HALVINGS):
            middle = (early + late) / 2
            early, late = (early, middle) if is_full(middle) else (middle, late)
        return late


def agreed_epoch(epochs: Sequence[int]) -> int:
    """Newest epoch that too many other peers report for all of them to be lying.

    At most fewer than a third of all peers, this peer included, are assumed to lie; of two others, one. With one other
    peer nobody can tell which of the two is right, so the other's report counts.

    >>> agreed_epoch([7, 7, 10**9]), agreed_epoch([7, 10**9]), agreed_epoch([7]), agreed_epoch([])
    (7, 7, 7, 0)
    """
    liars = 0 if len(epochs) < 2 else max(1, len(epochs) // 3)
    return sorted(epochs, reverse=True)[liars] if epochs else 0


def begun_by_most(epochs: Sequence[int]) -> int:
    """Newest epoch that at least half of all peers have begun, by the reports of the others.

    This peer counts as one that has not begun it. So if two others have begun an epoch and two have not, only two of
    five peers have.

    >>> begun_by_most([8, 8, 7, 7]), begun_by_most([8, 8, 7]), begun_by_most([8, 8, 8, 7]), begun_by_most([8])
    (7, 8, 8, 8)
    """
    return sorted(epochs, reverse=True)[len(epochs) // 2] if epochs else 0
