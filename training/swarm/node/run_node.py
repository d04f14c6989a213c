"""The node of a run: hivemind's `DHTNode` with our `DHTProtocol`. It stores records at nodes that it has found before.

hivemind searches for the nodes nearest to a key whenever it stores a record. Each node that it asks answers with all
records that it has of the key, and nobody reads these answers: in a run of five volunteers, storing a record of 1 kB
brought 30 kB of them. Volunteers store every few seconds, so this was most of what a run with a small model sent.

Of two records under one subkey, hivemind's DHT keeps the one that expires later. A peer whose clock was five minutes
ahead has records that expire five minutes too late, and until then each node refuses the peer's newer records: the
others count the peer as dead, and no group waits for it. So each record here expires later than the record that it
replaces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.multiaddr import Multiaddr

from training.swarm.engine.calls import Connection
from training.swarm.node.protocol import DHTProtocol

SEARCH_SECONDS = 60.0
"""Seconds for which a search's result is used again. It is dropped at once when a node does not answer a store, or when
a new node joins: both change the routing table."""
NEIGHBOURS = 8
"""Number of the routing table's nodes nearest to a key that must be unchanged; more than the five that store a
record."""
LASTING_SECONDS = 120.0
"""Seconds: a record that is valid for longer is not renewed soon, so this node keeps a copy."""
MOST_TRIES = 3
"""Most tries to store a record. A try fails if an unknown earlier record of this peer turns up that expires later."""
_DEPTH = 5
"""hivemind's `depth_modulo`, a setting of the routing table."""
_NO_CACHE = {"cache_refresh_before_expiry": 0, "cache_nearest": 0, "cache_locally": False}
"""Settings without a cache. hivemind caches the records of searches, and asks for them again before they expire. This
program's searches want the newest records. And a node answers others with the cached record alone, if that expires
later than its stored records."""


@dataclass(frozen=True, slots=True)
class _Search:
    at: float
    neighbours: frozenset[DHTID]
    """Nodes of the routing table that were nearest to the key at the search."""
    found: dict[DHTID, PeerID]
    """Nodes that the search has found, by id, the nearest first."""


