"""Signed statements of an all-reduce, so that a reducer cannot answer one thing and later show another.

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
    """Prefix of the averager: it names the run, the lineage, and whether gradients or parameters are averaged."""
    group_id: bytes
    peers: tuple[PeerID, ...]
    """The group, in its order."""
    unvouched: frozenset[PeerID] = frozenset()
    """Members without a voucher. A peer that goes by another list signs another all-reduce, and is not convicted for
    it."""

    @property
    def digest(self) -> bytes:
        """Begins each statement."""
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
    """A sender's statement of what it has sent to one reducer."""

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
        """Bytes that the sender signs."""
        parts = digest_of(*digests, b"".join(map(_WEIGHT.pack, weights)))
        return digest_of(b"training-parts 2", scope.digest, sender.to_bytes(), reducer.to_bytes(), parts)

    def holds(self, scope: Scope, *, sender: PeerID, reducer: PeerID) -> bool:
        """Returns True if the sender has signed it."""
        facts = {"digests": self.digests, "weights": self.weights}
        return self.signed.is_of(sender, self.statement(scope, sender=sender, reducer=reducer, **facts))

    def facts(self) -> list:
        """Fields of the message that carries it."""
        weights = b"".join(map(_WEIGHT.pack, self.weights))
        return [b"".join(self.digests), weights, self.signed.key, self.signed.signature]

    @classmethod
    def read(cls, facts: object) -> Commitment:
        """
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
    """A reducer's statement of what it has answered to one peer, and from which parts."""

    commitments: bytes
    """`digest_of_commitments`; the same for all peers of the group."""
    answers: bytes
    """`digest_of` the digests of its answers."""
    signed: Signed

    @staticmethod
    def statement(scope: Scope, *, reducer: PeerID, receiver: PeerID, commitments: bytes, answers: bytes) -> bytes:
        """Bytes that the reducer signs."""
        peers = (reducer.to_bytes(), receiver.to_bytes())
        return digest_of(b"training-answers 1", scope.digest, *peers, commitments, answers)

    def holds(self, scope: Scope, *, reducer: PeerID, receiver: PeerID) -> bool:
        """Returns True if the reducer has signed it."""
        facts = {"commitments": self.commitments, "answers": self.answers}
        return self.signed.is_of(reducer, self.statement(scope, reducer=reducer, receiver=receiver, **facts))

    def facts(self) -> list:
        """Fields of the message that carries it."""
        return [self.commitments, self.answers, self.signed.key, self.signed.signature]

    @classmethod
    def read(cls, facts: object) -> Receipt:
        """
        Raises:
            ValueError: If it is malformed.
        """
        commitments, answers, key, signature = _bytes_of(facts, 4)
        if len(commitments) != DIGEST_BYTES or len(answers) != DIGEST_BYTES:
            raise ValueError("a receipt has digests of other lengths")
        return cls(commitments=commitments, answers=answers, signed=Signed(key, signature))


def pack_signed(signed: Signed, *more: bytes) -> bytes:
    """A signature, and what goes with it, in a field of a message."""
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
