"""Transcript of one all-reduce: digests of the parts and answers that this peer has sent and received, and signatures.

Each message passes through the transcript. Afterwards it holds what this peer and others need to check a reducer: the
parts as they were sent. Small messages are kept for a while; large ones are made again from the tensors, until these
change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from torch import Tensor

from training.swarm.defence.receipts import (
    Commitment,
    Receipt,
    Scope,
    digest_of_commitments,
    digest_of_tensor,
    pack_signed,
    read_signed,
)
from training.swarm.engine.codecs import encode
from training.swarm.engine.ids import digest_of
from training.swarm.node.identity import Signer
from training.swarm.peers.groups import AllReduceError, Misconduct

KEPT_BYTES = 16 << 20
"""Largest size of the tensors whose messages are kept, and of the kept messages of the last all-reduces together."""
LEAST_CHECKED_BYTES = 1 << 16
"""Bytes that a peer's checks of an all-reduce may always take, whatever their share: a twentieth of a second at 10
Mbit/s. A small model has few parts. With the share alone, liars among 25 peers spoiled up to 27 averages before they
were named (`benchmarks/attacks/attacks.py byzantine`)."""
DTYPE = "float32"
"""Type of all parts, whatever their codec. Versions of libraries differ in the other types that they read: an honest
message of one peer would look like a lie to another."""

Data = averaging_pb2.AveragingData


class FalseSignatureError(Misconduct):
    """A groupmate has signed other messages than it has sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Plan of the checks of an all-reduce."""

    prefix: str
    """Prefix of the averager."""
    signer: Signer
    share: float
    """Share of the exchanged bytes that checks may take."""
    suspects: frozenset[PeerID] = frozenset()
    """Reducers of which one part each is certainly checked."""

    def chance(self, peers: int, values: int) -> float:
        """Chance with which this peer checks each part that another peer averages.

        A check takes a part of each other peer: the reducer's own in 32 bits, those of the n - 2 others as they were
        sent, in 8. A group of n exchanges each value 2 (n - 1) times, once to its reducer and once back from there; if
        each peer checks each part with the chance q, checks add q (n - 1) (n - 2 + 4) times.

        Args:
            peers: n, the number of peers in the group.
            values: Number of values in all tensors.
        """
        if peers < 2 or not values or not self.share:
            return 0.0
        all_bytes = values * (peers + 2) * (peers - 1) / peers
        return min(1.0, max(2 * self.share / (peers + 2), LEAST_CHECKED_BYTES / all_bytes))


@dataclass(slots=True, eq=False)
class PeerTranscript:
    """Messages between this peer and another peer of the group, or this peer itself."""

    parts: list[Tensor]
    """This peer's parts that the other peer averages; views of its tensors."""
    digests: list[bytes] = field(default_factory=list)
    """Digests of these parts, as they were sent."""
    weights: list[float] = field(default_factory=list)
    codecs: list[int] = field(default_factory=list)
    messages: list[runtime_pb2.Tensor] = field(default_factory=list)
    """These parts as they were sent, if they are kept."""
    commitment: Commitment | None = None
    """This peer's commitment to these parts."""
    answers: list[bytes] = field(default_factory=list)
    """Digests of the other peer's answers."""
    kept: dict[int, runtime_pb2.Tensor] = field(default_factory=dict)
    """The answers that this peer will check, by the number of the part."""
    receipt: Receipt | None = None
    """Receipt for these answers."""
    taken: Commitment | None = None
    """The other peer's commitment to the parts that it has sent to this one."""
    given: list[bytes] = field(default_factory=list)
    """Digests of this peer's answers to the parts of `taken`."""
    asked: int = 0
    """Number of parts that the other peer has asked for, to check a reducer."""
    evaded: bool = False
    """True if the other peer has made a check of this all-reduce impossible."""
    convicted: bool = False
    """True if this peer can prove that the other peer has lied."""