class RunNode(DHTNode):
    """A node of a run; make it by `create`."""

    protocol: DHTProtocol

    def __init__(self, **settings: bool):
        super().__init__(**settings)
        self._searches: dict[DHTID, _Search] = {}
        self._newest: dict[DHTID, object] = {}
        """For each key, a mark of the newest call of `store`: an earlier call must not replace its record."""

    @classmethod
    async def create(
        cls,
        p2p: P2P | None = None,
        *,
        own_subkey: bytes,
        record_validator: RecordValidatorBase,
        initial_peers: Sequence[str | Multiaddr] = (),
        client_mode: bool = False,
        strict: bool = True,
        **connection: object,
    ) -> RunNode:
        """Starts a node.

        Args:
            p2p: The connection; None: the node makes one.
            own_subkey: Subkey of this peer's records.
            record_validator: Signs and checks records.
            initial_peers: Full addresses of running nodes; without any, a new DHT starts.
            client_mode: Accept no incoming connections.
            strict: Refuse to start if the clock of an initial peer differs.
            connection: Further arguments of `Connection.create`.

        Raises:
            RuntimeError: If no initial peer answers.
            ValidationError: If the clock of an initial peer differs.
        """
        if p2p is None:
            mode = "client" if client_mode else "server"
            p2p = await Connection.create(initial_peers=initial_peers or None, dht_mode=mode, **connection)
        try:
            # hivemind makes a protocol of its own class. It is made as a client's, so it answers nobody, and ours
            # replaces it.
            node = await super().create(
                p2p, client_mode=True, record_validator=record_validator, blacklist_time=0.0, **_NO_CACHE
            )
            made = node.protocol
            node.protocol = await DHTProtocol.create(
                p2p,
                node.node_id,
                made.bucket_size,
                _DEPTH,
                made.num_replicas,
                made.wait_timeout,
                client_mode=client_mode,
                record_validator=record_validator,
                own_subkey=own_subkey,
            )
            if initial_peers:
                await node.meet({PeerID.from_base58(Multiaddr(one)["p2p"]) for one in initial_peers}, strict)
        except BaseException:
            await p2p.shutdown()
            raise
        return node

    async def meet(self, peers: Collection[PeerID], strict: bool) -> None:
        """Introduces this node to other nodes, and finds its neighbours. Raises the errors of `create`."""
        pings = (self.protocol.call_ping(peer, validate=True, strict=strict) for peer in peers)
        if all(answer is None for answer in await asyncio.gather(*pings)):
            raise RuntimeError("none of the initial peers answers a ping")
        search = asyncio.ensure_future(self.find_nearest_nodes([self.node_id]))
        await asyncio.wait([search], timeout=self.protocol.wait_timeout)

    async def shutdown(self) -> None:
        """Ends the node and its connection."""
        await super().shutdown()
        await self.p2p.shutdown()

    async def find_nearest_nodes(
        self,
        queries: Collection[DHTID],
        *args: object,
        node_to_peer_id: dict[DHTID, PeerID] | None = None,
        found_callback: Callable | None = None,
        **settings: object,
    ) -> dict[DHTID, dict[DHTID, PeerID]]:
        """Finds the nearest nodes as hivemind does. A store passes `found_callback`, which sends the record to them."""
        search = super().find_nearest_nodes
        if found_callback is None or node_to_peer_id is None or len(queries) != 1:
            callback = {} if found_callback is None else {"found_callback": found_callback}
            return await search(queries, *args, node_to_peer_id=node_to_peer_id, **callback, **settings)
        (key,) = queries
        neighbours = self._neighbours_of(key)
        known = self._searches.get(key)
        if known is not None and known.neighbours == neighbours and time.monotonic() - known.at < SEARCH_SECONDS:
            node_to_peer_id.update(known.found)
            await found_callback(key, list(known.found), set())
            return {key: known.found}

        async def remember(key: DHTID, nearest: list[DHTID], visited: set[DHTID]) -> None:
            found = {node: node_to_peer_id[node] for node in nearest}
            self._searches[key] = _Search(time.monotonic(), neighbours, found)
            await found_callback(key, nearest, visited)

        return await search(queries, *args, node_to_peer_id=node_to_peer_id, found_callback=remember, **settings)

    def _neighbours_of(self, key: DHTID) -> frozenset[DHTID]:
        nearest = self.protocol.routing_table.get_nearest_neighbors(key, NEIGHBOURS, exclude=self.node_id)
        return frozenset(node for node, _ in nearest)

    async def store(
        self, key: object, value: object, expiration_time: float, subkey: bytes | None = None, **settings: object
    ) -> bool:
        """Stores a record as hivemind does, but makes it expire after this peer's earlier records at the same nodes.

        hivemind stores a record only at the nodes nearest to its key, and this node need not be one of them. If all
        volunteers leave at once, a server's records are gone with them. So this node keeps a copy of its lasting
        records.
        """
        own, place = self.protocol.own_records, DHTID.generate(source=key)
        self._newest[place] = this = object()
        for _ in range(MOST_TRIES):
            self._note_kept(place)
            expires = own.later_than_the_last(place, expiration_time)
            own.note(place, expires)
            stored = await super().store(key, value, expires, subkey=subkey, **settings)
            self._note_kept(place)
            if self._newest.get(place) is not this:
                break
            if not stored:  # a busy node may have an earlier record that it did not send before
                await self.get(key, latest=True)
            # hivemind returns the answer of the last node only. If this node has met a record from before a restart
            # that expires later, then that record hides the new one, whatever the answer was.
            if not own.has_one_after(place, expires):
                break
        if self._newest.get(place) is this:
            del self._newest[place]
        if subkey is not None and expires - get_dht_time() > LASTING_SECONDS:
            self.keep_copy(place, subkey, value, expires)
        return stored

    def _note_kept(self, place: DHTID) -> None:
        """Notes this peer's record in its own node: another node may have sent back one from before a restart."""
        kept = self.protocol.storage.get(place)
        self.protocol.own_records.note_found(place, kept.value if kept is not None else None)

    def keep_copy(self, key: DHTID, subkey: bytes, value: object, expires: float) -> None:
        """Stores a record of this peer in its own node, unless one that lasts as long is there already."""
        protocol = self.protocol
        kept = protocol.storage.get(key)
        found = kept.value.get(subkey) if kept is not None and isinstance(kept.value, DictionaryDHTValue) else None
        if found is not None and found.expiration_time >= expires:
            return
        packed, validator = protocol.serializer.dumps(value), protocol.record_validator
        record = DHTRecord(key.to_bytes(), protocol.serializer.dumps(subkey), packed, expires)
        record = replace(record, value=validator.sign_value(record))
        if validator.validate(record):
            protocol.storage.store(key, record.value, expires, subkey=subkey)
