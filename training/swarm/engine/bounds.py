"""Bounds of what a node accepts from others: the depth of messages, and the shape of records.

Anybody who knows the address of a node may call it. hivemind 1.1.12 unpacks a message of any depth before it checks
anything else: 1.4 kB of tuples within tuples end the process with a segmentation fault. It stores any value under any
key, for any time. So this program reads messages by `unpack`, and each node has the validators of `record_bounds`.
"""

from __future__ import annotations

import heapq
import re
import threading

import msgpack
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer, TimedStorage, get_dht_time

from training.swarm.engine.ids import peer_id_of

MOST_DEPTH = 6
"""Most levels of packed objects within packed objects; the messages of this program have 3 at most."""
MOST_NESTED = 4
"""Most levels of lists and dictionaries in a message between a peer's processes; this program's have 3 at most."""
MOST_BYTES = 4 << 20
"""Largest packed object, in bytes. The largest that this program sends are the records of all peers under one key, and
the description of a state's tensors."""
MOST_RECORD_BYTES = 8192
"""Largest record with its signature, in bytes; a peer's metrics with its recent epochs take 3000."""
MOST_RECORD_SECONDS = 3600.0
"""Longest time that a record may be valid: three times as long as any record of this program."""
SPARE_ENTRIES = 64
"""Entries that a storage's list of expirations may have beyond twice the number of its values."""
TUPLE, DICTIONARY = 0x40, 0x50
"""hivemind's extension types of msgpack: a tuple, and the records under one key of the DHT."""
_OWNER = re.compile(rb"\[owner:ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB[A-Za-z0-9+/]{336,776}={0,2}\]")
"""Subkey of a record: an RSA key of 2048 bits or more with the exponent 65537, which all programs use. Hundreds of
shorter keys can be made in a second; a signature by a key with a large exponent takes milliseconds to verify."""
_depth = threading.local()


class KeepingNewest(TimedStorage):
    """A storage in which a newer value stays as long as it is valid.

    hivemind's storage refuses a value that is older than the stored one, but lets the newer value expire when the older
    one would. So anybody who repeated a peer's older record, which needs no key, would delete its newest record. And at
    each store it notes when the value expires, and keeps all of these notes until then.
    """

    def store(self, key: object, value: object, expiration_time: float) -> bool:
        """Stores a value unless a newer one is there. Returns whether it is stored."""
        before = self.data.get(key)
        if before is not None and before.expiration_time >= expiration_time:
            return False
        stored = super().store(key, value, expiration_time)
        if len(self.expiration_heap) > 2 * len(self.data) + SPARE_ENTRIES:
            self.expiration_heap = list(self.key_to_heap.values())
            heapq.heapify(self.expiration_heap)
        return stored


class Records(DictionaryDHTValue, KeepingNewest):
    """The records under one key of the DHT, by their subkeys."""

    def copy(self) -> Records:
        """Returns a copy that is independent of these records."""
        copied = Records()
        copied.data, copied.key_to_heap = dict(self.data), dict(self.key_to_heap)
        copied.expiration_heap, copied.latest_expiration_time = list(self.expiration_heap), self.latest_expiration_time
        return copied


class Serializer(MSGPackSerializer):
    """Packs as hivemind does, and unpacks within bounds."""

    loads = staticmethod(lambda packed: unpack(packed))

    @classmethod
    def dumps(cls, value: object) -> bytes:
        """Packs a value to bytes."""
        if isinstance(value, Records):  # hivemind's serializer accepts only hivemind's own class of records
            plain = DictionaryDHTValue()
            plain.__dict__.update(vars(value))
            value = plain
        return super().dumps(value)


def unpack(packed: bytes) -> object:
    """Unpacks what hivemind has packed with msgpack.

    Raises:
        ValueError: If it is malformed, too large or nested too deeply, or has objects of an unknown type.
    """
    depth = getattr(_depth, "now", 0)
    if len(packed) > MOST_BYTES:
        raise ValueError(f"a packed object has {len(packed)} bytes, more than {MOST_BYTES}")
    if depth >= MOST_DEPTH:
        raise ValueError(f"packed objects are nested more than {MOST_DEPTH} deep")
    _depth.now = depth + 1
    try:
        return msgpack.unpackb(packed, ext_hook=_unpack_extension, raw=False)
    except Exception as error:  # unpacking raises errors of many kinds, such as that of a list as a dictionary's key
        raise ValueError(f"a packed object is malformed: {str(error) or type(error).__name__}") from None
    finally:
        _depth.now = depth


def _unpack_extension(code: int, packed: bytes) -> object:
    if code == TUPLE:
        return tuple(unpack(packed))
    if code == DICTIONARY:
        return _unpack_dictionary(packed)
    raise ValueError(f"a packed object has the unknown type {code:#x}")


def _unpack_dictionary(packed: bytes) -> Records:
    """Unpacks as `DictionaryDHTValue.unpackb` does, with any number of records; it expires with the last of them.

    A search compares the sender's numbers with those of other nodes. If one is not a number, the search fails, and its
    caller waits for ever.
    """
    _, _, items = unpack(packed)
    with Records().freeze() as records:  # otherwise expired records would be dropped
        for subkey, value, item_expires in items:
            if not isinstance(subkey, bytes):  # it could not be compared with those of others that expire with it
                raise ValueError("records of one key are told apart by bytes")
            records.store(subkey, value, item_expires)
    return records


def is_plain(value: object, depth: int = MOST_NESTED) -> bool:
    """Returns True for values that msgpack itself knows, in lists and dictionaries nested at most `depth` deep.

    Deeper values can be unpacked but not pickled: a process that waits for one would wait for ever.

    >>> is_plain([7, False, {"a": None}], 2), is_plain([[[]]], 2)
    (True, False)
    """
    if isinstance(value, list | tuple | dict):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return depth > 0 and all(is_plain(one, depth - 1) for one in inner)
    return value is None or isinstance(value, bool | int | float | str | bytes)


def record_bounds(*, most_bytes: int = MOST_RECORD_BYTES) -> list[RecordValidatorBase]:
    """Returns validators that refuse every record whose shape is not that of one of this program's records.

    A record lies in a dictionary, under its signer's public key alone, so that no signer has two.
    """
    return [_Place(most_bytes), _Contents()]


class _Place(RecordValidatorBase):
    """Checks a record before its signature is verified; signatures have priority 10."""

    priority = 20

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes

    def validate(self, record: DHTRecord) -> bool:
        if len(record.value) > self._most_bytes or len(record.subkey) > MOST_RECORD_BYTES:
            return False
        if not record.expiration_time - get_dht_time() <= MOST_RECORD_SECONDS:  # also refuses what is not a number
            return False
        try:
            place = unpack(record.subkey)
        except ValueError:
            return False
        # A node reads key and subkey from the received bytes, and passes them on as hivemind writes them. If the two
        # forms differ, the signature is valid here and at no other node, and no schema knows the key.
        if len(record.key) != DHTID.HASH_NBYTES or MSGPackSerializer.dumps(place) != record.subkey:
            return False
        # hivemind's check of signatures raises an error if the key is not valid, which would hide all records of a key.
        return isinstance(place, bytes) and bool(_OWNER.fullmatch(place)) and peer_id_of(place) is not None


class _Contents(RecordValidatorBase):
    """Checks a record after its signature was verified and removed, and before the schemas."""

    priority = 5

    def validate(self, record: DHTRecord) -> bool:
        try:
            return is_plain(unpack(record.value))
        except ValueError:
            return False