class Transcript:
    """Messages of one all-reduce; needs a running event loop.

    Args:
        plan: Plan of its checks.
        group_id: Id of the group.
        own: Id of this peer.
        parts: This peer's parts, as pieces of the tensors, by their reducers in the group's order.
        unvouched: Members without a voucher; see `Scope`.
        on_finished: Called when this peer has all answers.
    """

    def __init__(
        self,
        plan: Plan,
        group_id: bytes,
        own: PeerID,
        parts: Mapping[PeerID, Sequence[Tensor]],
        unvouched: frozenset[PeerID] = frozenset(),
        *,
        on_finished: Callable[[Transcript], Awaitable[None]] | None = None,
    ):
        self._on_finished = on_finished
        self.scope = Scope(prefix=plan.prefix, group_id=group_id, peers=tuple(parts), unvouched=unvouched)
        self.own, self._signer = own, plan.signer
        self.peers = {peer: PeerTranscript(list(ones)) for peer, ones in parts.items()}
        """Messages exchanged with each peer, in the group's order."""
        lengths = [part.numel() for ones in parts.values() for part in ones]
        self.most_values = max(lengths, default=0)
        """Number of values in the longest part."""
        self.can_keep = sum(part.nbytes for ones in parts.values() for part in ones) <= KEPT_BYTES
        """True if the parts are small enough to be kept until after the tensors have changed."""
        self.kept_bytes = 0
        """Bytes of the kept messages together."""
        chance = plan.chance(len(parts), sum(lengths))
        self.chosen = self._choose(plan, chance)
        """Parts that this peer will check, as reducers and numbers of their parts. No other peer knows them."""
        self.most_asked = 4 + len(parts) // 2 + 4 * int(chance * len(lengths))
        """Most parts that this peer shows to one other peer. Half of a group may be suspected."""

    def _choose(self, plan: Plan, chance: float) -> frozenset[tuple[PeerID, int]]:
        dice, chosen = random.SystemRandom(), set()
        for peer, one in self.peers.items():
            if peer != self.own and one.parts:
                chosen |= {(peer, part) for part in range(len(one.parts)) if dice.random() < chance}
                if peer in plan.suspects:
                    chosen.add((peer, dice.randrange(len(one.parts))))
        return frozenset(chosen)

    # -- as a sender -------------------------------------------------------------------------------------------------

    async def sending(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Yields the parts for a reducer; the last one gets the signature of all."""
        async for message in messages:
            await self.note_sent(reducer, message.tensor_part, message.weight)
            if (commitment := self.peers[reducer].commitment) is not None:
                message.peer_id = pack_signed(commitment.signed)
            yield message

    async def note_sent(self, reducer: PeerID, part: runtime_pb2.Tensor, weight: float) -> None:
        """Notes that this peer sends a part to a reducer, which may be this peer itself."""
        sent = self.peers[reducer]
        sent.digests.append(digest_of_tensor(part))
        sent.weights.append(weight)
        sent.codecs.append(part.compression)
        if self.can_keep:
            sent.messages.append(part)
            self.kept_bytes += len(part.buffer)
        if len(sent.digests) == len(sent.parts):
            parts = {"digests": tuple(sent.digests), "weights": tuple(sent.weights)}
            statement = Commitment.statement(self.scope, sender=self.own, reducer=reducer, **parts)
            signed = await asyncio.to_thread(self._signer.signed, statement)
            sent.commitment = Commitment(**parts, signed=signed)
            if reducer == self.own:
                sent.taken = sent.commitment

    async def answered(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Yields a reducer's answers, and checks the receipt in the last one.

        Raises:
            FalseSignatureError: If the receipt does not fit these answers.
            AllReduceError: If there is no receipt.
        """
        one = self.peers[reducer]
        async for message in messages:
            number = len(one.answers)
            if message.code == averaging_pb2.AVERAGED_PART and number < len(one.parts):
                if (reducer, number) in self.chosen:
                    one.kept[number] = message.tensor_part
                one.answers.append(digest_of_tensor(message.tensor_part))
                if len(one.answers) == len(one.parts):
                    one.receipt = self._receipt(reducer, message.peer_id)
            yield message

    def _receipt(self, reducer: PeerID, packed: bytes) -> Receipt:
        if not packed:
            raise AllReduceError(f"{reducer} has signed no receipt")
        try:
            signed, (commitments,) = read_signed(packed, more=1)
        except ValueError:
            raise FalseSignatureError(f"{reducer} has sent a malformed receipt") from None
        receipt = Receipt(commitments=commitments, answers=digest_of(*self.peers[reducer].answers), signed=signed)
        if not receipt.holds(self.scope, reducer=reducer, receiver=self.own):
            raise FalseSignatureError(f"{reducer} has signed other answers than it sent")
        return receipt

    # -- as a reducer ------------------------------------------------------------------------------------------------

    async def taking(self, sender: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Yields a sender's parts, and checks the signature in the last one.

        Raises:
            FalseSignatureError: If the signature is not valid for these parts.
            ValueError: If a part has another type than `DTYPE`, which all peers can read.
        """
        digests, weights = [], []
        async for message in messages:
            if message.tensor_part.dtype != DTYPE:
                raise ValueError(f"{sender} has sent numbers of another type than {DTYPE}")
            digests.append(digest_of_tensor(message.tensor_part))
            weights.append(message.weight)
            if len(digests) == len(self.peers[self.own].parts):
                self.peers[sender].taken = self._commitment(sender, digests, weights, message.peer_id)
            yield message

    def _commitment(
        self, sender: PeerID, digests: Sequence[bytes], weights: Sequence[float], packed: bytes
    ) -> Commitment:
        try:
            signed, _ = read_signed(packed)
        except ValueError:
            raise FalseSignatureError(f"{sender} has not signed its parts") from None
        commitment = Commitment(digests=tuple(digests), weights=tuple(weights), signed=signed)
        if not commitment.holds(self.scope, sender=sender, reducer=self.own):
            raise FalseSignatureError(f"{sender} has signed other parts than it sent")
        return commitment

    async def answering(self, receiver: PeerID, message: Data) -> None:
        """Notes an answer that this peer sends. The last one gets the receipt; by then all senders have signed their
        parts."""
        given = self.peers[receiver].given
        given.append(digest_of_tensor(message.tensor_part))
        if len(given) < len(self.peers[self.own].parts) or (commitments := self.commitments) is None:
            return
        facts = {"commitments": digest_of_commitments(commitments), "answers": digest_of(*given)}
        statement = Receipt.statement(self.scope, reducer=self.own, receiver=receiver, **facts)
        signed = await asyncio.to_thread(self._signer.signed, statement)
        message.peer_id = pack_signed(signed, facts["commitments"])

    @property
    def commitments(self) -> tuple[Commitment, ...] | None:
        """Commitments of all senders to this peer, in the group's order; None if one is missing."""
        found = tuple(one.taken for one in self.peers.values() if one.taken is not None)
        return found if len(found) == len(self.peers) else None

    # -- afterwards --------------------------------------------------------------------------------------------------

    def part(self, reducer: PeerID, number: int) -> runtime_pb2.Tensor | None:
        """Returns a part of this peer as the reducer got it; None if its message is gone and the tensors have
        changed."""
        sent = self.peers.get(reducer)
        if sent is None or not 0 <= number < len(sent.digests):
            return None
        if self.can_keep:
            return sent.messages[number] if sent.messages else None
        message = encode(sent.parts[number], sent.codecs[number])
        return message if digest_of_tensor(message) == sent.digests[number] else None

    async def finished(self) -> None:
        """Called when this peer has all answers; see `AllReduceGuard`."""
        if self._on_finished is not None:
            await self._on_finished(self)

    def drop_messages(self) -> None:
        """Drops the messages; from now on no part can be shown."""
        self.kept_bytes = 0
        for one in self.peers.values():
            one.messages.clear()
