"""A key in the DHT under which the peers of a lineage announce which samples of a shared pass are done or claimed."""

from __future__ import annotations

from contextlib import suppress

from hivemind.dht import DHT
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.utils import ValueWithExpiration, get_dht_time
from pydantic.v1 import BaseModel, confloat, conint, conlist, constr

from training.data.ranges import Ranges
from training.data.shared import MOST_CLAIMS, MOST_RANGES, Word
from training.swarm.dht import WORD_SECONDS
from training.swarm.identity import Identity, peer_id_of

LOOK_SECONDS, POST_SECONDS = 10.0, 3.0
"""Longest wait for an answer of the DHT, and for a word to be stored."""
_Number = conint(strict=True, ge=0, le=10**15)


class PassRecord(BaseModel):
    """A peer's word, as it is stored; see `training.data.shared.Word`."""

    order: constr(strict=True, regex=r"[0-9a-f]{16}\Z")
    """Digest of the order of its samples: numbers mean something in that one only."""
    done: conlist(_Number, max_items=2 * MOST_RANGES)
    """In turn how many samples are not done, and how many are."""
    claims: conlist(_Number, max_items=2 * MOST_CLAIMS)
    """Begin and end of each."""
    wishes: conlist(_Number, max_items=2 * MOST_CLAIMS)
    claimed_until: confloat(strict=True, ge=0, le=10**11)
    """By the time of the DHT."""


class _Records(BaseModel):
    """Schema of the key of a shared pass: `{prefix}_samples`."""

    samples: dict[BytesWithPublicKey, PassRecord]


def pass_validator(prefix: str) -> RecordValidatorBase:
    """Refuses what is no word under the key of a shared pass.

    Args:
        prefix: See `lineage.run_prefix`.
    """
    return SchemaValidator(_Records, prefix=prefix)


class PassBoard:
    """Announces this peer's words in the DHT, and reads those of the others; see `training.data.shared.Board`.

    Words stay for `WORD_SECONDS`, also if their peer is gone; so the others learn what it has done.

    Args:
        dht: A running node.
        identity: Signs this peer's words.
        prefix: Of the run; see `lineage.run_prefix`.
        order: Digest of the order of the samples; words of other orders are ignored.
    """

    def __init__(self, dht: DHT, identity: Identity, *, prefix: str, order: str):
        self._dht, self._prefix, self._order = dht, prefix, order
        self._subkey, self.peer = identity.signer().local_public_key, str(identity.peer_id)
        dht.add_validators([pass_validator(prefix)])

    def look(self) -> list[Word]:
        """The words of the other peers.

        Raises:
            TimeoutError: If the DHT does not answer.
        """
        found = self._dht.get(f"{self._prefix}_samples", latest=True, return_future=True).result(timeout=LOOK_SECONDS)
        entries = found.value if found is not None and isinstance(found.value, dict) else {}
        words = []
        for subkey, entry in entries.items():
            if subkey == self._subkey or not isinstance(entry, ValueWithExpiration):
                continue
            with suppress(ValueError, TypeError):  # a record that makes no sense hides no other
                record = PassRecord.parse_obj(entry.value)
                if record.order == self._order:
                    words.append(_word_of(record, str(peer_id_of(subkey))))
        return words

    def post(self, word: Word) -> None:
        """Stores this peer's word.

        Raises:
            TimeoutError: If that takes too long.
        """
        record = PassRecord(
            order=self._order,
            done=word.done.pack(MOST_RANGES),
            claims=[number for piece in word.claims[:MOST_CLAIMS] for number in piece],
            wishes=[number for piece in word.wishes[:MOST_CLAIMS] for number in piece],
            claimed_until=word.claimed_until,
        )
        self._dht.store(
            f"{self._prefix}_samples",
            subkey=self._subkey,
            value=record.dict(),
            expiration_time=get_dht_time() + WORD_SECONDS,
            return_future=True,
        ).result(timeout=POST_SECONDS)


def _word_of(record: PassRecord, peer: str) -> Word:
    """Raises ValueError if its numbers are no pieces."""
    return Word(
        peer=peer,
        done=Ranges.unpack(record.done),
        claims=_pieces(record.claims),
        wishes=_pieces(record.wishes),
        claimed_until=record.claimed_until,
    )


def _pieces(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    pieces = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    if any(begin >= end for begin, end in pieces):
        raise ValueError("a piece has a begin, and an end behind it")
    return pieces
