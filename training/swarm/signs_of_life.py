"""Which peers answer a ping: a group need not wait for one that has died since it told its progress last.

A peer that is killed, or whose machine sleeps, cannot say goodbye. Its record tells for a while that it trains; but a
peer that computes a long micro-batch tells nothing either. A ping tells the two apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from hivemind.dht import DHT
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

PINGS_AT_ONCE = 32
"""More would be lost among the other messages of a slow link."""
NODE_SECONDS = 5.0
"""How much longer than a ping the node's process may take; it may be busy."""


def silent_peers(dht: DHT, peers: Collection[bytes], seconds: float) -> frozenset[bytes]:
    """Those of the peers that do not answer.

    Args:
        dht: A running node.
        peers: Ids of peers that accept connections.
        seconds: Longest wait for an answer.

    Raises:
        TimeoutError: If this peer's own node does not answer, so that nothing is known of the others.
    """
    rounds = -(-len(peers) // PINGS_AT_ONCE)
    asked = dht.run_coroutine(partial(_silent, tuple(peers), seconds), return_future=True)
    return asked.result(timeout=rounds * seconds + NODE_SECONDS)


# What follows runs in the node's process.


async def _silent(peers: tuple[bytes, ...], seconds: float, _dht: DHT, node: DHTNode) -> frozenset[bytes]:
    free = asyncio.Semaphore(PINGS_AT_ONCE)
    answers = await asyncio.gather(*(_answers(node, PeerID(peer), seconds, free) for peer in peers))
    return frozenset(peer for peer, answered in zip(peers, answers, strict=True) if not answered)


async def _answers(node: DHTNode, peer: PeerID, seconds: float, free: asyncio.Semaphore) -> bool:
    # hivemind's own `call_ping` would take a peer that is silent for a moment out of the routing table.
    ping = partial(node.p2p.call_protobuf_handler, peer, "DHTProtocol.rpc_ping")
    async with free:
        try:
            await asyncio.wait_for(ping(dht_pb2.PingRequest(), dht_pb2.PingResponse), seconds)
        except Exception:  # refused, broken off or too late
            return False
    return True
