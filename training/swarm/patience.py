"""For how long an all-reduce waits for a few late groupmates when it has all that the others owe it.

A part that comes just before the time-out of a silent stream keeps an all-reduce waiting as long as there are parts, up
to the longest time of an all-reduce; then nobody has an average. So a late peer is waited for as long as it is worth:
its share of the samples, times the seconds between averages. A longer wait costs the others more samples than it
saves. A peer that has spoiled averages before is waited for half as long.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hivemind.p2p import PeerID

from training.swarm.groups import Contribution

LOOK_SECONDS = 0.25
"""How often it looks who is late."""
LEAST_SHARE = 0.1
"""A peer is worth this share of the samples at least, however many average."""
REDUCER_FACTOR = 1.5
"""A reducer may be late because of a sender whose parts only it lacks. It must be able to say so before others give it
up."""
SUSPECT_FACTOR = 0.5
NEARLY = 0.8
"""Who has been late for this share of the limit is named, too, when another peer says that the all-reduce has failed.
Honest peers reach their limits at almost the same time; they should name the same peer."""


@dataclass(frozen=True, slots=True)
class Late:
    """Groupmates for which one all-reduce waits at a moment."""

    peers: frozenset[PeerID]
    reduce: bool
    """Whether their answers are late; else their parts are."""


class Patience:
    """Watches who is late in one all-reduce of one peer; `watch` needs a running event loop.

    Args:
        others: How many peers are in the group beside this one.
        seconds: Limit for a late sender whom nobody suspects; None: no limit.
        late: For whom the all-reduce waits at the moment.
        suspects: Peers that have spoiled averages before.
        on_overdue: Called with the peers that have been late for too long.
        clock: Seconds.
    """

    def __init__(
        self,
        others: int,
        seconds: float | None,
        late: Callable[[], Late],
        suspects: Collection[PeerID] = frozenset(),
        *,
        on_overdue: Callable[[frozenset[PeerID]], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._others, self._seconds, self._suspects = others, seconds, frozenset(suspects)
        self._late, self._on_overdue, self._clock = late, on_overdue, clock
        self._waited: Counter[PeerID] = Counter()
        """Seconds, divided by the peer's limit: it is overdue from 1 on."""

    async def watch(self) -> None:
        """Looks again and again, until somebody is overdue or it is cancelled."""
        if self._seconds is None:
            return
        looked = self._clock()
        while not self.overdue():
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            self._look(now - looked)
            looked = now
        self._on_overdue(self.overdue())

    def _look(self, seconds: float) -> None:
        """Counts the seconds since the last look for those who are late now.

        If more than half of the others are late, the fault may be this peer's own link: then nobody is.
        """
        late = self._late()
        if 2 * len(late.peers) > self._others:
            return
        limit = self._seconds * (REDUCER_FACTOR if late.reduce else 1.0)
        for peer in late.peers:
            self._waited[peer] += seconds / (limit * (SUSPECT_FACTOR if peer in self._suspects else 1.0))

    def overdue(self, share: float = 1.0) -> frozenset[PeerID]:
        """Those for whom the all-reduce has waited for this share of their limits."""
        return frozenset(peer for peer, waited in self._waited.items() if waited >= share)


def limit_of(contribution: Contribution, peers: int, chunk_seconds: float | None) -> float | None:
    """Seconds for which an all-reduce waits for a late sender in a group of so many peers; None: there is no limit.

    Args:
        contribution: Says how much time an average is worth.
        peers: In the group.
        chunk_seconds: Longest silence of a sender; no peer is given up sooner. None: it may be silent for ever.
    """
    if contribution.cycle_seconds is None or chunk_seconds is None:
        return None
    worth = contribution.cycle_seconds * max(1 / peers, LEAST_SHARE)
    return max(chunk_seconds, contribution.free_seconds + worth)
