"""Protocol of this peer's node: hivemind's protocol of the DHT with limits on what others may send.

These are a node's guards against strangers. Each prevents an attack that has stopped a run or a part of it:

- `bounds.unpack` reads a message in bounded depth. 1.4 kB of nested tuples ended every node's process.
- `bounds.record_bounds` accepts small records that lie under their signer's key, for an hour at most. One value over a
  dictionary's key hid all peers of a run, junk stopped all groups, and 5 MB under a key stopped the bootstrap peer.
- `DHTProtocol.drop_refused` drops a refused record, which would hide all others of its key.
- `stored.Storage` bounds the bytes of a key, of a signer, and of all records. Junk filled each node's memory.
- `DHTProtocol` bounds what one search, one store and one answer may name.
- `slow_nodes.SlowNodes` does not wait for nodes that stand still. Such nodes cost a run 19 of 20 epochs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

from hivemind.dht import protocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import ValueWithExpiration, get_dht_time

from training.swarm.engine.bounds import MOST_RECORD_SECONDS, Records, Serializer, unpack
from training.swarm.engine.ids import named_peer
from training.swarm.engine.stored import Storage
from training.swarm.node.slow_nodes import SlowNodes

MOST_KEYS = 4
"""Most keys of one search. This program searches for one key, and for three when it looks for neighbours."""
MOST_STORES = 256
"""Most records of one store, for all of a node's keys together; a peer stores its own records one by one."""
MOST_NEIGHBOURS = 64
"""Most neighbours in an answer to a search for one key; this program's answers name 20."""
STEP_SECONDS = 0.01
"""Least time between the expirations of a record and of the one that it replaces."""

Found = tuple[ValueWithExpiration | None, dict[DHTID, PeerID]]
"""A node's answer about a key: its records and its nearest neighbours."""

logger = logging.getLogger(__name__)


class OwnRecords:
    """Expirations of this peer's records, also of records from before a restart.

    Args:
        subkey: Subkey of all records of this peer.
    """

    def __init__(self, subkey: bytes):
        self._subkey = subkey
        self._expire: dict[DHTID, float] = {}
        """Latest known time at which this peer's record under a key expires, by the key."""

    def note(self, key: DHTID, expires: float) -> None:
        """Notes the time at which this peer's record under a key expires."""
        self._expire[key] = max(expires, self._expire.get(key, -math.inf))

    def note_found(self, key: DHTID, found: object) -> None:
        """Notes this peer's record among those that a node has under a key."""
        if isinstance(found, DictionaryDHTValue) and (own := found.get(self._subkey)) is not None:
            self.note(key, own.expiration_time)

    def has_one_after(self, key: DHTID, expires: float) -> bool:
        """Returns True if this peer has another record under the key that expires later."""
        return expires < self._expire.get(key, -math.inf) <= get_dht_time() + MOST_RECORD_SECONDS

    def later_than_the_last(self, key: DHTID, expires: float) -> float:
        """Returns the expiration that a new record needs to replace the last one: `expires`, or later."""
        now = get_dht_time()
        # Other nodes have dropped expired records, and have refused those that expire too late.
        self._expire = {known: last for known, last in self._expire.items() if now < last <= now + MOST_RECORD_SECONDS}
        return max(expires, self._expire.get(key, -math.inf) + STEP_SECONDS)


