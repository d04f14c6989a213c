"""Which groupmates an all-reduce stops waiting for: those that are gone, and those that are much slower than others.

A groupmate that sends nothing may be slow, and an all-reduce waits for it for as long as the recipe says: up to a
minute where links are slow. One that is dead or cut off would cost all others that time. A slow one answers a ping
meanwhile, since its node does nothing else; one that answers none for `SILENT_SECONDS` is gone.

A slow one whose parts come just before the time-out of a silent stream keeps an all-reduce waiting as long as there are
parts. So the seconds count in which the all-reduce waits for it, and it is waited for as long as an average peer is
worth: its share of the time between two averages. A longer wait costs the others more samples than it saves. Only waits
count that are several times as long as the others took for their first parts. Parts are read in turn: the next parts of
all others lie ready while that of the slowest is awaited, also if it is slower by a few percent only.
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
"""Among many peers, others get theirs later: each of them pings all others if one reducer is late."""
NEARLY = 0.8
"""A peer that has been late for this share of the limit is named, too, when another peer says that the all-reduce has
failed. Honest peers reach their limits at almost the same time; they should name the same peer."""

Ping = Callable[[PeerID, float], Awaitable[bool]]
"""Function that returns True if a peer answers within some seconds."""


@dataclass(frozen=True, slots=True)
class Late:
    """Groupmates for which one all-reduce waits at a moment."""

    parts: Mapping[PeerID, int]
    """Parts, or answers, that have come of each."""
    reduce: bool
    """True if answers are late; else parts are."""
    first: Mapping[PeerID, float] = field(default_factory=dict)
    """Seconds after which the first part came, by groupmate."""


class SlowSenders:
    """Seconds that one all-reduce of one peer has waited for slow groupmates.

    Args:
        others: How many peers are in the group beside this one.
        limit_seconds: For one of them; None: no limit. See `limit_of`.
    """

    def __init__(self, others: int, limit_seconds: float | None):
        self._others, self._limit = others, limit_seconds
        self._waits: dict[tuple[PeerID, bool, int], float] = {}
        """Seconds for each part that was awaited, by its sender or reducer and its number."""
        self._usual: dict[bool, float] = {}
        """Usual length of a wait."""

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
        """Peers for which the all-reduce has waited for this share of their limits."""
        if self._limit is None:
            return frozenset()
        waited: Counter[PeerID] = Counter()
        for (peer, reduce, _), seconds in self._waits.items():
            if seconds > self._usual[reduce]:
                waited[peer] += seconds / (REDUCER_FACTOR if reduce else 1.0)
        return frozenset(peer for peer, seconds in waited.items() if seconds >= share * self._limit)


class Liveness:
    """Looks now and then for whom one all-reduce waits; needs a running event loop.

    Args:
        ping: Asks a peer for a sign of life.
        late: For whom the all-reduce waits at the moment.
        asked: Who may be gone: those among the late, and those that are asked for a decision, that accept connections.
        slow: Counts how long the all-reduce waits.
        on_overdue: Called with the peers for which it has waited too long.
        on_gone: Called once for each peer that is gone.
        clock: Seconds.
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
        """Time of the first unanswered ping by peer; peers that have answered their last ping are not in it."""
        self._gone: set[PeerID] = set()

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        looked = self._clock()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                now = self._clock()
                # If this process itself was held up, what has come meanwhile is not read yet.
                self._slow.note(self._late(), min(now - looked, 2 * LOOK_SECONDS))
                looked = now
                if overdue := self._slow.overdue():
                    self._on_overdue(overdue)
                self._look_for_the_gone(now)
        finally:
            for asking in self._pings.values():
                asking.cancel()

    def _look_for_the_gone(self, now: float) -> None:
        asked = set(self._asked()) - self._gone
        # An old ping says nothing of a peer that was not waited for in between.
        self._silent_since = {peer: since for peer, since in self._silent_since.items() if peer in asked}
        for peer in asked:
            if len(self._pings) < PINGS_AT_ONCE and peer not in self._pings:
                self._silent_since.setdefault(peer, now)
                self._pings[peer] = asyncio.create_task(self._ask(peer))
            if now - self._silent_since.get(peer, now) >= SILENT_SECONDS:
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
        chunk_seconds: Longest silence of a sender; no peer is given up sooner. None: it may be silent for ever.
    """
    if contribution.cycle_seconds is None or chunk_seconds is None:
        return None
    worth = contribution.cycle_seconds * max(1 / peers, LEAST_SHARE)
    return max(chunk_seconds, contribution.free_seconds + worth)
