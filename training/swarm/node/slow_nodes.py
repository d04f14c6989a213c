"""Nodes that answer late or not at all: searches and stores do not wait for them, and ask them again later.

hivemind waits three seconds for each node that it asks. One volunteer with a full link is among the nodes of most
searches in a small run; then all others look for a group for so long, miss each other, and average in parts. After a
failure, hivemind does not ask a node for a while, which it measures by the clock of the day: if that is set back, it
asks nobody for as long.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from hivemind.dht import DHTID
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID

from training.swarm.engine.process import DHT

Answer = TypeVar("Answer")

TIMES_MEDIAN, LATE_AFTER_SECONDS = 5.0, 0.5
"""A node is slow if it takes so many times as long as the median of all nodes, and longer than this. So if this peer's
own link is full, which delays all answers alike, none is slow."""
ENOUGH_NODES = 3
"""As long as fewer others answer in time, this peer waits for each node: it knows no other way to the records."""
REST_SECONDS, MOST_DOUBLINGS = 5.0, 2
"""A node is not asked again for so long after it has answered late or not at all. After each further failure, the time
is doubled, at most so often."""
LATE_TIMES = 2
"""After so many late answers in a row, a peer is neither followed nor waited for. One alone may be chance: on a busy
machine each process stands still for a moment now and then."""
MEMORY_SECONDS = 60.0
"""An answer says something of its node for so long."""


class SlowNodes:
    """Asks nodes, and remembers how long each took.

    Args:
        clock: Seconds; one that nobody sets.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._answers: dict[PeerID, tuple[float, float]] = {}
        """When each node has answered last, and how many seconds it took."""
        self._late_until: dict[PeerID, float] = {}
        self._dead_until: dict[PeerID, float] = {}
        self._failures: Counter[PeerID] = Counter()
        """Of each node since its last answer."""
        self._late_in_a_row: Counter[PeerID] = Counter()
        self._late: set[asyncio.Task] = set()

    @classmethod
    def of(cls, node: DHTNode) -> SlowNodes:
        """What a node knows of the others; nothing yet if its searches wait for all (`leave_slow_nodes_behind`)."""
        return getattr(node, "slow_nodes", None) or cls()

    def is_slow(self, peer: PeerID) -> bool:
        """Whether this node is better not asked now, because it was late or dead and others do answer.

        A peer whose link is cut takes all others for dead. It goes on asking them, so it knows at once when they are
        back.
        """
        least = 1 if self._dead_until.get(peer, 0.0) > self._clock() else ENOUGH_NODES
        return self._is_resting(peer) and self._others(peer) >= least

    def _is_resting(self, peer: PeerID) -> bool:
        return max(self._late_until.get(peer, 0.0), self._dead_until.get(peer, 0.0)) > self._clock()

    def _others(self, peer: PeerID) -> int:
        """How many other nodes answer in time."""
        return sum(other != peer and not self._is_resting(other) for other in self._answers)

    def patience(self, peer: PeerID, least: float = LATE_AFTER_SECONDS) -> float | None:
        """Seconds after which a node counts as slow, `least` or more; None: never."""
        if self._others(peer) < ENOUGH_NODES:
            return None
        return max(TIMES_MEDIAN * statistics.median(took for _, took in self._answers.values()), least)

    def lags(self, peer: PeerID) -> bool:
        """Whether a node was late several times in a row."""
        return self._late_in_a_row[peer] >= LATE_TIMES

    def note(self, peer: PeerID, seconds: float, *, least: float = LATE_AFTER_SECONDS) -> None:
        """A node has taken so long for an answer; see `patience` on whether that is late."""
        patience = self.patience(peer, least)
        self._late_in_a_row[peer] = self._late_in_a_row[peer] + 1 if patience is not None and seconds > patience else 0
        self._answers[peer] = self._clock(), seconds
        self._failures.pop(peer, None)
        self._dead_until.pop(peer, None)

    def _note_failure(self, peer: PeerID) -> None:
        self._dead_until[peer] = self._clock() + REST_SECONDS * 2 ** min(self._failures[peer], MOST_DOUBLINGS)
        self._failures[peer] += 1

    async def ask(self, peer: PeerID, call: Awaitable[Answer | None]) -> Answer | None:
        """A node's answer; None if there is none, or none in time. A late answer is noted when it comes."""
        self._forget()
        began, patience = self._clock(), self.patience(peer)
        task = asyncio.ensure_future(call)
        done, _ = await asyncio.wait({task}, timeout=patience)
        if done:
            self._note_outcome(peer, began, task.result())
            return task.result()
        self._late_until[peer] = math.inf
        self._late.add(task)  # asyncio itself keeps no reference to it
        task.add_done_callback(lambda late: self._note_late(peer, began, late))
        return None

    def _note_outcome(self, peer: PeerID, began: float, answer: object) -> None:
        if answer is None:
            self._note_failure(peer)
        else:
            self.note(peer, self._clock() - began)

    def _note_late(self, peer: PeerID, began: float, task: asyncio.Task) -> None:
        self._late.discard(task)
        self._late_until[peer] = self._clock() + REST_SECONDS
        failed = task.cancelled() or task.exception() is not None
        self._note_outcome(peer, began, None if failed else task.result())

    def _forget(self) -> None:
        now = self._clock()
        self._answers = {peer: answer for peer, answer in self._answers.items() if now - answer[0] < MEMORY_SECONDS}
        self._late_until = {peer: until for peer, until in self._late_until.items() if until > now}
        self._dead_until = {peer: until for peer, until in self._dead_until.items() if until > now - MEMORY_SECONDS}
        self._failures = Counter({peer: count for peer, count in self._failures.items() if peer in self._dead_until})
        self._late_in_a_row = Counter({peer: count for peer, count in self._late_in_a_row.items() if count})


async def leave_slow_nodes_behind(_dht: DHT, node: DHTNode) -> None:
    """In the node's process: its searches and stores do not wait for slow nodes, nor for dead ones."""
    nodes = node.slow_nodes = SlowNodes()
    find, call_store = node.protocol.call_find, node.protocol.call_store

    async def find_unless_slow(peer: PeerID, keys: Collection[DHTID]):
        return None if nodes.is_slow(peer) else await nodes.ask(peer, find(peer, keys))

    async def store_unless_slow(peer: PeerID, *args, **kwargs):
        return None if nodes.is_slow(peer) else await nodes.ask(peer, call_store(peer, *args, **kwargs))

    # hivemind's DHT makes the node itself and lets nobody choose its class.
    node.protocol.call_find, node.protocol.call_store = find_unless_slow, store_unless_slow


async def slow_peers(peers: Collection[PeerID], _dht: DHT, node: DHTNode) -> set[PeerID]:
    """In the node's process: those of the peers that lag behind."""
    nodes = SlowNodes.of(node)
    return {peer for peer in peers if nodes.lags(peer)}
