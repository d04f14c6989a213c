"""The table of peers: what this peer has heard of each of the others, and what it has seen them bring to averages."""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from training.swarm.node.voices import Accounts, by_voice
from training.swarm.peers.times import (
    FORGOTTEN_SECONDS,
    LEAST_SHARE,
    LEAST_SHARE_BROUGHT,
    LEFT_OUT_SECONDS,
    LONGEST_LEFT_OUT_SECONDS,
    LONGEST_RETRY_SECONDS,
    MEETINGS,
    MOST_FAULTS,
    MOST_PEERS,
    PAUSE_SECONDS,
    RETRY_SECONDS,
    ROUNDS_COMPARED,
)


def id_bytes(peer: str) -> bytes:
    """Converts the id of a peer from base58, which reports of averages use, to bytes."""
    return PeerID.from_base58(peer).to_bytes()


class Fault(Enum):
    """Kind of a peer's fault."""

    LOST = auto()
    """The peer was lost in an average: it counts as dead until its next record or answer."""
    SILENT = auto()
    """The peer answers no ping: it counts as dead, and is asked again."""
    MISSED = auto()
    """The peer was missing from an average in which it should have been."""


@dataclass(slots=True)
class _Peer:
    reported_at: float = -math.inf
    """Time in the peer's last record, by that peer's clock."""
    is_ahead: bool = False
    """True if that record is the first of this peer, by a clock that is ahead."""
    heard_at: float = -math.inf
    lost_at: float = -math.inf
    is_silent: bool = False
    """True if the peer has not answered the last ping."""
    has_brought: bool = False
    """True if the peer has brought weight to an average with this peer."""
    share: float = 1.0
    """Share of the peer's reported samples that counts."""
    missed: float = 0.0
    faults: float = 0.0
    """Number of averages that the peer has spoiled, by weight."""
    spoiled_at: float = -math.inf
    """Time of the last average that the peer has spoiled."""
    out_until: float = -math.inf
    """Time until which groups leave the peer out."""
    costs: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ROUNDS_COMPARED))
    """Cost of the last averages with the peer, and its share of their samples."""


_UNKNOWN = _Peer()


