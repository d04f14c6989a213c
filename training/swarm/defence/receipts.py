"""Signed statements of an all-reduce, so that a reducer cannot answer one value and later show another.

- A sender signs the digests and weights of all parts that it has sent to a reducer: its `Commitment`. The signature
  goes with the last part.
- A reducer signs the digests of its answers to a peer, and one digest over all senders' commitments: the `Receipt`. It
  goes with the last answer.

A peer with a receipt can ask the reducer for the commitments that it names, and the senders for a part, and compute
the average again (`auditing`). A statement names the averager, the group with all its members and the two peers, so it
proves nothing about another all-reduce. Peers sign with their identity's key, whose hash is their peer id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.engine.bounds import unpack
from training.swarm.engine.ids import digest_of
from training.swarm.node.identity import Signed
from training.swarm.peers.groups import UNVOUCHED_SHARE
from training.trust.proof import LARGEST_KEY_BYTES, LARGEST_PROOF_BYTES

DIGEST_BYTES = 32
_WEIGHT = struct.Struct("<d")


def digest_of_tensor(message: runtime_pb2.Tensor) -> bytes:
    """Digest of an encoded part."""
    return digest_of(f"{message.compression} {message.dtype} {list(message.size)}".encode(), message.buffer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Identity of one all-reduce, which each statement about it names."""

    prefix: str
    """Prefix of the averager: it names the run, the lineage, and either gradients or parameters."""
    group_id: bytes
    peers: tuple[PeerID, ...]
    """Members of the group, in its order."""
    unvouched: frozenset[PeerID] = frozenset()
    """Members without a voucher. A peer with another list signs another all-reduce, and cannot be convicted by it."""

    @property
    def digest(self) -> bytes:
        """Digest of the scope, with which each statement begins."""
        return _scope_digest(self.prefix, self.group_id, self.peers, self.unvouched)

    @property
    def shares(self) -> list[float]:
        """Share of each peer's weight that counts, in the group's order."""
        return [UNVOUCHED_SHARE if peer in self.unvouched else 1.0 for peer in self.peers]


@lru_cache(maxsize=64)
def _scope_digest(prefix: str, group_id: bytes, peers: tuple[PeerID, ...], unvouched: frozenset[PeerID]) -> bytes:
    standings = [b"open" if peer in unvouched else b"" for peer in peers] if unvouched else []
    return digest_of(prefix.encode(), group_id, *(peer.to_bytes() for peer in peers), *standings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commitment:
    """A sender's signed statement of the parts that it has sent to one reducer."""

    digests: tuple[bytes, ...]
    """Digests of the parts, in their order."""
    weights: tuple[float, ...]
    signed: Signed

    @staticmethod
    def statement(
        scope: Scope,
        *,
        sender: PeerID,
        reducer: PeerID,
        digests: Sequence[bytes],
        weights: Sequence[float],
    ) -> bytes:
        """Makes the bytes that the sender signs."""
        parts = digest_of(*digests, b"".join(map(_WEIGHT.pack, weights)))
        return digest_of(b"training-parts 2", scope.digest, sender.to_bytes(), reducer.to_bytes(), parts)

    def holds(self, scope: Scope, *, sender: PeerID, reducer: PeerID) -> bool:
        """Returns True if the sender has signed this commitment."""
        facts = {"digests": self.digests, "weights": self.weights}
        return self.signed.is_of(sender, self.statement(scope, sender=sender, reducer=reducer, **facts))

    def facts(self) -> list:
        """Returns the fields of the message that carries the commitment."""
        weights = b"".join(map(_WEIGHT.pack, self.weights))
        return [b"".join(self.digests), weights, self.signed.key, self.signed.signature]

    @classmethod
    def read(cls, facts: object) -> Commitment:
        """Reads a commitment from the fields of a message.

        Raises:
            ValueError: If it is malformed.
        """
        digests, weights, key, signature = _bytes_of(facts, 4)
        if len(digests) % DIGEST_BYTES or len(weights) != len(digests) // DIGEST_BYTES * _WEIGHT.size:
            raise ValueError("a commitment is of no whole number of parts")
        return cls(
            digests=tuple(digests[n : n + DIGEST_BYTES] for n in range(0, len(digests), DIGEST_BYTES)),
            weights=tuple(weight for (weight,) in _WEIGHT.iter_unpack(weights)),
            signed=Signed(key, signature),
        )


def digest_of_commitments(commitments: Iterable[Commitment]) -> bytes:
    """Digest of all senders' commitments, in the group's order."""
    return digest_of(*(piece for one in commitments for piece in one.facts()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """A reducer's signed statement of its answers to one peer, and of the commitments that it used."""

    commitments: bytes
    """Digest of all senders' commitments (`digest_of_commitments`); equal for all peers of the group."""
    answers: bytes
    """Digest of the digests of the answers (`digest_of`)."""
    signed: Signed

    @staticmethod
    def statement(scope: Scope, *, reducer: PeerID, receiver: PeerID, commitments: bytes, answers: bytes) -> bytes:
        """Makes the bytes that the reducer signs."""
        peers = (reducer.to_bytes(), receiver.to_bytes())
        return digest_of(b"training-answers 1", scope.digest, *peers, commitments, answers)

    def holds(self, scope: Scope, *, reducer: PeerID, receiver: PeerID) -> bool:
        """Returns True if the reducer has signed this receipt."""
        facts = {"commitments": self.commitments, "answers": self.answers}
        return self.signed.is_of(reducer, self.statement(scope, reducer=reducer, receiver=receiver, **facts))

    def facts(self) -> list:
        """Returns the fields of the message that carries the receipt."""
        return [self.commitments, self.answers, self.signed.key, self.signed.signature]

    @classmethod
    def read(cls, facts: object) -> Receipt:
        """Reads a receipt from the fields of a message.

        Raises:
            ValueError: If it is malformed.
        """
        commitments, answers, key, signature = _bytes_of(facts, 4)
        if len(commitments) != DIGEST_BYTES or len(answers) != DIGEST_BYTES:
            raise ValueError("a receipt has digests of other lengths")
        return cls(commitments=commitments, answers=answers, signed=Signed(key, signature))


def pack_signed(signed: Signed, *more: bytes) -> bytes:
    """Packs a signature, and more bytes that belong to it, into a field of a message."""
    return MSGPackSerializer.dumps([signed.key, signed.signature, *more])


def read_signed(packed: bytes, more: int = 0) -> tuple[Signed, list[bytes]]:
    """Reads the result of `pack_signed`.

    Raises:
        ValueError: If it is malformed.
    """
    if len(packed) > LARGEST_KEY_BYTES + LARGEST_PROOF_BYTES + 2 * DIGEST_BYTES + more * DIGEST_BYTES:
        raise ValueError("a signature is too long")
    key, signature, *rest = _bytes_of(unpack(packed), 2 + more)
    return Signed(key, signature), rest


def _bytes_of(facts: object, count: int) -> list[bytes]:
    if not isinstance(facts, list | tuple) or len(facts) != count or not all(type(one) is bytes for one in facts):
        raise ValueError("this is no statement")
    return list(facts)
