"""Limits of what a node stores for others: a limit for each key, so that readers accept the answer, and a total.

hivemind stores without limit. In an open run anybody can make keys to sign with. Hundreds of large records under one
key of the run make a node's answer larger than a reader accepts (`bounds.MOST_BYTES`): then a newcomer finds no peers.
So the largest records of a key are dropped for smaller records; those of a run are small. And when the total is
reached, the node drops all records of signers that have more than any peer of a run has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from hivemind.dht import DHTID
from hivemind.dht.storage import DHTLocalStorage
from hivemind.utils import ValueWithExpiration, get_dht_time

from training.swarm.engine.bounds import MOST_BYTES, KeepingNewest, Records

MOST_KEY_BYTES = MOST_BYTES * 7 // 8
"""Most bytes of all records under one key; with packing, an answer stays below the readers' limit."""
MOST_KEYS_OF_ONE = 64
"""Keys under which one signer has records; a peer of a run has about ten, and as many for each lineage."""
MOST_STORED_BYTES = 64 << 20
"""Most bytes of all records of a node. Beyond them, a new record replaces those of the signer that has the most."""
USUAL_BYTES_OF_ONE = 128 << 10
"""Most bytes of a run's peer: about ten records of 3 kB for each lineage. A signer with no more keeps its records."""
RECOUNT_SECONDS = 1.0
"""Seconds until the records of a full storage are counted again; new ones are refused until then."""
PACKING_BYTES = 24
"""Bytes that a record takes besides its subkey and its value."""


class Storage(DHTLocalStorage, KeepingNewest):
    """Storage of a node: records of other nodes, and copies of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._keys_of: defaultdict[bytes, dict[DHTID, float]] = defaultdict(dict)
        self._at_most = 0
        """Upper bound on the bytes of all records. Includes expired and replaced records until the next count."""
        self._at_most_under: Counter[DHTID] = Counter()
        """Upper bound on the bytes under each key, by key."""
        self._full_until = 0.0

    def get(self, key: DHTID) -> ValueWithExpiration | None:
        """Returns a copy of the records under a key.

        hivemind's search begins with these records, and adds the answers of other nodes to them. Without the copy, the
        search would store all answers here, uncounted.
        """
        found = super().get(key)
        return replace(found, value=found.value.copy()) if found and isinstance(found.value, Records) else found

    def store_subkey(self, key: DHTID, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Stores a record unless there is no room for it. Returns whether it is stored."""
        found = super().get(key)
        records = found.value if found is not None and isinstance(found.value, Records) else None
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
        records = Records() if records is None else records
        stored = records.store(subkey, value, expiration_time)
        self.store(key, records, records.latest_expiration_time)
        return stored

    def _may_have(self, subkey: bytes, key: DHTID) -> bool:
        """Returns True if a signer may have a record under one more key."""
        now, keys = get_dht_time(), self._keys_of[subkey]
        if key not in keys and len(keys) >= MOST_KEYS_OF_ONE:
            keys = self._keys_of[subkey] = {one: expires for one, expires in keys.items() if expires > now}
        if key not in keys and len(keys) >= MOST_KEYS_OF_ONE:
            return False
        if len(self._keys_of) > len(self) * MOST_KEYS_OF_ONE + 10_000:  # most of them have left
            alive = {one: known for one, known in self._keys_of.items() if any(at > now for at in known.values())}
            self._keys_of = defaultdict(dict, alive)
        return True

    def _begin(self, key: DHTID) -> None:
        """Begins the count of a key under which nothing is stored."""
        del self._at_most_under[key]
        if len(self._at_most_under) > 2 * len(self) + 1000:  # most keys have expired
            alive = {one: size for one, size in self._at_most_under.items() if one in self}
            self._at_most_under = Counter(alive)

    def _fits_key(self, key: DHTID, records: Records | None, subkey: bytes, size: int) -> bool:
        """Returns True if a record fits under its key, after dropping larger records of other signers if needed."""
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
        """Returns True if a signer may have more bytes, after dropping the records of larger signers if needed."""
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

    def _dictionaries(self) -> list[Records]:
        return [item.value for _, item in self.items() if isinstance(item.value, Records)]


def _sizes(records: Records) -> Iterator[tuple[bytes, int]]:
    for subkey, item in list(records.items()):
        yield subkey, _size(subkey, item.value)


def _size(subkey: bytes, value: bytes) -> int:
    return len(subkey) + len(value) + PACKING_BYTES
