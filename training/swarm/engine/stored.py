"""How much a node stores for others: as much under each key as a look can read, and so much in all.

hivemind stores without end. In an open run anybody can make keys to sign with. Hundreds of large records under one key
of the run make the answer to a look larger than what a reader takes (`bounds.MOST_BYTES`): then a newcomer finds
nobody. So the largest records of a key make room for smaller ones, which the records of a run are; and when all room is
taken, whoever has more of it than any peer of a run gives it back.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from hivemind.dht import DHTID
from hivemind.dht.node import DHTNode
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.utils import TimedStorage, ValueWithExpiration, get_dht_time

from training.swarm.engine.bounds import MOST_BYTES
from training.swarm.engine.process import DHT

MOST_KEY_BYTES = MOST_BYTES * 7 // 8
"""Of all records under one key; with what packing adds, an answer stays below what readers take."""
MOST_KEYS_OF_ONE = 64
"""Keys under which one signer has records; a peer of a run has about ten, and as many for each lineage."""
MOST_STORED_BYTES = 64 << 20
"""Of all records. When it is full, a new one takes the place of those of the signer that has the most."""
USUAL_BYTES_OF_ONE = 128 << 10
"""No peer of a run has more: about ten records of 3 kB for each lineage. Whoever has no more gives nothing back."""
RECOUNT_SECONDS = 1.0
"""When all that is there is needed, the records are counted again after this, and new ones are refused until then."""
PACKING_BYTES = 24
"""That a record takes besides its subkey and its value."""
SPARE_ENTRIES = 64
"""A storage's list of when values expire may have so many more entries than twice its values."""


def keeping_newest(store: Callable[..., bool]) -> Callable[..., bool]:
    """In place of `TimedStorage.store`, which holds the records of a key, also those that a look brings.

    hivemind's refuses a value that is older than the one that is there, but lets the newer one expire when the older
    one would. So whoever repeated a peer's older record, which needs no key, would delete its newest. And it notes when
    a value expires at each store, and keeps all of these notes until then.
    """

    @functools.wraps(store)
    def store_if_newer(self: TimedStorage, key: object, value: object, expiration_time: float) -> bool:
        before = self.data.get(key)
        if before is not None and before.expiration_time >= expiration_time:
            return False
        stored = store(self, key, value, expiration_time)
        if len(self.expiration_heap) > 2 * len(self.data) + SPARE_ENTRIES:
            self.expiration_heap = list(self.key_to_heap.values())
            heapq.heapify(self.expiration_heap)
        return stored

    return store_if_newer


def adding_to_copies(add: Callable[..., None]) -> Callable[..., None]:
    """In place of `_SearchState.add_candidate`, which adds what each node answers to what a look has found so far.

    That begins with the records that this node stores itself: what others answer would be stored as well, however much
    it is, and none of it would be counted.
    """

    @functools.wraps(add)
    def add_to_copy(self: object, candidate: ValueWithExpiration | None, source_node_id: DHTID | None) -> None:
        if candidate is not None and isinstance(candidate.value, DictionaryDHTValue):
            candidate = replace(candidate, value=_copied(candidate.value))
        add(self, candidate, source_node_id)

    return add_to_copy


def _copied(found: DictionaryDHTValue) -> DictionaryDHTValue:
    with DictionaryDHTValue().freeze() as records:  # else each store would look for those that have expired
        for subkey, item in found.items():
            records.store(subkey, item.value, item.expiration_time)
    return records


