"""Slow nodes, which answer late or not at all: searches and stores do not wait for them, and ask them again later.

hivemind waits three seconds for each node that it asks. One volunteer with a full link is among the nodes of most
searches in a small run; then all others look for a group for so long, miss each other, and average in parts. After a
failure, hivemind does not ask a node for a while, which it measures by the clock of the day: if that is set back, it
asks nobody for as long.

A peer that is killed, or whose machine sleeps, cannot say goodbye. Its record tells for a while that it trains; but a
peer that computes a long micro-batch tells nothing either. A ping tells the two apart, so a group need not wait for a
peer that has died since it reported its progress last.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeVar

from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.proto import dht_pb2

from training.swarm.engine.process import DHT

Answer = TypeVar("Answer")

TIMES_MEDIAN, LATE_AFTER_SECONDS = 5.0, 0.5
"""A node is slow if it takes this multiple of the median of all nodes, and longer than these seconds. So no node is
slow if this peer's own full link delays all answers alike."""
ENOUGH_NODES = 3
"""Nodes that must answer in time before this peer stops waiting for slow ones: it needs a way to the records."""
REST_SECONDS, MOST_DOUBLINGS = 5.0, 2
"""A node is not asked again for so long after it has answered late or not at all. After each further failure, the time
is doubled, at most so often."""
LATE_TIMES = 2
"""Late answers in a row after which a peer is neither followed nor waited for. One alone may be chance: on a busy
machine each process stands still for a moment now and then."""
MEMORY_SECONDS = 60.0
"""An answer says something of its node for so long."""
PINGS_AT_ONCE = 32
"""Most pings at a time; more would be lost among the other messages of a slow link."""
EXTRA_SECONDS = 5.0
"""Time that the node's process may take on top of the pings; it may be busy."""


class SlowNodes:
    """Asks nodes, and remembers how long each took.

    Args:
        clock: Seconds; one that nobody sets.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._answers: dict[PeerID, tuple[float, float]] = {}
        """Time of each node's last answer, and the seconds that it took."""
        self._late_until: dict[PeerID, float] = {}
        self._dead_until: dict[PeerID, float] = {}
        self._failures: Counter[PeerID] = Counter()
        """Failures of each node since its last answer."""
        self._late_in_a_row: Counter[PeerID] = Counter()
        self._late: set[asyncio.Task] = set()

    @classmethod
    def of(cls, node: DHTNode) -> SlowNodes:
        """Returns a node's record of the others; an empty one for a node of hivemind's."""
        return getattr(node.protocol, "slow_nodes", None) or cls()

    def is_slow(self, peer: PeerID) -> bool:
        """Returns True if a node is not asked now, because it was late or dead and others do answer.

        A peer whose link is cut takes all others for dead. It goes on asking them, so it knows at once when they are
        back.
        """
        least = 1 if self._dead_until.get(peer, 0.0) > self._clock() else ENOUGH_NODES
        return self._is_resting(peer) and self._others(peer) >= least

    def _is_resting(self, peer: PeerID) -> bool:
        return max(self._late_until.get(peer, 0.0), self._dead_until.get(peer, 0.0)) > self._clock()

    def _others(self, peer: PeerID) -> int:
        """Number of other nodes that answer in time."""
        return sum(other != peer and not self._is_resting(other) for other in self._answers)

    def patience(self, peer: PeerID, least: float = LATE_AFTER_SECONDS) -> float | None:
        """Seconds after which a node counts as slow, `least` or more; None: never."""
        if self._others(peer) < ENOUGH_NODES:
            return None
        return max(TIMES_MEDIAN * statistics.median(took for _, took in self._answers.values()), least)

    def lags(self, peer: PeerID) -> bool:
        """Returns True if a node was late several times in a row."""
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


def silent_peers(
    dht: DHT, peers: Collection[bytes], seconds: float, *, slow_seconds: float = math.inf
) -> frozenset[bytes]:
    """Returns the peers that do not answer, or answer several times in a row much later than most.

    Args:
        dht: A running node.
        peers: Ids of peers that accept connections.
        seconds: Longest wait for an answer.
        slow_seconds: An answer that takes longer is late, unless most nodes take as long.

    Raises:
        TimeoutError: If this peer's own node does not answer.
    """
    rounds = -(-len(peers) // PINGS_AT_ONCE)
    asked = dht.run_coroutine(partial(_silent, tuple(peers), seconds, slow_seconds), return_future=True)
    return asked.result(timeout=rounds * seconds + EXTRA_SECONDS)


def any_answers(dht: DHT, peers: Collection[str], seconds: float) -> bool:
    """Returns True if any of the peers with these ids answers in time.

    Raises:
        TimeoutError: As `silent_peers` does.
    """
    asked = [PeerID.from_base58(peer).to_bytes() for peer in peers]
    return len(silent_peers(dht, asked, seconds)) < len(asked)


# What follows runs in the node's process.


async def slow_peers(peers: Collection[PeerID], _dht: DHT, node: DHTNode) -> set[PeerID]:
    """Returns the peers that lag behind."""
    nodes = SlowNodes.of(node)
    return {peer for peer in peers if nodes.lags(peer)}


async def _silent(
    peers: tuple[bytes, ...], seconds: float, slow_seconds: float, _dht: DHT, node: DHTNode
) -> frozenset[bytes]:
    free, nodes = asyncio.Semaphore(PINGS_AT_ONCE), SlowNodes.of(node)
    times = await asyncio.gather(*(_answer_seconds(node, PeerID(peer), seconds, free) for peer in peers))
    silent = set()
    for peer, took in zip(peers, times, strict=True):
        if took is not None:
            nodes.note(PeerID(peer), took, least=slow_seconds)
        if took is None or nodes.lags(PeerID(peer)):
            silent.add(peer)
    return frozenset(silent)


async def _answer_seconds(node: DHTNode, peer: PeerID, seconds: float, free: asyncio.Semaphore) -> float | None:
    async with free:
        began = time.monotonic()
        answer = await ping(node.p2p, peer, seconds)
        return None if answer is None else time.monotonic() - began


async def ping(p2p: P2P, peer: PeerID, seconds: float) -> dht_pb2.PingResponse | None:
    """A peer's answer; None if it refuses, breaks off, or takes longer."""
    # hivemind's own `call_ping` would take a peer that is silent for a moment out of the routing table.
    asked = p2p.call_protobuf_handler(peer, "DHTProtocol.rpc_ping", dht_pb2.PingRequest(), dht_pb2.PingResponse)
    try:
        return await asyncio.wait_for(asked, seconds)
    except Exception:
        return None
