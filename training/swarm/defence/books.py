"""What this peer has sent, taken and answered in one all-reduce: digests of all, and signatures (`receipts`).

`allreduce` passes each message through the books. Afterwards they give what others need to check a reducer of this
all-reduce, and what this peer needs for its own checks: the parts as they were sent. The messages are kept for some
seconds if they are small. Else they are made again from the tensors, until these change.
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
"""Messages are kept if the tensors take no more, nor the messages of the last all-reduces. They can be shown for
so many seconds after the tensors have changed, longer than a busy peer takes for a check."""
KEPT_SECONDS = 60.0
LEAST_CHECKED_BYTES = 1 << 16
"""A peer's checks of an all-reduce may take so many bytes, also if that is a larger share: a twentieth of a second at
10 Mbit/s. A small model has few parts. With the share alone, liars among 25 peers spoiled up to 27 averages before they
were named (`benchmarks/attacks/attacks.py byzantine`)."""
DTYPE = "float32"
"""Of all parts, whatever their codec. Which other types can be read depends on the versions of libraries: what one peer
reads and averages would look like a lie to another one."""
THREAD_BYTES = 1 << 17
"""Hashing so much takes some tenths of a millisecond."""

Data = averaging_pb2.AveragingData


class FalseSignatureError(Misconduct):
    """A groupmate has signed something else than it sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How an all-reduce is checked."""

    prefix: str
    """Of the averager."""
    signer: Signer
    share: float
    """Of the bytes that a group exchanges: what its checks may take."""
    suspects: frozenset[PeerID] = frozenset()
    """Reducers of which one part is surely checked."""

    def chance(self, peers: int, values: int) -> float:
        """With which each part is checked that this peer does not average itself.

        A check takes a part of each other peer: the reducer's own in 32 bits, those of the n - 2 others as they have
        travelled, in 8. A group of n exchanges each value 2 (n - 1) times, once to its reducer and once back from
        there; if each peer checks each part with the chance q, checks add q (n - 1) (n - 2 + 4) times.

        Args:
            peers: n.
            values: Of all tensors.
        """
        if peers < 2 or not values or not self.share:
            return 0.0
        all_bytes = values * (peers + 2) * (peers - 1) / peers
        return min(1.0, max(2 * self.share / (peers + 2), LEAST_CHECKED_BYTES / all_bytes))


@dataclass
class _Sent:
    """What went to one reducer."""

    digests: list[bytes] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    codecs: list[int] = field(default_factory=list)
    messages: list[runtime_pb2.Tensor] = field(default_factory=list)
    """The parts as they travelled, if they are kept."""


class Books:
    """Of one all-reduce; needs a running event loop.

    Args:
        plan: How it is checked.
        group_id: Of the group.
        own: This peer.
        parts: This peer's own parts, for each reducer, as pieces of the tensors; by the peers in the group's order.
        unvouched: See `Scope`.
        on_finished: Called when this peer has all answers.
        on_closed: Called before the tensors change.
    """

    def __init__(
        self,
        plan: Plan,
        group_id: bytes,
        own: PeerID,
        parts: Mapping[PeerID, Sequence[Tensor]],
        unvouched: frozenset[PeerID] = frozenset(),
        *,
        on_finished: Callable[[Books], Awaitable[None]] | None = None,
        on_closed: Callable[[Books], None] | None = None,
    ):
        self._on_finished, self._on_closed = on_finished, on_closed
        self.scope = Scope(prefix=plan.prefix, group_id=group_id, peers=tuple(parts), unvouched=unvouched)
        self.own, self._signer, self._parts = own, plan.signer, {peer: list(ones) for peer, ones in parts.items()}
        self.part_counts = {peer: len(ones) for peer, ones in parts.items()}
        self._lengths = {peer: [part.numel() for part in ones] for peer, ones in parts.items()}
        self.most_values = max((part.numel() for ones in parts.values() for part in ones), default=0)
        """Of the longest part."""
        self.can_keep = sum(part.nbytes for ones in parts.values() for part in ones) <= KEPT_BYTES
        """Whether the parts are small enough to be shown after the tensors have changed."""
        self.kept_bytes = 0
        """Of the messages that are kept."""
        chance, counts = plan.chance(len(parts), sum(map(sum, self._lengths.values()))), self.part_counts.values()
        self.chosen = self._choose(plan, chance)
        """Parts that this peer will check: reducers, each with the number of a part. Nobody else knows them."""
        self.most_asked = 4 + len(parts) // 2 + 4 * int(chance * sum(counts))
        """So many parts at most this peer shows each other one. Half of a group may be suspected."""
        self.kept: dict[tuple[PeerID, int], runtime_pb2.Tensor] = {}
        """The answers that it will check."""
        self.receipts: dict[PeerID, Receipt] = {}
        """Of reducers."""
        self.answers: dict[PeerID, list[bytes]] = {peer: [] for peer in parts}
        """Digests of what they have answered."""
        self._sent = {peer: _Sent() for peer in parts}
        self._own_commitments: dict[PeerID, Commitment] = {}
        self._taken: dict[PeerID, Commitment] = {}
        self._given: dict[PeerID, list[bytes]] = {peer: [] for peer in parts}

    def _choose(self, plan: Plan, chance: float) -> frozenset[tuple[PeerID, int]]:
        dice = random.SystemRandom()
        chosen = set()
        for peer, count in self.part_counts.items():
            if peer != self.own and count:
                chosen |= {(peer, part) for part in range(count) if dice.random() < chance}
                if peer in plan.suspects:
                    chosen.add((peer, dice.randrange(count)))
        return frozenset(chosen)

    def values_of(self, reducer: PeerID, number: int) -> int:
        """How long a part is; 0 if there is none."""
        lengths = self._lengths[reducer]
        return lengths[number] if 0 <= number < len(lengths) else 0

    # -- as a sender -------------------------------------------------------------------------------------------------

    async def sending(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Parts on their way to a reducer; the last one gets the signature of all."""
        async for message in messages:
            await self.note_sent(reducer, message.tensor_part, message.weight)
            if reducer in self._own_commitments:
                message.peer_id = pack_signed(self._own_commitments[reducer].signed)
            yield message

    async def note_sent(self, reducer: PeerID, part: runtime_pb2.Tensor, weight: float) -> None:
        """A part goes to a reducer, which may be this peer itself."""
        sent = self._sent[reducer]
        sent.digests.append(await _digest(part))
        sent.weights.append(weight)
        sent.codecs.append(part.compression)
        if self.can_keep:
            sent.messages.append(part)
            self.kept_bytes += len(part.buffer)
        if len(sent.digests) == self.part_counts[reducer]:
            parts = {"digests": tuple(sent.digests), "weights": tuple(sent.weights)}
            statement = Commitment.statement(self.scope, sender=self.own, reducer=reducer, **parts)
            signed = await _in_thread(self._signer.signed, statement)
            self._own_commitments[reducer] = Commitment(**parts, signed=signed)
            if reducer == self.own:
                self._taken[self.own] = self._own_commitments[reducer]

    async def answered(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """A reducer's answers; the last one has its receipt.

        Raises:
            FalseSignatureError: If the receipt is none for these answers.
            AllReduceError: If there is none.
        """
        digests = self.answers[reducer]
        async for message in messages:
            if message.code == averaging_pb2.AVERAGED_PART and len(digests) < self.part_counts[reducer]:
                if (reducer, len(digests)) in self.chosen:
                    self.kept[reducer, len(digests)] = message.tensor_part
                digests.append(await _digest(message.tensor_part))
                if len(digests) == self.part_counts[reducer]:
                    self.receipts[reducer] = self._receipt(reducer, message.peer_id)
            yield message

    def _receipt(self, reducer: PeerID, packed: bytes) -> Receipt:
        if not packed:
            raise AllReduceError(f"{reducer} has signed no receipt")
        try:
            signed, (commitments,) = read_signed(packed, more=1)
        except ValueError:
            raise FalseSignatureError(f"{reducer} has sent a malformed receipt") from None
        receipt = Receipt(commitments=commitments, answers=digest_of(*self.answers[reducer]), signed=signed)
        if not receipt.holds(self.scope, reducer=reducer, receiver=self.own):
            raise FalseSignatureError(f"{reducer} has signed other answers than it sent")
        return receipt

    # -- as a reducer ------------------------------------------------------------------------------------------------

    async def taking(self, sender: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """A sender's parts; the last one has the signature of all.

        Raises:
            FalseSignatureError: If that is none.
            ValueError: If a part is of other numbers than all peers can read.
        """
        digests, weights = [], []
        async for message in messages:
            if message.tensor_part.dtype != DTYPE:
                raise ValueError(f"{sender} has sent numbers of another type than {DTYPE}")
            digests.append(await _digest(message.tensor_part))
            weights.append(message.weight)
            if len(digests) == self.part_counts[self.own]:
                self._taken[sender] = self._commitment(sender, digests, weights, message.peer_id)
            yield message

    def _commitment(
        self, sender: PeerID, digests: Sequence[bytes], weights: Sequence[float], packed: bytes
    ) -> Commitment:
        try:
            signed, _ = read_signed(packed)
        except ValueError:
            raise FalseSignatureError(f"{sender} has not signed its parts") from None
        parts = {"digests": tuple(digests), "weights": tuple(weights)}
        commitment = Commitment(**parts, signed=signed)
        if not commitment.holds(self.scope, sender=sender, reducer=self.own):
            raise FalseSignatureError(f"{sender} has signed other parts than it sent")
        return commitment

    def lost(self, sender: PeerID) -> None:
        """A sender is lost, or has sent what nobody can read: what it has signed is part of no receipt."""
        self._taken.pop(sender, None)

    async def answering(self, receiver: PeerID, message: Data) -> None:
        """An answer leaves; the last one gets the receipt, unless a sender was lost: the group repeats it all then."""
        given = self._given[receiver]
        given.append(await _digest(message.tensor_part))
        if len(given) < self.part_counts[self.own] or (commitments := self.commitments) is None:
            return
        words = {"commitments": digest_of_commitments(commitments), "answers": digest_of(*given)}
        statement = Receipt.statement(self.scope, reducer=self.own, receiver=receiver, **words)
        message.peer_id = pack_signed(await _in_thread(self._signer.signed, statement), words["commitments"])

    @property
    def commitments(self) -> tuple[Commitment, ...] | None:
        """Of all senders to this peer, in the group's order; None if one is missing."""
        found = tuple(self._taken[peer] for peer in self.scope.peers if peer in self._taken)
        return found if len(found) == len(self.scope.peers) else None

    # -- afterwards --------------------------------------------------------------------------------------------------

    def part(self, reducer: PeerID, number: int) -> runtime_pb2.Tensor | None:
        """One of this peer's parts as the reducer got it; None if it is no longer there."""
        sent = self._sent.get(reducer)
        if sent is None or not 0 <= number < len(sent.digests):
            return None
        if number < len(sent.messages):
            return sent.messages[number]
        parts = self._parts.get(reducer, [])
        if number >= len(parts):
            return None
        message = encode(parts[number], sent.codecs[number])
        return message if digest_of_tensor(message) == sent.digests[number] else None

    async def finished(self) -> None:
        """See `AllReduceGuard`."""
        if self._on_finished is not None:
            await self._on_finished(self)

    def closed(self) -> None:
        """See `AllReduceGuard`."""
        if self._on_closed is not None:
            self._on_closed(self)

    def close(self) -> None:
        """The tensors are about to change; messages that were kept are there for a while."""
        self._parts = {}
        if self.can_keep:
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self.drop_parts)
        else:
            self.drop_parts()

    def drop_parts(self) -> None:
        """From now on no part is shown."""
        self._parts, self.kept_bytes = {}, 0
        for sent in self._sent.values():
            sent.messages.clear()


async def _digest(part: runtime_pb2.Tensor) -> bytes:
    """`digest_of_tensor`, in a thread if it takes longer than to ask one."""
    if len(part.buffer) < THREAD_BYTES:
        return digest_of_tensor(part)
    return await _in_thread(digest_of_tensor, part)


async def _in_thread(work: Callable, *args: object) -> object:
    """Signing and hashing let other threads run; the loop has all other peers to serve."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)
