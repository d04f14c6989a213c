"""Estimate of the progress of all peers together, from the records that one peer sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from training.swarm.peers.records import PeerProgress
from training.swarm.peers.table import Peers

ENDLESS_SECONDS = 1e9
"""Seconds that no epoch takes: a longer estimate means that no peer computes. Rates that are not measured yet are tiny,
not 0."""


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
    samples: float
    """Samples of this epoch that count: this peer's, and those of peers that bring their reported samples to
    averages."""
    num_peers: int
    """Number of peers with a record, this one included; 0 if no record is found, not even this peer's."""
    epoch_seconds: float
    """Duration of an epoch; `ENDLESS_SECONDS` or more if nobody computes."""
    ends_at: float
    """DHT time at which the epoch's samples will be complete."""
    full_at: float
    """DHT time of the full epoch if newcomers' samples counted; this peer looks for a group by this time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The epoch that this peer is in."""

    number: int
    began: float
    """DHT time at which this peer began the epoch."""
    target_batch_size: int

    def samples_of(self, record: PeerProgress, epoch: int, at: float) -> float:
        """Estimates the samples of `epoch` that a peer has at the DHT time `at`: the target batch size at most.

        A peer that is ahead has ended the epoch. It has computed since this peer began it, first for this epoch and
        then for the next.
        """
        samples, rate = record.samples_accumulated, record.samples_per_second
        if record.epoch > epoch == self.number:
            samples = max(0.0, (record.time - self.began) * rate - samples)
        elif record.epoch == epoch:
            samples += max(0.0, at - record.time) * rate
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

    def sources(self, epoch: int, counts: Callable[[bytes, float], float]) -> list[Source]:
        """Lists the sources of the epoch's samples.

        Args:
            epoch: Number of the epoch. Peers at older epochs count for the rate, since they soon catch up.
            counts: Takes a peer and its samples; returns how many of them count.
        """
        counted = [(self.own, float), *((record, partial(counts, record.peer_id)) for record in self.others)]
        return [
            Source(
                reported=count(self.epoch.samples_of(record, epoch, record.time)),
                have=count(self.epoch.samples_of(record, epoch, self.now)),
                rate=count(record.samples_per_second),
                most=count(self.epoch.target_batch_size),
            )
            for record, count in counted
        ]

    def progress(self) -> GlobalProgress:
        """Adds up the records; if none was found, takes this peer's own progress."""
        leaders, peers, own = self.leaders(), self.peers, self.epoch.number
        voices = peers.voices({} if peers.are_doubted else {one.peer_id: one.epoch for one in leaders})
        has_voices = any(peers.has_voice(one.peer_id) for one in leaders)
        reported = max(own, agreed_epoch(voices))
        epoch = reported if has_voices else own
        counted = self.sources(epoch, peers.counted_samples)
        expected = self.sources(epoch, peers.expected_samples)
        target = self.epoch.target_batch_size
        rates = [replace(source, have=0.0) for source in (counted if has_voices else expected)]
        return GlobalProgress(
            epoch=epoch,
            reported=reported,
            of_most=max(own, begun_by_most(voices)),
            has_voices=has_voices,
            samples=sum(source.reported for source in counted),
            num_peers=self.num_peers,
            epoch_seconds=seconds_until(target, rates),
            ends_at=self.now + seconds_until(target, counted),
            full_at=self.now + seconds_until(target, expected),
        )


@dataclass(frozen=True, slots=True)
class Source:
    """A peer as a source of samples."""

    have: float
    """Samples that the peer should have by now."""
    rate: float
    """Samples a second."""
    most: float
    """Most samples that the peer can have in an epoch."""
    reported: float = 0.0
    """Samples in the peer's record."""

    def seconds_until_full(self) -> float:
        """Seconds until the peer has as many samples as it can have."""
        return (self.most - self.have) / self.rate


def seconds_until(target: float, sources: Sequence[Source]) -> float:
    """Seconds until the sources together have `target` samples; infinite if none of them computes.

    >>> seconds_until(60, [Source(have=10, rate=2, most=60), Source(have=0, rate=1e7, most=20)])
    15.0
    >>> seconds_until(60, [Source(have=10, rate=0, most=60)])
    inf
    """
    rising = sorted((one for one in sources if one.rate > 0), key=Source.seconds_until_full)
    rates = list(itertools.accumulate(source.rate for source in reversed(rising)))[::-1]
    have, now = sum(source.have for source in sources), 0.0
    for source, rate in zip(rising, rates, strict=True):  # this source and those after it are not full yet
        full_at = source.seconds_until_full()
        if source is rising[-1] or target <= have + (full_at - now) * rate:
            return now + max(target - have, 0.0) / rate
        have, now = have + (full_at - now) * rate, full_at
    return 0.0 if have >= target else math.inf


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
