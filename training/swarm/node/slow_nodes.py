"""Slow nodes, which answer late or not at all: searches and stores do not wait for them, and ask them again later.

hivemind waits three seconds for each node that it asks. In a small run, most searches ask the one volunteer with a full
link. Then all others take three seconds longer to find a group, miss each other, and average in parts. After a failure,
hivemind does not ask a node for a while, which it measures by the clock of the day: if that is set back, hivemind does
not ask for longer.

A peer that is killed, or whose machine sleeps, cannot say goodbye. For a while its record claims that it trains; but a
peer that computes a long micro-batch sends no news either. A ping tells the two apart, so a group need not wait for a
peer that has died since its last report.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.proto import dht_pb2

from training.swarm.engine.process import DHT

Answer = TypeVar("Answer")

TIMES_MEDIAN, LATE_AFTER_SECONDS = 5.0, 0.5
"""Multiple of the median time of all nodes, and seconds: a node that takes longer than both is slow. So no node is slow
if this peer's own full link delays all answers alike."""
ENOUGH_NODES = 3
"""Number of other nodes that must answer in time before this peer stops waiting for slow ones, so that it can still
reach the records."""
REST_SECONDS, MOST_DOUBLINGS = 5.0, 2
"""Seconds for which a node is not asked after a late answer or a failure, and how many times further failures double
them."""
LATE_TIMES = 2
"""Late answers in a row after which a peer is neither followed nor waited for. A single one may be chance: on a busy
machine each process stands still for a moment now and then."""
MEMORY_SECONDS = 60.0
"""Seconds after which an answer or a failure is forgotten."""
PINGS_AT_ONCE = 32
"""Most pings at a time; more pings would be lost among the other messages of a slow link."""
NODE_SECONDS = 5.0
"""Longest wait for the process of this peer's own node; if it does not answer by then, it is busy, and the other nodes
are not judged."""


@dataclass(slots=True)
class _Node:
    answered_at: float = -math.inf
    took: float = 0.0
    """Seconds that the node's last answer took."""
    late: int = 0
    """Number of late answers in a row."""
    failures: int = 0
    """Number of failures since the node's last answer."""
    rests_until: float = -math.inf
    """Time of the clock until which the node is not asked."""


