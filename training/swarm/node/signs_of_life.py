"""Which peers answer a ping: a group need not wait for one that has died since it told its progress last.

A peer that is killed, or whose machine sleeps, cannot say goodbye. Its record tells for a while that it trains; but a
peer that computes a long micro-batch tells nothing either. A ping tells the two apart.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection
from functools import partial

from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P, PeerID
from hivemind.proto import dht_pb2

from training.swarm.engine.process import DHT
from training.swarm.node.slow_nodes import SlowNodes

PINGS_AT_ONCE = 32
"""More would be lost among the other messages of a slow link."""
EXTRA_SECONDS = 5.0
"""Time that the node's process may take on top of the pings; it may be busy."""


def silent_peers(
    dht: DHT, peers: Collection[bytes], seconds: float, *, slow_seconds: float = math.inf
) -> frozenset[bytes]:
    """Those of the peers that do not answer, or again and again much later than most.

    Args:
        dht: A running node.
        peers: Ids of peers that accept connections.
        seconds: Longest wait for an answer.
        slow_seconds: An answer that takes longer is late, unless most nodes take as long (`slow_nodes`).

    Raises:
        TimeoutError: If this peer's own node does not answer, so that nothing is known of the others.
    """
    rounds = -(-len(peers) // PINGS_AT_ONCE)
    asked = dht.run_coroutine(partial(_silent, tuple(peers), seconds, slow_seconds), return_future=True)
    return asked.result(timeout=rounds * seconds + EXTRA_SECONDS)


def any_answers(dht: DHT, peers: Collection[str], seconds: float) -> bool:
    """Whether any of the peers with these ids answers within so many seconds.

    Raises:
        TimeoutError: As `silent_peers` does.
    """
    asked = [PeerID.from_base58(peer).to_bytes() for peer in peers]
    return len(silent_peers(dht, asked, seconds)) < len(asked)


# What follows runs in the node's process.


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
