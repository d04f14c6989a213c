"""The table of peers: what this peer has heard of each of the others, and what it has seen them bring to averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from hivemind.utils import get_dht_time

from training.swarm.node.voices import Accounts, by_voice
from training.swarm.peers.times import LEAST_SHARE_BROUGHT, MEETINGS, MOST_PEERS


class Fault(Enum):
    """How a peer has failed."""

    LOST = auto()
    """It was lost in an average, or answers no ping: it counts as dead until it is heard again."""
    MISSED = auto()
    """It was in no average with this peer, and should have been."""


@dataclass(slots=True)
class _Peer:
    heard_at: float = -math.inf
    lost_at: float = -math.inf
    is_silent: bool = False
    """Whether it has not answered the last ping."""
    has_brought: bool = False
    """Whether it has brought weight to an average with this peer."""
    share: float = 1.0
    """How much of the samples that it reports counts."""
    missed: float = 0.0


_UNKNOWN = _Peer()


class Peers:
    """What this peer knows of the others; see the package for the rules.

    Events come in by `heard`, `failed` and `brought`; all other methods are questions. Threads may share it:
    an event replaces single values, and a question reads each of them once.

    Args:
        accounts: Of the peers that have shown tickets.
        clock: Seconds, as the records of peers count them.

    >>> peers = Peers(clock=lambda: 100.0)
    >>> peers.heard(b"ada", 99.0), peers.heard(b"eve", 99.0)
    (None, None)
    >>> peers.brought(b"ada", 20.0, reported=22.0), peers.brought(b"eve", 4.0, reported=64.0)
    (None, None)
    >>> peers.counted_samples(b"ada", 20.0), peers.counted_samples(b"eve", 64.0), peers.counted_samples(b"new", 64.0)
    (20.0, 4.0, 0.0)
    """

    def __init__(self, accounts: Accounts | None = None, *, clock: Callable[[], float] = get_dht_time):
        self._clock = clock
        self._peers: dict[bytes, _Peer] = {}
        self._accounts: Accounts = accounts or {}

    # -- events ------------------------------------------------------------------------------------------------------

    def heard(self, peer: bytes, at: float | None = None) -> None:
        """A record or an answer of this peer has come; it was made at this time, or now."""
        now, one = self._clock(), self._of(peer)
        at = now if at is None else at
        # A time by a clock that was ahead does not hide what is heard later.
        one.heard_at = max(at, one.heard_at) if one.heard_at <= now else at
        if not at <= one.lost_at <= now:
            one.lost_at, one.is_silent = -math.inf, False

    def note_accounts(self, accounts: Accounts) -> None:
        """These peers have shown tickets."""
        self._accounts = {**self._accounts, **accounts} if len(self._accounts) < MOST_PEERS else dict(accounts)

    def failed(self, peer: bytes, fault: Fault, weight: float = 1.0, *, is_silent: bool = False) -> None:
        """This peer has failed.

        Args:
            peer: Its id.
            fault: How.
            weight: How much that counts.
            is_silent: It was lost because it answers no ping, so it is asked again.
        """
        one = self._of(peer)
        match fault:
            case Fault.LOST:
                one.lost_at, one.is_silent = self._clock(), is_silent
            case Fault.MISSED:
                one.missed += weight

    def brought(self, peer: bytes, weight: float | None, *, reported: float | None = None) -> None:
        """This peer was in an average with us, to its end.

        Args:
            peer: Its id.
            weight: Samples that it has brought; None: unknown, because this peer averages no part.
            reported: Samples that it should have had by its own reports; None: it reported none of this epoch.
        """
        one = self._of(peer)
        one.missed = 0.0
        one.has_brought |= weight is None or weight > 0
        if weight is not None and reported:
            share = weight / reported
            # A share that has fallen rises slowly: else every second report could be false.
            one.share = min(1.0 if share >= LEAST_SHARE_BROUGHT else share, 2 * one.share)

    def trust_reports(self) -> None:
        """The others have ended an epoch that this peer did not take for ended: what they report counts again."""
        for one in list(self._peers.values()):
            one.share, one.missed = 1.0, 0.0

    def _of(self, peer: bytes) -> _Peer:
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= MOST_PEERS:
                del self._peers[min(list(self._peers), key=lambda one: self._peers[one].heard_at)]
            known = self._peers[peer] = _Peer()
        return known

    # -- questions ---------------------------------------------------------------------------------------------------

    def heard_at(self, peer: bytes) -> float:
        """When it was heard last."""
        return self._peers.get(peer, _UNKNOWN).heard_at

    def is_alive(self, peer: bytes, within_seconds: float) -> bool:
        """Whether it was heard within so many seconds, and since it was last lost."""
        one, now = self._peers.get(peer, _UNKNOWN), self._clock()
        is_lost = one.heard_at <= one.lost_at <= now  # not if it was lost by a clock that was ahead then
        return one.heard_at >= now - within_seconds and not is_lost

    def is_silent(self, peer: bytes) -> bool:
        """Whether it has not answered the last ping."""
        return self._peers.get(peer, _UNKNOWN).is_silent

    def is_awaited(self, peer: bytes) -> bool:
        """Whether the next group waits for it: if it has missed 0, 1, 2, 4, 8, 16 ... averages in a row."""
        missed = int(self._peers.get(peer, _UNKNOWN).missed)
        return missed & (missed - 1) == 0

    def has_voice(self, peer: bytes) -> bool:
        """Whether it has a say in the run's epoch and state."""
        return self._has_brought(peer) or self._accounts.get(peer, ("", False))[1]

    def voices(self, epochs: Mapping[bytes, int]) -> list[int]:
        """The epochs that count of those that peers report: the newest of each account; see `by_voice`."""
        return [max(epochs[peer] for peer in peers) for peers in self.by_voice(epochs).values()]

    def by_voice(self, peers: Iterable[bytes]) -> dict[bytes | str, list[bytes]]:
        """Those of the peers that are heard, by the name in which they speak; see `training.swarm.node.voices`."""
        return by_voice(peers, self._accounts, self._has_brought)

    def _has_brought(self, peer: bytes) -> bool:
        return self._peers.get(peer, _UNKNOWN).has_brought

    def any_voice(self, peers: Iterable[bytes]) -> bool:
        """Whether any of these has a voice."""
        return any(map(self.has_voice, peers))

    def counted_samples(self, peer: bytes, reported: float) -> float:
        """How many of the samples that it reports count towards the end of an epoch."""
        one = self._peers.get(peer, _UNKNOWN)
        return one.share * reported if one.has_brought else 0.0

    def expected_samples(self, peer: bytes, reported: float) -> float:
        """The same, with those of peers that have brought nothing yet: a group is looked for early by these."""
        one = self._peers.get(peer, _UNKNOWN)
        return one.share * reported if one.missed < MEETINGS else 0.0


def furthest_epoch(held: int, newest: int, *, seconds: float, shortest_epoch_seconds: float, total_epochs: int) -> int:
    """The epoch at which a peer goes on with a downloaded state: the state's, and those that can have ended meanwhile.

    A download may last longer than an epoch. The last epoch of the schedule needs a state of its own.

    Args:
        held: Of the state.
        newest: That the others report.
        seconds: That the download took.
        shortest_epoch_seconds: No epoch takes less.
        total_epochs: Of the schedule.

    >>> furthest_epoch(7, 4000, seconds=12.0, shortest_epoch_seconds=5.0, total_epochs=4000)
    9
    >>> furthest_epoch(7, 8, seconds=0.5, shortest_epoch_seconds=5.0, total_epochs=4000)
    7
    """
    most = min(held + int(seconds / shortest_epoch_seconds), total_epochs - 1)
    return max(held, min(newest, most))