class SlowNodes:
    """Asks nodes, and remembers how long each answer took.

    Args:
        clock: Returns seconds of a clock that cannot be set.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._nodes: defaultdict[PeerID, _Node] = defaultdict(_Node)
        self._late: set[asyncio.Task] = set()

    @classmethod
    def of(cls, node: DHTNode) -> SlowNodes:
        """Returns the record that a node has of other nodes; an empty one for a node of hivemind's class."""
        return getattr(node.protocol, "slow_nodes", None) or cls()

    def is_slow(self, peer: PeerID) -> bool:
        """Returns True if a node is not asked now, because it was late or dead while enough others answer.

        If this peer's link is cut, no other node answers. Then it asks all of them further, so it notices at once when
        the link is back.
        """
        known = self._nodes.get(peer, _Node())
        return self._rests(known) and len(self._prompt(peer)) >= (1 if known.failures else ENOUGH_NODES)

    def _rests(self, known: _Node) -> bool:
        return known.rests_until > self._clock()

    def _answered(self) -> dict[PeerID, _Node]:
        """Nodes that have answered lately."""
        since = self._clock() - MEMORY_SECONDS
        return {peer: known for peer, known in self._nodes.items() if known.answered_at > since}

    def _prompt(self, peer: PeerID) -> list[PeerID]:
        """Nodes other than `peer` that answer in time."""
        return [other for other, known in self._answered().items() if other != peer and not self._rests(known)]

    def may_wait_seconds(self, peer: PeerID, least: float = LATE_AFTER_SECONDS) -> float:
        """Seconds after which a node counts as slow, `least` or more; infinite if too few others answer."""
        if len(self._prompt(peer)) < ENOUGH_NODES:
            return math.inf
        return max(TIMES_MEDIAN * statistics.median(known.took for known in self._answered().values()), least)

    def lags(self, peer: PeerID) -> bool:
        """Returns True if a node was late several times in a row."""
        return self._nodes.get(peer, _Node()).late >= LATE_TIMES

    def note(self, peer: PeerID, seconds: float, *, least: float = LATE_AFTER_SECONDS) -> None:
        """Notes the seconds that a node's answer took; `may_wait_seconds` says whether they are late."""
        is_late, known = seconds > self.may_wait_seconds(peer, least), self._nodes[peer]
        known.late = known.late + 1 if is_late else 0
        known.answered_at, known.took = self._clock(), seconds
        known.failures, known.rests_until = 0, -math.inf

    def _note_failure(self, peer: PeerID) -> None:
        known = self._nodes[peer]
        known.rests_until = self._clock() + REST_SECONDS * 2 ** min(known.failures, MOST_DOUBLINGS)
        known.failures += 1

    async def ask(self, peer: PeerID, call: Awaitable[Answer | None]) -> Answer | None:
        """Waits for a node's answer. Returns None if it fails or is late; a late answer is noted when it comes."""
        self._forget()
        began, may_wait = self._clock(), self.may_wait_seconds(peer)
        task = asyncio.ensure_future(call)
        done, _ = await asyncio.wait({task}, timeout=may_wait if math.isfinite(may_wait) else None)
        if done:
            self._note_outcome(peer, began, task.result())
            return task.result()
        self._nodes[peer].rests_until = math.inf
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
        failed = task.cancelled() or task.exception() is not None
        self._note_outcome(peer, began, None if failed else task.result())
        self._nodes[peer].rests_until = max(self._nodes[peer].rests_until, self._clock() + REST_SECONDS)

    def _forget(self) -> None:
        since = self._clock() - MEMORY_SECONDS
        for peer, known in list(self._nodes.items()):
            if max(known.answered_at, known.rests_until) <= since:
                del self._nodes[peer]


def silent_peers(
    dht: DHT, peers: Collection[bytes], seconds: float, *, slow_seconds: float = math.inf
) -> frozenset[bytes]:
    """Returns the peers that do not answer, or have answered late several times in a row.

    Args:
        dht: A running node.
        peers: Ids of peers that accept connections.
        seconds: Longest wait for an answer.
        slow_seconds: Seconds after which an answer is late, unless most nodes take as long.

    Raises:
        TimeoutError: If this peer's own node does not answer, so that nothing is known of the others.
    """
    rounds = -(-len(peers) // PINGS_AT_ONCE)
    asked = dht.run_coroutine(partial(_silent, tuple(peers), seconds, slow_seconds), return_future=True)
    return asked.result(timeout=rounds * seconds + NODE_SECONDS)


def any_answers(dht: DHT, peers: Collection[str], seconds: float) -> bool:
    """Returns True if any of the peers with these ids answers in time.

    Raises:
        TimeoutError: If this peer's own node does not answer.
    """
    asked = [PeerID.from_base58(peer).to_bytes() for peer in peers]
    return len(silent_peers(dht, asked, seconds)) < len(asked)


# The rest runs in the node's process.


async def slow_peers(peers: Collection[PeerID], _dht: DHT, node: DHTNode) -> set[PeerID]:
    """Returns the peers that were late several times in a row."""
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
    """Pings a peer. Returns its answer; None if the peer refuses, breaks off, or takes longer than `seconds`."""
    # hivemind's own `call_ping` would remove a peer that is silent for a moment from the routing table.
    asked = p2p.call_protobuf_handler(peer, "DHTProtocol.rpc_ping", dht_pb2.PingRequest(), dht_pb2.PingResponse)
    try:
        return await asyncio.wait_for(asked, seconds)
    except Exception:
        return None
