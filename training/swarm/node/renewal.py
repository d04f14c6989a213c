"""A peer's new record takes the place of its old one, also after the peer's clock was ahead; and it has a copy itself.

Of two records under one subkey, hivemind's DHT keeps the one that expires later. A peer whose clock was five minutes
ahead has records that expire five minutes too late, and each node refuses its newer ones for so long: the others take
it for dead, and no group waits for it. So a record here expires later than the one that it replaces.

Other nodes than its own may be nearer to the key, and hivemind stores a record with those only. If all volunteers leave
at once, what a server has announced minutes ago is gone with them. So a node keeps a copy of its lasting records.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

from training.swarm.engine.bounds import MOST_RECORD_SECONDS
from training.swarm.engine.process import DHT

LASTING_SECONDS = 120.0
"""A record that is valid for longer is not renewed soon."""
STEP_SECONDS = 0.01
"""So much later than the one before a record expires at least."""
MOST_STORES = 3
"""So often a record is stored if earlier ones turn up, of which this peer did not know, that expire later."""


class OwnRecords:
    """When this peer's records expire, those included that it has stored before a restart.

    Args:
        subkey: Under which all records of this peer are.
    """

    def __init__(self, subkey: bytes):
        self._subkey = subkey
        self._expire: dict[DHTID, float] = {}
        """The latest time at which a record expires, by the key."""

    def note(self, key: DHTID, expires: float) -> None:
        """This peer's record under a key expires at this time."""
        self._expire[key] = max(expires, self._expire.get(key, -math.inf))

    def note_found(self, key: DHTID, found: object) -> None:
        """What a node has under a key."""
        if isinstance(found, DictionaryDHTValue) and (own := found.get(self._subkey)) is not None:
            self.note(key, own.expiration_time)

    def has_one_after(self, key: DHTID, expires: float) -> bool:
        """Whether a record of this peer is known that expires later."""
        return expires < self._expire.get(key, -math.inf) <= get_dht_time() + MOST_RECORD_SECONDS

    def later_than_the_last(self, key: DHTID, expires: float) -> float:
        """When a new record must expire that shall take the place of the last one."""
        now = get_dht_time()
        # The others have none of those that have expired, and have taken none that expires too late.
        self._expire = {known: last for known, last in self._expire.items() if now < last <= now + MOST_RECORD_SECONDS}
        return max(expires, self._expire.get(key, -math.inf) + STEP_SECONDS)


def keep_copy(node: DHTNode, key: DHTID, subkey: bytes, value: object, expires: float) -> None:
    """Puts a record of this peer into its own node, unless it is there already."""
    protocol = node.protocol
    kept = protocol.storage.get(key)
    found = kept.value.get(subkey) if kept is not None and isinstance(kept.value, DictionaryDHTValue) else None
    if found is not None and found.expiration_time >= expires:
        return
    packed, validator = protocol.serializer.dumps(value), protocol.record_validator
    record = DHTRecord(key.to_bytes(), protocol.serializer.dumps(subkey), packed, expires)
    if validator is not None:
        record = replace(record, value=validator.sign_value(record))
        if not validator.validate(record):
            return
    protocol.storage.store(key, record.value, expires, subkey=subkey)


async def replace_own_records(dht: DHT, node: DHTNode) -> None:
    """In the node's process: its stores outlast its earlier records. A look or a store notes which the others have."""
    own, find, store = OwnRecords(dht.public_key), node.protocol.call_find, node.store

    async def find_and_note(peer: PeerID, keys: Collection[DHTID]):
        answer = await find(peer, keys)
        for key, (found, _) in (answer or {}).items():
            own.note_found(key, found.value if found is not None else None)
        return answer

    newest: dict[DHTID, object] = {}
    """The store that began last, by the key: an earlier one that is still under way must not outlast it."""

    def note_own(place: DHTID) -> None:
        """Others may have given this node what it had stored before a restart."""
        kept = node.protocol.storage.get(place)
        own.note_found(place, kept.value if kept is not None else None)

    async def store_later_than_the_last(key, value, expiration_time: float, subkey=None, **kwargs) -> bool:
        place = DHTID.generate(source=key)
        newest[place] = this = object()
        for _ in range(MOST_STORES):
            note_own(place)
            expires = own.later_than_the_last(place, expiration_time)
            own.note(place, expires)
            stored = await store(key, value, expires, subkey=subkey, **kwargs)
            note_own(place)
            if newest.get(place) is not this:
                break
            if not stored:  # perhaps a busy node has an earlier record, and did not tell of it before the store
                await node.get(key, latest=True)
            # What hivemind returns is one node's answer, the last. If this node has met a record in the meantime that
            # expires later, one from before a restart, then that one hides the new one, whatever the answer was.
            if not own.has_one_after(place, expires):
                break
        if newest.get(place) is this:
            del newest[place]
        if subkey is not None and expires - get_dht_time() > LASTING_SECONDS:
            keep_copy(node, place, subkey, value, expires)
        return stored

    # hivemind's DHT makes the node itself and lets nobody choose its class.
    node.protocol.call_find, node.store = find_and_note, store_later_than_the_last
