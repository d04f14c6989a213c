"""Which peers have spoiled averages, and for how long this peer's groups leave them out.

A peer that stands still, breaks off or sends nonsense costs its whole group the time until it is given up. Once may be
an accident. After the second time it is left out, for a time that doubles with each further time; it is forgiven when
it has been inconspicuous for long. A peer that is only slow is left out if the others lose more by waiting for it than
it brings: its share of the samples. Each peer keeps its own list, of what it has seen itself, so that nobody can talk
the others into leaving an honest peer out. Groupmates see the same faults, so their lists agree.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from training.swarm.peers.groups import Delay

MOST_FAULTS = 2
"""A peer is left out from this fault on,"""
FIRST_SECONDS, LONGEST_SECONDS = 30.0, 3600.0
"""for so long at first, and so long at most."""
FORGOTTEN_SECONDS = 900.0
"""After so long without another fault, all faults are forgotten."""
ROUNDS_COMPARED = 3
"""A peer is slow if it was so on average over so many rounds; one round may be an accident."""
PAUSE_SECONDS = 1.0
"""A shorter delay does not count: a busy computer pauses now and then."""
LEAST_COST = 0.1
"""A peer may cost the others this share of their time, however little it brings."""


@dataclass(slots=True)
class _Record:
    faults: float = 0.0
    seen_at: float = 0.0
    out_until: float = 0.0
    costs: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ROUNDS_COMPARED))
    """What the last rounds with it cost, and what it brought, as shares."""


class Standing:
    """The list of one peer; the threads of both averagers note in it.

    Args:
        tell: Gets the ids of all peers that are left out, whenever these change.
        clock: Seconds; a test passes its own.

    >>> now = [0.0]
    >>> standing = Standing(lambda peers: None, clock=lambda: now[0])
    >>> standing.note({"mallory": 1.0})
    >>> standing.note({"mallory": 1.0, "alan": 1.0})
    >>> standing.take_news()
    ['mallory has spoiled averages and is left out of groups for 30 s']
    """

    def __init__(self, tell: Callable[[frozenset[str]], None], *, clock: Callable[[], float] = time.monotonic):
        self._tell, self._clock = tell, clock
        self._records: dict[str, _Record] = {}
        self._told: frozenset[str] = frozenset()
        self._news: list[str] = []
        self._lock, self._telling = threading.Lock(), threading.Lock()

    def note(self, peers: Mapping[str, float]) -> None:
        """These have spoiled an average; a weight of 1 stands for a fault that is beyond doubt."""
        with self._lock:
            for peer, weight in peers.items():
                self._note(peer, weight, self._clock(), why="has spoiled averages and")
        self.refresh()

    def note_caught(self, peer: str, weight: float, deed: str) -> None:
        """This peer has proof that another one has lied, or another one evades its checks; see `pipe.Caught`."""
        with self._lock:
            self._note(peer, weight, self._clock(), why=deed)
        self.refresh()

    def note_delays(self, delays: Mapping[str, Delay], *, waited: float, cycle: float) -> None:
        """How slow the peers of an average were.

        Args:
            delays: See `RoundReport`.
            waited: Seconds that this peer's training stood still for the average.
            cycle: Seconds since the average before.
        """
        with self._lock:
            for peer, delay in delays.items():
                record = self._records.setdefault(peer, _Record())
                lost = min(delay.seconds, waited) if delay.seconds >= PAUSE_SECONDS else 0.0
                record.costs.append((lost / max(cycle, waited, 1e-9), delay.share))
                cost, brought = (statistics.fmean(column) for column in zip(*record.costs, strict=True))
                if len(record.costs) == ROUNDS_COMPARED and cost > max(brought, LEAST_COST):
                    record.costs.clear()
                    why = f"costs the others {cost:.0%} of their time and brings {brought:.0%} of the samples, so it"
                    self._note(peer, max(MOST_FAULTS - record.faults, 1.0), self._clock(), why=why)
        self.refresh()

    def _note(self, peer: str, weight: float, now: float, *, why: str) -> None:
        record = self._records.setdefault(peer, _Record())
        if now < record.out_until:  # a round that was begun before
            return
        if now - max(record.seen_at, record.out_until) > FORGOTTEN_SECONDS:
            record.faults = 0.0
        record.faults, record.seen_at = record.faults + weight, now
        if record.faults >= MOST_FAULTS:
            seconds = min(FIRST_SECONDS * 2.0 ** min(int(record.faults) - MOST_FAULTS, 20), LONGEST_SECONDS)
            record.out_until = now + seconds
            self._news.append(f"{peer} {why} is left out of groups for {seconds:.0f} s")

    def take_news(self) -> list[str]:
        """Sentences on who was left out since the last call, and for how long."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def refresh(self) -> None:
        """Lets peers in again whose time is over; call it before a group is looked for."""
        with self._telling:  # whichever thread looks later also tells later
            now = self._clock()
            with self._lock:
                records = list(self._records.items())
            out = frozenset(peer for peer, record in records if now < record.out_until)
            if out != self._told:
                self._told = out
                self._tell(out)
