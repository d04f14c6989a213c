"""The nodes on which this peer's records lie, found now and then instead of at each store.

hivemind searches for the nodes nearest to a key whenever it stores a record. Each node that it asks answers with all
records that it has of the key, and nobody reads these answers: in a run of five volunteers, storing a record of 1 kB
brought 30 kB of them. Volunteers store every few seconds, so this was most of what a run with a small model sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hivemind.dht import DHTID
from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID

from training.swarm.engine.process import DHT

SECONDS = 60.0
"""A search counts for so long. A node that does not answer a store, or one that comes, ends this at once: both change
the routing table."""
NEIGHBOURS = 8
"""Nodes of the routing table that are compared: more than the five on which a record lies."""


@dataclass(frozen=True, slots=True)
class _Search:
    at: float
    neighbours: frozenset[DHTID]
    """The nodes of the routing table that were nearest to the key then."""
    found: dict[DHTID, PeerID]
    """The nearest first."""


class NearestNodes:
    """Takes the place of a node's `find_nearest_nodes`.

    Args:
        node: A running one.
        clock: Seconds.
    """

    def __init__(self, node: DHTNode, *, clock: Callable[[], float] = time.monotonic):
        self._node, self._search, self._clock = node, node.find_nearest_nodes, clock
        self._known: dict[DHTID, _Search] = {}

    async def __call__(
        self,
        queries: Collection[DHTID],
        *,
        node_to_peer_id: dict[DHTID, PeerID] | None = None,
        found_callback: Callable | None = None,
        **settings: object,
    ) -> dict[DHTID, dict[DHTID, PeerID]]:
        """See hivemind. A store passes `found_callback`, which sends the record to the nodes that were found."""
        if found_callback is None or node_to_peer_id is None or len(queries) != 1:
            callback = {} if found_callback is None else {"found_callback": found_callback}
            return await self._search(queries, node_to_peer_id=node_to_peer_id, **callback, **settings)
        (key,) = queries
        neighbours = self._neighbours_of(key)
        known = self._known.get(key)
        if known is not None and known.neighbours == neighbours and self._clock() - known.at < SECONDS:
            node_to_peer_id.update(known.found)
            await found_callback(key, list(known.found), set())
            return {key: known.found}

        async def remember(key: DHTID, nearest: list[DHTID], visited: set[DHTID]) -> None:
            found = {node: node_to_peer_id[node] for node in nearest}
            self._known[key] = _Search(self._clock(), neighbours, found)
            await found_callback(key, nearest, visited)

        return await self._search(queries, node_to_peer_id=node_to_peer_id, found_callback=remember, **settings)

    def _neighbours_of(self, key: DHTID) -> frozenset[DHTID]:
        table = self._node.protocol.routing_table
        nearest = table.get_nearest_neighbors(key, NEIGHBOURS, exclude=self._node.node_id)
        return frozenset(node for node, _ in nearest)


async def remember_nearest_nodes(_dht: DHT, node: DHTNode) -> None:
    """In the node's process: its stores go by earlier searches."""
    # hivemind's DHT makes the node itself and lets nobody choose its class.
    node.find_nearest_nodes = NearestNodes(node)