class Peers:
    """Table of the other peers; `training.swarm.peers` explains the rules.

    Events come in by `heard`, `answered`, `failed`, `brought`, `spoiled` and `delayed`; all other methods are
    questions. Threads may share the table: an event replaces single values, and a question reads each of them once.

    The trainer owns the table. The averagers' processes report the peers that have spoiled averages, and get the peers
    that are left out with each search for a group (`training.swarm.round.pipe`).

    Args:
        accounts: Accounts of the peers that have shown tickets.
        clock: Returns seconds, as the records of peers count them.

    >>> peers = Peers(clock=lambda: 100.0)
    >>> peers.heard(b"ada", 99.0), peers.heard(b"eve", 99.0)
    (True, True)
    >>> peers.brought(b"ada", 20.0, reported=22.0), peers.brought(b"eve", 4.0, reported=64.0)
    (None, None)
    >>> peers.counted_samples(b"ada", 20.0), peers.counted_samples(b"eve", 64.0), peers.counted_samples(b"new", 64.0)
    (20.0, 4.0, 0.0)
    """

    def __init__(self, accounts: Accounts | None = None, *, clock: Callable[[], float] = get_dht_time):
        self._clock = clock
        self._peers: dict[bytes, _Peer] = {}
        self._accounts: Accounts = accounts or {}
        self._doubted_until, self._retry_seconds = -math.inf, RETRY_SECONDS
        self._news: list[str] = []
        self._judging = threading.Lock()
        """Held while a fault is judged: both averagers report faults, each in a thread of its own."""

    # -- events ------------------------------------------------------------------------------------------------------

    def heard(self, peer: bytes, at: float, *, may_be_ahead: float = math.inf) -> bool:
        """Notes a record of a peer. Returns whether the record counts.

        The DHT keeps a record whose time is ahead long after the record has become wrong: the others would wait for a
        peer that is gone, or follow it to an epoch that it has reached alone. Such a record counts once it is renewed,
        because then its peer is there, and this peer's own clock may be behind.

        Args:
            peer: Id of the peer.
            at: Time in the record.
            may_be_ahead: Seconds by which clocks may differ.
        """
        now, one = self._clock(), self._of(peer)
        if at == one.reported_at:
            return not one.is_ahead
        one.is_ahead = at > now + may_be_ahead and one.reported_at == -math.inf
        one.reported_at, at = at, min(at, now + may_be_ahead)
        if not one.is_ahead:
            # Notes from a time when this clock was ahead do not hide later records.
            one.heard_at = max(at, one.heard_at) if one.heard_at <= now else at
            if not at <= one.lost_at <= now:
                one.lost_at, one.is_silent = -math.inf, False
        return not one.is_ahead

    def answered(self, peer: bytes) -> None:
        """Notes that a peer has answered a ping."""
        one = self._of(peer)
        one.heard_at, one.lost_at, one.is_silent = self._clock(), -math.inf, False

    def note_accounts(self, accounts: Accounts) -> None:
        """Notes the accounts of peers that have shown tickets."""
        self._accounts = {**self._accounts, **accounts} if len(self._accounts) < MOST_PEERS else dict(accounts)

    def failed(self, peer: bytes, fault: Fault, weight: float = 1.0) -> None:
        """Notes a fault of a peer.

        Args:
            peer: Id of the peer.
            fault: Kind of the fault.
            weight: Number of missed averages that the fault counts as.
        """
        one = self._of(peer)
        match fault:
            case Fault.LOST | Fault.SILENT:
                one.lost_at, one.is_silent = self._clock(), fault is Fault.SILENT
            case Fault.MISSED:
                one.missed += weight

    def brought(self, peer: bytes, weight: float | None, *, reported: float | None = None) -> None:
        """Notes that a peer was in an average with this peer, to its end.

        Args:
            peer: Id of the peer.
            weight: Samples that the peer has brought; None: unknown, because this peer averages no part.
            reported: Samples that the peer should have had by its own reports; None: it reported none of this epoch.
        """
        one = self._of(peer)
        one.missed = 0.0
        one.has_brought |= weight is None or weight > 0
        if weight is not None and reported:
            share = weight / reported
            # A share that has fallen rises slowly: otherwise every second report could be false.
            one.share = min(1.0 if share >= LEAST_SHARE_BROUGHT else share, 2 * one.share)

    def spoiled(self, peer: bytes, weight: float = 1.0, deed: str = "has spoiled averages and") -> None:
        """Notes that a peer has cost its group an average; from the second time on, groups leave the peer out.

        The first time may be an accident. The duration doubles with each further fault. Each peer judges by what it has
        seen itself, so that nobody can make others leave an honest peer out by lies. Groupmates see the same faults.

        Args:
            peer: Id of the peer.
            weight: 1 for a fault that is beyond doubt.
            deed: The peer's action, for a sentence that ends in "is left out of groups".
        """
        with self._judging:
            one, now = self._of(peer), self._clock()
            if now < one.out_until:  # the average was begun before the peer was left out
                return
            if now - max(one.spoiled_at, one.out_until) > FORGOTTEN_SECONDS:
                one.faults = 0.0
            one.faults, one.spoiled_at = one.faults + weight, now
            if one.faults >= MOST_FAULTS:
                doublings = min(int(one.faults) - MOST_FAULTS, 20)
                seconds = min(LEFT_OUT_SECONDS * 2.0**doublings, LONGEST_LEFT_OUT_SECONDS)
                one.out_until = now + seconds
                self._news.append(f"{PeerID(peer)} {deed} is left out of groups for {seconds:.0f} s")

    def delayed(self, peer: bytes, seconds: float, *, brought: float, cycle: float) -> None:
        """Notes that an average has waited for a peer. Leaves it out if the others lose more by waiting than the peer
        brings.

        Args:
            peer: Id of the peer.
            seconds: Time for which this peer's training stood still for that peer.
            brought: That peer's share of the samples.
            cycle: Seconds between two averages.
        """
        one = self._of(peer)
        one.costs.append((seconds / cycle if seconds >= PAUSE_SECONDS else 0.0, brought))
        cost, share = (statistics.fmean(column) for column in zip(*one.costs, strict=True))
        if len(one.costs) == ROUNDS_COMPARED and cost > max(share, LEAST_SHARE):
            one.costs.clear()
            deed = f"costs the others {cost:.0%} of their time and brings {share:.0%} of the samples, so it"
            self.spoiled(peer, max(MOST_FAULTS - one.faults, 1.0), deed)

    def doubt_reports(self) -> None:
        """Notes that no state of the epoch that others report was found: reports of newer epochs do not count for a
        while.

        The time doubles with each call, until a state has come (`trust_reports`).
        """
        self._doubted_until = self._clock() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)

    def trust_reports(self) -> None:
        """Notes that a state of the others has come. They have ended an epoch that this peer did not consider ended, so
        their reports count again."""
        self._doubted_until, self._retry_seconds = -math.inf, RETRY_SECONDS
        for one in list(self._peers.values()):
            one.share, one.missed = 1.0, 0.0

    def _of(self, peer: bytes) -> _Peer:
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= MOST_PEERS:
                last_news = {one: max(it.heard_at, it.spoiled_at, it.out_until) for one, it in self._peers.items()}
                del self._peers[min(last_news, key=last_news.get)]
            known = self._peers[peer] = _Peer()
        return known

    # -- questions ---------------------------------------------------------------------------------------------------

    def heard_at(self, peer: bytes) -> float:
        """Time at which a peer was last heard."""
        return self._peers.get(peer, _UNKNOWN).heard_at

    def is_alive(self, peer: bytes, within_seconds: float) -> bool:
        """Returns True if a peer was heard within the given seconds, and since it was last lost."""
        one, now = self._peers.get(peer, _UNKNOWN), self._clock()
        is_lost = one.heard_at <= one.lost_at <= now  # the loss does not count if the clock was ahead then
        return one.heard_at >= now - within_seconds and not is_lost

    def is_silent(self, peer: bytes) -> bool:
        """Returns True if a peer has not answered the last ping."""
        return self._peers.get(peer, _UNKNOWN).is_silent

    def is_awaited(self, peer: bytes) -> bool:
        """Returns True if the next group waits for a peer: if it has missed 0, 1, 2, 4, 8, 16 ... averages in a row."""
        missed = int(self._peers.get(peer, _UNKNOWN).missed)
        return missed & (missed - 1) == 0

    def is_left_out(self, peer: bytes) -> bool:
        """Returns True if groups leave a peer out; then its reports do not count."""
        return self._is_out(self._peers.get(peer, _UNKNOWN))

    def left_out(self) -> frozenset[bytes]:
        """Ids of all peers that are left out now."""
        return frozenset(peer for peer, one in list(self._peers.items()) if self._is_out(one))

    def _is_out(self, one: _Peer) -> bool:
        left = one.out_until - self._clock()
        return 0 < left <= LONGEST_LEFT_OUT_SECONDS  # more seconds are left if the clock was ahead at the fault

    def take_news(self) -> list[str]:
        """Returns sentences on the peers that were left out since the last call, and for how long."""
        with self._judging:
            news, self._news = self._news, []
        return news

    @property
    def are_doubted(self) -> bool:
        """True if reports of newer epochs do not count now; see `doubt_reports`."""
        return self._clock() < self._doubted_until

    def has_voice(self, peer: bytes) -> bool:
        """Returns True if a peer's reports have a say in the run's epoch and state."""
        return self._has_brought(peer) or self._accounts.get(peer, ("", False))[1]

    def voices(self, epochs: Mapping[bytes, int]) -> list[int]:
        """The epochs that count among the reported ones: the newest of each voice; see `by_voice`."""
        return [max(epochs[peer] for peer in peers) for peers in self.by_voice(epochs).values()]

    def by_voice(self, peers: Iterable[bytes]) -> dict[bytes | str, list[bytes]]:
        """Returns the peers whose reports count, by voice; see `training.swarm.node.voices`."""
        return by_voice(peers, self._accounts, self._has_brought)

    def _has_brought(self, peer: bytes) -> bool:
        return self._peers.get(peer, _UNKNOWN).has_brought

    def counted_samples(self, peer: bytes, reported: float) -> float:
        """Samples of a peer's report that count towards the end of an epoch."""
        one = self._peers.get(peer, _UNKNOWN)
        return one.share * reported if one.has_brought else 0.0

    def expected_samples(self, peer: bytes, reported: float) -> float:
        """Samples of a peer's report, also if it has brought none yet: an early search for a group goes by this
        number."""
        one = self._peers.get(peer, _UNKNOWN)
        return one.share * reported if one.missed < MEETINGS else 0.0


def furthest_epoch(held: int, newest: int, *, seconds: float, shortest_epoch_seconds: float, total_epochs: int) -> int:
    """Returns the epoch at which a peer goes on with a downloaded state.

    It is the state's epoch, plus the epochs that can have ended during the download, which may last longer than an
    epoch. The last epoch of the schedule needs a state of its own.

    Args:
        held: Epoch of the state.
        newest: Newest epoch that the others report.
        seconds: Duration of the download.
        shortest_epoch_seconds: Shortest time that an epoch can take.
        total_epochs: Number of epochs of the schedule.

    >>> furthest_epoch(7, 4000, seconds=12.0, shortest_epoch_seconds=5.0, total_epochs=4000)
    9
    >>> furthest_epoch(7, 8, seconds=0.5, shortest_epoch_seconds=5.0, total_epochs=4000)
    7
    """
    most = min(held + int(seconds / shortest_epoch_seconds), total_epochs - 1)
    return max(held, min(newest, most))
