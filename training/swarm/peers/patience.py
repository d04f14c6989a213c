"""For how long an all-reduce waits for a few groupmates that are much slower than the others.

A part that comes just before the time-out of a silent stream keeps an all-reduce waiting as long as there are parts, up
to the longest time of an all-reduce; then nobody has an average. So the seconds count in which it waits for such a
part, and a peer is waited for as long as an average peer is worth: its share of the time between two averages. A longer
wait costs the others more samples than it saves.

Only waits count that are several times as long as the others took for their first parts. Parts are read in turn: the
next parts of all others lie ready while that of the slowest is awaited, also if it is slower by a few percent only.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hivemind.p2p import PeerID

from training.swarm.peers.groups import Contribution

LOOK_SECONDS = 0.25
"""How often it looks who is late."""
LEAST_SHARE = 0.1
"""A peer is worth this share of the samples at least, however many average."""
REDUCER_FACTOR = 1.25
"""A reducer may be late because of a sender whose parts only it lacks. It must be able to say so before others give it
up."""
USUAL_TIMES, USUAL_SECONDS = 4.0, 1.0
"""A wait counts if it is longer than so many times the others' first parts took, and than this: a busy computer pauses
now and then."""
NEARLY = 0.8
"""Who has been late for this share of the limit is named, too, when another peer says that the all-reduce has failed.
Honest peers reach their limits at almost the same time; they should name the same peer."""


@dataclass(frozen=True, slots=True)
class Late:
    """Groupmates for which one all-reduce waits at a moment."""

    parts: Mapping[PeerID, int]
    """How many parts, or answers, have come of each."""
    reduce: bool
    """Whether answers are late; else parts are."""
    first: Mapping[PeerID, float] = field(default_factory=dict)
    """After how many seconds the first one came, of all groupmates of which one came."""


class Patience:
    """Watches who is late in one all-reduce of one peer; `watch` needs a running event loop.

    Args:
        others: How many peers are in the group beside this one.
        seconds: Limit for a late sender; None: no limit.
        late: For whom the all-reduce waits at the moment.
        on_overdue: Called with the peers for which it has waited too long.
        clock: Seconds.
    """

    def __init__(
        self,
        others: int,
        seconds: float | None,
        late: Callable[[], Late],
        *,
        on_overdue: Callable[[frozenset[PeerID]], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._others, self._seconds = others, seconds
        self._late, self._on_overdue, self._clock = late, on_overdue, clock
        self._waits: dict[tuple[PeerID, bool, int], float] = {}
        """Seconds for each part that was awaited, by its sender or reducer and its number."""
        self._usual: dict[bool, float] = {}
        """For how long a wait is usual."""

    async def watch(self) -> None:
        """Looks again and again, until somebody is overdue or it is cancelled."""
        if self._seconds is None:
            return
        looked = self._clock()
        while not (overdue := self.overdue()):
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            # If this process itself was held up, what has come meanwhile is not read yet.
            self._look(min(now - looked, 2 * LOOK_SECONDS))
            looked = now
        self._on_overdue(overdue)

    def _look(self, seconds: float) -> None:
        """Counts the seconds since the last look for those who are late now.

        If more than half of the others are late, the fault may be this peer's own link: then nobody is.
        """
        late = self._late()
        if 2 * len(late.parts) > self._others:
            return
        first = [seconds for peer, seconds in late.first.items() if peer not in late.parts]
        usual = USUAL_TIMES * statistics.median(first) if first else 0.0
        self._usual[late.reduce] = max(usual, USUAL_SECONDS)
        for peer, number in late.parts.items():
            wait = peer, late.reduce, number
            self._waits[wait] = self._waits.get(wait, 0.0) + seconds

    def overdue(self, share: float = 1.0) -> frozenset[PeerID]:
        """Those for whom the all-reduce has waited for this share of their limits."""
        waited: Counter[PeerID] = Counter()
        for (peer, reduce, _), seconds in self._waits.items():
            if seconds > self._usual[reduce]:
                waited[peer] += seconds / (REDUCER_FACTOR if reduce else 1.0)
        return frozenset(peer for peer, seconds in waited.items() if seconds >= share * self._seconds)


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