class BoundedStore:
    """Takes the place of a storage's `store_subkey`.

    Args:
        storage: Of a node.
    """

    def __init__(self, storage: DHTLocalStorage):
        self._storage, self._store = storage, storage.store_subkey
        self._keys_of: defaultdict[bytes, dict[DHTID, float]] = defaultdict(dict)
        self._at_most = 0
        """Bytes of all records, those that have expired or were replaced too; counted anew when they are too many."""
        self._at_most_under: Counter[DHTID] = Counter()
        """The same of each key."""
        self._full_until = 0.0

    def __call__(self, key: DHTID, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Stores a record unless there is no room for it; whether it is stored."""
        found = self._storage.get(key)
        records = found.value if found is not None and isinstance(found.value, DictionaryDHTValue) else None
        before = records.get(subkey) if records is not None else None
        is_old = before is not None and before.expiration_time >= expiration_time
        if is_old or (before is None and not self._may_have(subkey, key)):
            return False
        size = _size(subkey, value)
        more = size - (_size(subkey, before.value) if before is not None else 0)
        if records is None:
            self._begin(key)
        if more > 0 and not (self._fits_key(key, records, subkey, size) and self._fits_in(subkey, more)):
            return False
        self._at_most += max(more, 0)
        self._at_most_under[key] += max(more, 0)
        self._keys_of[subkey][key] = expiration_time
        return self._store(key, subkey, value, expiration_time)

    def _may_have(self, subkey: bytes, key: DHTID) -> bool:
        """Whether a signer may have a record under one more key."""
        now, keys = get_dht_time(), self._keys_of[subkey]
        if key not in keys and len(keys) >= MOST_KEYS_OF_ONE:
            keys = self._keys_of[subkey] = {one: expires for one, expires in keys.items() if expires > now}
        if key not in keys and len(keys) >= MOST_KEYS_OF_ONE:
            return False
        if len(self._keys_of) > len(self._storage) * MOST_KEYS_OF_ONE + 10_000:  # most of them have left
            alive = {one: known for one, known in self._keys_of.items() if any(at > now for at in known.values())}
            self._keys_of = defaultdict(dict, alive)
        return True

    def _begin(self, key: DHTID) -> None:
        """Nothing is stored under a key yet, or any more."""
        del self._at_most_under[key]
        if len(self._at_most_under) > 2 * len(self._storage) + 1000:  # most keys have expired
            alive = {one: size for one, size in self._at_most_under.items() if one in self._storage}
            self._at_most_under = Counter(alive)

    def _fits_key(self, key: DHTID, records: DictionaryDHTValue | None, subkey: bytes, size: int) -> bool:
        """Whether a record of so many bytes fits in under its key; larger ones of others make room for it."""
        if records is None or self._at_most_under[key] + size <= MOST_KEY_BYTES:
            return size <= MOST_KEY_BYTES
        others = dict(_sizes(records))
        own = others.pop(subkey, 0)
        left = sum(others.values())
        while left + size > MOST_KEY_BYTES:
            largest = max(others, key=others.get, default=None)
            if largest is None or others[largest] <= size:
                return False
            del records[largest]
            left -= others.pop(largest)
        self._at_most_under[key] = left + own
        return True

    def _fits_in(self, subkey: bytes, more: int) -> bool:
        """Whether a signer may have so many bytes more; all records of signers that have many make room for them."""
        if self._at_most + more <= MOST_STORED_BYTES:
            return True
        if (now := get_dht_time()) < self._full_until:
            return False
        held = Counter()
        for records in self._dictionaries():
            held.update(dict(_sizes(records)))
        self._at_most = held.total()
        while self._at_most + more > MOST_STORED_BYTES:
            largest = max(held, key=held.get)
            if held[largest] <= max(held[subkey] + more, USUAL_BYTES_OF_ONE):
                self._full_until = now + RECOUNT_SECONDS
                return False
            self._drop(largest)
            self._at_most -= held.pop(largest)
        return True

    def _drop(self, subkey: bytes) -> None:
        for records in self._dictionaries():
            if subkey in records:
                del records[subkey]
        self._keys_of.pop(subkey, None)

    def _dictionaries(self) -> list[DictionaryDHTValue]:
        return [item.value for _, item in self._storage.items() if isinstance(item.value, DictionaryDHTValue)]


def _sizes(records: DictionaryDHTValue) -> Iterator[tuple[bytes, int]]:
    for subkey, item in list(records.items()):
        yield subkey, _size(subkey, item.value)


def _size(subkey: bytes, value: bytes) -> int:
    return len(subkey) + len(value) + PACKING_BYTES


async def bound_what_is_stored(_dht: DHT, node: DHTNode) -> None:
    """In the node's process: it stores no more than the above."""
    # hivemind's DHT makes the node itself and lets nobody choose its class.
    for storage in (node.protocol.storage, node.protocol.cache):
        storage.store_subkey = BoundedStore(storage)
