"""Liveness of groupmates: an all-reduce stops waiting for peers that are gone or much slower than others.

A groupmate that sends nothing may be slow, and an all-reduce waits for it for as long as the recipe says: up to a
minute where links are slow. A peer that is dead or cut off would cost all others that time. A slow peer answers a
ping meanwhile, since its node does nothing else; a peer that answers no ping for `SILENT_SECONDS`, and of which no part
comes either, is gone. Where a link is full, an answer waits behind parts: so a peer whose first part took long may be
silent for `USUAL_TIMES` as long.

If each part of a slow peer comes just before the time-out of a silent stream, the all-reduce may wait for that time at
each part. So we count the seconds in which the all-reduce waits for the peer, and it waits as long as an average peer
is worth: that peer's share of the time between two averages. A longer wait costs the others more samples than it saves.
Only waits count that are several times as long as the others took for their first parts. Parts are read in turn: the
next parts of the others lie ready while the slowest peer's part is awaited, even if that peer is only a few percent
slower.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from hivemind.p2p import PeerID

from training.swarm.peers.groups import Contribution
from training.swarm.peers.times import (
    LEAST_SHARE,
    LOOK_SECONDS,
    PAUSE_SECONDS,
    REDUCER_FACTOR,
    SILENT_SECONDS,
    USUAL_TIMES,
)

PINGS_AT_ONCE = 16
"""Most pings under way. In a large group each peer pings all others if one reducer is late, so their answers are late
too."""
NEARLY = 0.8
"""Share of its limit for which a peer must be late to be named when another peer says that the all-reduce has failed.
Honest peers reach their limits at almost the same time; they should name the same late peer."""

Ping = Callable[[PeerID, float], Awaitable[bool]]
"""Function that returns True if a peer answers within some seconds."""


@dataclass(frozen=True, slots=True)
class Late:
    """Groupmates for which one all-reduce waits at the moment."""

    parts: Mapping[PeerID, int]
    """Number of parts, or of answers, that have come from each peer."""
    reduce: bool
    """True if answers of reducers are late; False if parts of senders are."""
    first: Mapping[PeerID, float] = field(default_factory=dict)
    """Seconds until the first part came, by groupmate."""


class SlowSenders:
    """Seconds that one all-reduce of one peer has waited for slow groupmates.

    Args:
        others: Number of peers in the group besides this one.
        limit_seconds: Longest wait for one groupmate; None: no limit. See `limit_of`.
    """

    def __init__(self, others: int, limit_seconds: float | None):
        self._others, self._limit = others, limit_seconds
        self._waits: dict[tuple[PeerID, bool, int], float] = {}
        """Seconds of waiting for each part, by the peer, True for a reducer's answer, and the part's number."""
        self._usual: dict[bool, float] = {}
        """Longest usual wait, for answers of reducers (True) and for parts of senders (False)."""

    def note(self, late: Late, seconds: float) -> None:
        """Adds seconds to the waits for late peers.

        If more than half of the others are late, the fault may be this peer's own link, and nothing is added.
        """
        if 2 * len(late.parts) > self._others:
            return
        first = [seconds for peer, seconds in late.first.items() if peer not in late.parts]
        self._usual[late.reduce] = max(USUAL_TIMES * statistics.median(first or [0.0]), PAUSE_SECONDS)
        for peer, number in late.parts.items():
            wait = peer, late.reduce, number
            self._waits[wait] = self._waits.get(wait, 0.0) + seconds

    def overdue(self, share: float = 1.0) -> frozenset[PeerID]:
        """Peers for which the all-reduce has waited for a share of their limits, or longer."""
        if self._limit is None:
            return frozenset()
        waited: Counter[PeerID] = Counter()
        for (peer, reduce, _), seconds in self._waits.items():
            if seconds > self._usual[reduce]:
                waited[peer] += seconds / (REDUCER_FACTOR if reduce else 1.0)
        return frozenset(peer for peer, seconds in waited.items() if seconds >= share * self._limit)


class Liveness:
    """Watches the groupmates for which one all-reduce waits; needs a running event loop.

    Args:
        ping: Returns True if a peer answers within some seconds.
        late: Returns the peers for which the all-reduce waits at the moment.
        asked: Returns the peers to ping: those that accept connections and are late or were asked for a decision.
        slow: Counts how long the all-reduce waits.
        on_overdue: Called with the peers for which the all-reduce has waited too long.
        on_gone: Called once for each peer that is gone.
        clock: Returns seconds.
    """

    def __init__(
        self,
        ping: Ping,
        *,
        late: Callable[[], Late],
        asked: Callable[[], Collection[PeerID]],
        slow: SlowSenders,
        on_overdue: Callable[[frozenset[PeerID]], None],
        on_gone: Callable[[PeerID], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._ping, self._late, self._asked, self._slow = ping, late, asked, slow
        self._on_overdue, self._on_gone, self._clock = on_overdue, on_gone, clock
        self._pings: dict[PeerID, asyncio.Task] = {}
        self._silent_since: dict[PeerID, float] = {}
        """Time of the first unanswered ping by peer, or of its last part since; peers that have answered their last
        ping are not in it."""
        self._came: Mapping[PeerID, int] = {}
        """Number of parts or answers that had come from each late peer at the last look."""
        self._gone: set[PeerID] = set()

    async def watch(self) -> None:
        """Watches the groupmates until it is cancelled."""
        looked = self._clock()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                now = self._clock()
                # If this process itself was held up, it has not read yet what came meanwhile.
                late = self._late()
                self._slow.note(late, min(now - looked, 2 * LOOK_SECONDS))
                looked = now
                if overdue := self._slow.overdue():
                    self._on_overdue(overdue)
                self._look_for_the_gone(late, now)
        finally:
            for asking in self._pings.values():
                asking.cancel()

    def _look_for_the_gone(self, late: Late, now: float) -> None:
        asked = set(self._asked()) - self._gone
        # An old ping does not count against a peer for which nobody waited in between.
        self._silent_since = {
            peer: since if late.parts.get(peer) == self._came.get(peer) else now
            for peer, since in self._silent_since.items()
            if peer in asked
        }
        self._came = late.parts
        for peer in asked:
            if len(self._pings) < PINGS_AT_ONCE and peer not in self._pings:
                self._silent_since.setdefault(peer, now)
                self._pings[peer] = asyncio.create_task(self._ask(peer))
            longest = max(SILENT_SECONDS, USUAL_TIMES * late.first.get(peer, 0.0))
            if now - self._silent_since.get(peer, now) >= longest:
                self._gone.add(peer)
                self._on_gone(peer)

    async def _ask(self, peer: PeerID) -> None:
        try:
            if await self._ping(peer, 2 * SILENT_SECONDS):
                self._silent_since.pop(peer, None)
        finally:
            del self._pings[peer]


def limit_of(contribution: Contribution, peers: int, chunk_seconds: float | None) -> float | None:
    """Seconds for which an all-reduce waits for a late sender; None: there is no limit.

    Args:
        contribution: Gives the time that an average is worth.
        peers: Number of peers in the group.
        chunk_seconds: Longest silence of a sender; no peer is given up sooner. None: no limit on its silence.
    """
    if contribution.cycle_seconds is None or chunk_seconds is None:
        return None
    worth = contribution.cycle_seconds * max(1 / peers, LEAST_SHARE)
    return max(chunk_seconds, contribution.free_seconds + worth)