class DHTProtocol(protocol.DHTProtocol):
    """Calls between this peer's node and others. hivemind names calls after the class, so it has hivemind's name."""

    serializer = Serializer

    def __init__(self, **settings: bool):
        super().__init__(**settings)
        self.slow_nodes = SlowNodes()
        self.own_records = OwnRecords(b"")

    @classmethod
    async def create(cls, *args: object, own_subkey: bytes, **settings: object) -> DHTProtocol:
        """Makes the protocol as hivemind does; `own_subkey` is the subkey of this peer's records."""
        made = await super().create(*args, **settings)
        made.storage, made.own_records = Storage(), OwnRecords(own_subkey)
        return made

    # -- asking others -----------------------------------------------------------------------------------------------

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]) -> dict[DHTID, Found] | None:
        """Asks a node about some keys. Returns None if it is slow, or its answer cannot be read."""
        if self.slow_nodes.is_slow(peer):
            return None
        return await self.slow_nodes.ask(peer, self._find(peer, list(keys)))

    async def _find(self, peer: PeerID, keys: list[DHTID]) -> dict[DHTID, Found] | None:
        request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=self.node_info)
        try:
            async with self.rpc_semaphore:
                answer = await self.get_stub(peer).rpc_find(request, timeout=self.wait_timeout)
            found = {key: self._read(key, result) for key, result in zip(keys, answer.results, strict=True)}
        except Exception:
            logger.debug("A node does not answer a search: %s", peer, exc_info=True)
            await self.update_routing_table(self.routing_table.get(peer_id=peer), peer, responded=False)
            return None
        if answer.peer.node_id:
            await self.update_routing_table(DHTID.from_bytes(answer.peer.node_id), peer)
        return found

    def _read(self, key: DHTID, result: dht_pb2.FindResult) -> Found:
        if len(result.nearest_peer_ids) > MOST_NEIGHBOURS:
            raise ValueError(f"an answer names more than {MOST_NEIGHBOURS} neighbours")
        neighbours = map(DHTID.from_bytes, result.nearest_node_ids), map(named_peer, result.nearest_peer_ids)
        nearest = dict(zip(*neighbours, strict=True))
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return None, nearest  # a run's records lie in dictionaries only
        records = unpack(result.value)
        if not self.drop_refused(key, records):
            return None, nearest
        self.own_records.note_found(key, records)
        # A search for the latest records would end if an answer never expired.
        return ValueWithExpiration(records, min(result.expiration_time, get_dht_time() + MOST_RECORD_SECONDS)), nearest

    def drop_refused(self, key: DHTID, records: Records) -> bool:
        """Drops the records of a key that the node's validators refuse. Returns whether any is left.

        hivemind's node takes none of another node's records if one of them is refused. But nodes hear of bans and of
        lineages at different times, and their clocks differ: a node that has not heard of a ban yet, or whose clock
        differs, would hide all peers from the nodes that refuse one record.
        """
        with records.freeze():  # otherwise records that expire meanwhile would be dropped during the loop
            for subkey, (value, expires) in list(records.items()):
                record = DHTRecord(key.to_bytes(), self.serializer.dumps(subkey), value, expires)
                if self.record_validator is not None and not self.record_validator.validate(record):
                    del records[subkey]
            return len(records) > 0

    async def call_store(self, peer: PeerID, *args: object, **settings: object) -> list[bool] | None:
        """Stores records at a node as hivemind does; returns None at once if the node is slow."""
        if self.slow_nodes.is_slow(peer):
            return None
        return await self.slow_nodes.ask(peer, super().call_store(peer, *args, **settings))

    # -- answering others --------------------------------------------------------------------------------------------

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Answers a search as hivemind does.

        Raises:
            ValueError: If the search has too many keys; each would be answered with a copy of all records.
        """
        if len(request.keys) > MOST_KEYS or len(set(request.keys)) < len(request.keys):
            raise ValueError(f"a search is for at most {MOST_KEYS} different keys")
        return await super().rpc_find(request, context)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Stores another node's records, one by one, so that a refused one hides no others.

        Raises:
            ValueError: If there are too many records, whose signatures take time to check, or one is for the cache:
                hivemind's node answers with the cached record alone if it expires later than the stored ones.
        """
        places = list(zip(request.keys, request.subkeys, request.in_cache, strict=True))
        if len(places) > MOST_STORES or len(set(places)) < len(places):
            raise ValueError(f"a store is of at most {MOST_STORES} records, each in another place")
        if any(request.in_cache):
            raise ValueError("nobody stores in the cache of another node")
        single, counts = dht_pb2.StoreRequest(peer=request.peer), []
        for key, tag, value, expires in zip(
            request.keys, request.subkeys, request.values, request.expiration_time, strict=True
        ):
            entries = [(tag, value, expires)]
            if tag == self.IS_DICTIONARY:
                records = unpack(value).items()
                entries = [(self.serializer.dumps(one), item.value, item.expiration_time) for one, item in records]
            for subkey, content, ends in entries:
                single.keys.append(key)
                single.subkeys.append(subkey)
                single.values.append(content)
                single.expiration_time.append(ends)
                single.in_cache.append(False)
            counts.append(len(entries))
        answer = await super().rpc_store(single, context)
        stored = iter(answer.store_ok)
        taken = [any([next(stored) for _ in range(count)]) for count in counts]
        return dht_pb2.StoreResponse(store_ok=taken, peer=answer.peer)
