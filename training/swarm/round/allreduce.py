"""One all-reduce of a group, from top to bottom.

Each peer is the reducer of some parts of the tensors, and a sender of all. A part is a piece of a tensor (`parts`):

    sender                                  reducer
    _send       --- part 0, part 1, ... -->  answer   takes part n of all senders,
    tensors     <-- update 0, update 1, ..            averages it (`reducer`), and answers with the way to the average

Each stream is opened by the sender. Answers are the differences between the average and what the sender sent, so that
codecs round small numbers. A peer also sends its own parts to itself.

Messages of bytes are gathered the same way (`Travel.gathers`): the reducer answers with all others' copies of the part,
and averages nothing.

The exchange with a groupmate fails if

- it sends or answers nothing for `chunk_seconds`, or twice as long as a reducer, which waits for senders itself;
- its stream ends before all parts or answers have come;
- it sends what cannot be read, or answers with numbers that are not finite;
- it answers no ping, or is much slower than the others (`liveness`).

Then this peer gives the whole all-reduce up at once and reports it to all others, which give it up as well: nobody uses
averages in which some parts lack a sender. The group decides what follows (`agreement`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from hivemind.compression import CompressionBase, CompressionInfo, NoCompression
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor, as_aiter

from training.swarm.engine.calls import first_of
from training.swarm.engine.codecs import decode, encode
from training.swarm.engine.parts import divide, empty_updates, shortened_part_bytes
from training.swarm.peers.groups import AllReduceError, Delay, Group, Misconduct, RoundReport
from training.swarm.peers.liveness import NEARLY, Late, SlowSenders
from training.swarm.peers.times import PAUSE_SECONDS
from training.swarm.round.agreement import Verdict
from training.swarm.round.guard import AllReduceGuard, RoundGuard
from training.swarm.round.reducer import Gatherer, Reducer, Reduction

FEWEST_TO_COMPARE = 3
"""Least size of a group in which a slow peer can be distinguished from the others."""

Data = averaging_pb2.AveragingData
Call = Callable[[PeerID, AsyncIterator[Data]], Awaitable[AsyncIterator[Data]]]
"""Function that opens a stream of parts to a reducer and returns the reducer's answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Travel:
    """Codec, reduction and part sizes of an all-reduce; equal for all peers of a run."""

    codec: CompressionBase
    part_bytes: int
    """Longest encoded part, in bytes."""
    reduction: Reduction
    """Reduction by which a reducer averages."""
    round_own_parts: bool = False
    """Average this peer's own parts as the others would have received them. Peers whose tensors are equal then keep
    them; otherwise the mean of the reducer's exact and the others' rounded tensors differs from both."""
    chunk_seconds: float | None = None
    """Longest silence of a sender; None: no limit."""
    is_guarded: bool = False
    """True if a guard may have to hold all senders' copies of a part."""
    gathers: bool = False
    """True if a reducer answers with all others' copies of a part in place of their average; then tensors are bytes."""

    def part_bytes_among(self, peers: int) -> int:
        """Bytes of the longest part in a group of this size; all its peers must cut their tensors alike."""
        holds_all = self.reduction.needs_short_parts or self.is_guarded
        return shortened_part_bytes(self.part_bytes, peers) if holds_all else self.part_bytes


class Trouble(IntEnum):
    """Kind of trouble in the exchange with a groupmate."""

    NONE = 0
    GAVE_UP = 1
    """The groupmate has given up and said so: another peer is the cause."""
    BROKEN = 2
    """The groupmate has ended a stream too early, or is silent; this may be an accident."""
    FAULTY = 3
    """The groupmate is gone, or has sent nothing, or messages that cannot be read."""


class _GaveUp(AllReduceError):
    """A groupmate has given the all-reduce up because of another groupmate."""


@dataclass(slots=True)
class _Groupmate:
    """State of the exchange with one peer of the group. Times are in seconds since the beginning of the all-reduce."""

    has_called: bool = False
    """True once the groupmate has opened its stream of parts to this peer."""
    weight: float | None = None
    """Weight that the groupmate gives to its tensors; None until one of its parts has come."""
    parts: int = 0
    """Number of the groupmate's parts that have come."""
    first_part: float | None = None
    last_part: float | None = None
    answers: int = 0
    """Number of the groupmate's answers, as a reducer, that have come."""
    first_answer: float | None = None
    last_answer: float | None = None
    has_all_of_mine: bool = False
    """True once all parts for the groupmate have been sent."""
    trouble: Trouble = Trouble.NONE


class AllReduce:
    """Part of one peer in an all-reduce; needs a running event loop.

    Args:
        own: Id of this peer.
        group: Group of the all-reduce.
        tensors: Tensors in float32 on the host; they do not change.
        infos: Hints for the codec, one a tensor; None: made from its shape.
        weight: Weight of this peer's tensors.
        travel: Codec, reduction and part sizes.
        call: Opens a stream of parts to a reducer.
        guard: Watches all messages; None: no guard.
        late_seconds: Seconds after which a peer that is much slower than the others is given up (`liveness`); None:
            never.
        on_fault: Called when this peer's result can no longer be whole.
    """

    def __init__(
        self,
        *,
        own: PeerID,
        group: Group,
        tensors: Sequence[torch.Tensor],
        infos: Sequence[CompressionInfo] | None = None,
        weight: float,
        travel: Travel,
        call: Call,
        guard: RoundGuard | None = None,
        late_seconds: float | None = None,
        on_fault: Callable[[], None] = lambda: None,
    ):
        self.own, self.group, self.weight = own, group, weight
        self._travel, self._call, self._on_fault = travel, call, on_fault
        rows = (len(group.peers) - 1,) if travel.gathers else ()
        self.updates = empty_updates(tensors, rows)
        """Difference of each tensor to its average, or the others' tensors, in the group's order, if they are gathered;
        arbitrary numbers until `run` has ended well."""
        divided = divide(
            tensors,
            self.updates,
            shares=group.fractions,
            codec=travel.codec,
            part_bytes=travel.part_bytes_among(len(group.peers)),
            infos=infos,
        )
        self.parts = dict(zip(group.peers, divided, strict=True))
        """Parts of the tensors, by the peer that averages them."""
        self._values = sum(tensor.numel() for tensor in tensors)
        lengths = [part.values.numel() for part in self.parts[own]]
        kind = Gatherer if travel.gathers else Reducer
        self.reducer = kind(lengths, group.peers, travel.reduction, group.shares_of(group.peers))
        self.guard: AllReduceGuard | None = None
        if guard is not None:
            self.guard = guard.begin(group.group_id, self.parts, unvouched=group.unvouched)
        self.mates = {peer: _Groupmate() for peer in group.peers if peer != own}
        self.slow = SlowSenders(len(self.mates), late_seconds)
        self.bytes_sent = self.bytes_received = 0
        self._began = time.monotonic()
        self._given_up = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task] = []

    async def run(self) -> None:
        """Exchanges all parts with the group.

        Raises:
            Exception: The error of the first exchange that has failed.
        """
        self._tasks = [asyncio.create_task(self._exchange(peer)) for peer, parts in self.parts.items() if parts]
        missing = asyncio.create_task(self._give_up_the_missing())
        try:
            await asyncio.gather(*self._tasks)
        finally:
            missing.cancel()

    def give_up(self) -> None:
        """Ends this peer's part, and tells the others that this peer is not the cause. A second call does nothing."""
        if self._given_up.done():
            return
        self._given_up.set_result(None)
        self.reducer.close()

        def end() -> None:
            for task in self._tasks:
                task.cancel()

        # Meanwhile the others read in its message that this peer is not the cause; a broken stream would look like it.
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, end)

    # -- as a sender -----------------------------------------------------------------------------------------------

    async def _exchange(self, reducer: PeerID) -> None:
        """Sends a reducer its parts, and takes the answers."""
        try:
            await (self._reduce_own() if reducer == self.own else self._send(reducer))
        except Exception as error:
            self._note(reducer, _trouble_of(error))
            raise

    async def _send(self, reducer: PeerID) -> None:
        parts, mate, number = self.parts[reducer], self.mates[reducer], 0
        answers = first_of(await self._call(reducer, self._outgoing(reducer)), len(parts))
        answers = self._incoming(answers, expected=averaging_pb2.AVERAGED_PART)
        if self.guard is not None:
            answers = self.guard.answered(reducer, answers)
        seconds = self._travel.chunk_seconds
        timed = aiter_with_timeout(answers, None if seconds is None else 2 * seconds)
        async for update in amap_in_executor(lambda answer: decode(answer.tensor_part), timed):
            if update.shape != parts[number].update.shape or not bool(torch.isfinite(update).all()):
                raise Misconduct(f"{reducer} has sent numbers that are not finite, or another number of them")
            parts[number].update.copy_(update)
            number += 1
            mate.answers, mate.last_answer = number, self._seconds()
            mate.first_answer = mate.last_answer if mate.first_answer is None else mate.first_answer
        if number < len(parts):
            raise AllReduceError(f"{reducer} has ended the exchange")

    async def _outgoing(self, reducer: PeerID) -> AsyncIterator[Data]:
        messages = self._encoded(reducer, self._travel.codec)
        if self.guard is not None:
            messages = self.guard.sending(reducer, messages)
        async for message in messages:
            if self._given_up.done():
                yield Data(code=averaging_pb2.GROUP_DISBANDED)
                return
            self.bytes_sent += len(message.tensor_part.buffer)
            yield message
        self.mates[reducer].has_all_of_mine = True

    async def _encoded(self, reducer: PeerID, codec: CompressionBase) -> AsyncIterator[Data]:
        """Yields this peer's parts for a reducer, each encoded in a thread while the previous one is sent."""
        facts = {"code": averaging_pb2.PART_FOR_AVERAGING, "group_id": self.group.group_id}
        parts = as_aiter(*self.parts[reducer])
        async for tensor in amap_in_executor(lambda part: codec.compress(part.values, part.info), parts):
            yield Data(tensor_part=tensor, weight=self.weight, **facts)
            facts = {}  # only the first message carries id and weight

    async def _reduce_own(self) -> None:
        """Takes this peer's own parts to its own reducer, without the network."""
        number = 0
        async for values in self._own_values():
            update = await self.reducer.take(self.own, values, self.weight)
            self.parts[self.own][number].update.copy_(update)
            number += 1

    async def _own_values(self) -> AsyncIterator[torch.Tensor]:
        """Yields this peer's own parts, rounded by the codec if `Travel.round_own_parts`. A guard sees them as
        messages."""
        if self.guard is None and not self._travel.round_own_parts:
            for part in self.parts[self.own]:
                yield part.values
            return
        messages = self._encoded(self.own, self._travel.codec if self._travel.round_own_parts else NoCompression())
        if self.guard is not None:
            messages = self.guard.sending(self.own, messages)
        async for message in messages:
            yield decode(message.tensor_part)

    # -- as a reducer ----------------------------------------------------------------------------------------------

    async def answer(self, sender: PeerID, stream: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Takes the parts of a sender of the group, and answers each part with its difference to the average.

        If this peer gives up, it tells the sender at once. After the last part it waits for nothing more: the sender
        closes the stream as soon as it has all answers.
        """
        if self.mates[
            sender
        ].has_called:  # with other parts than the first ones, this peer's signed answers would look like lies
            yield Data(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        self.mates[sender].has_called = True
        answers = self._answers(sender, stream)
        while True:
            # The next answer may need other senders' parts. Waiting for `_given_up` besides ends that at once.
            coming = asyncio.ensure_future(anext(answers, None))
            try:
                await asyncio.wait({coming, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    yield Data(code=averaging_pb2.GROUP_DISBANDED)
                    return
                message = await coming
            finally:
                coming.cancel()
            if message is None:
                return
            self.bytes_sent += len(message.tensor_part.buffer)
            yield message

    async def _answers(self, sender: PeerID, stream: AsyncIterator[Data]) -> AsyncIterator[Data]:
        mine, answered = len(self.parts[self.own]), 0
        parts = self._incoming(first_of(stream, mine), sender=sender)
        if self.guard is not None:
            parts = self.guard.taking(sender, parts)
        timed = aiter_with_timeout(parts, self._travel.chunk_seconds)
        try:
            async for message, part in amap_in_executor(lambda one: (one, decode(one.tensor_part)), timed):
                update = await self.reducer.take(sender, part, message.weight)
                codec = message.tensor_part.compression
                answer = Data(
                    code=averaging_pb2.AVERAGED_PART,
                    tensor_part=await asyncio.to_thread(encode, update, codec),
                )
                if self.guard is not None:
                    await self.guard.answering(sender, answer)
                answered += 1
                yield answer
        except Exception as error:
            self._lose(sender, _trouble_of(error))
            yield Data(code=averaging_pb2.INTERNAL_ERROR)
        finally:  # also if the connection has broken, which cancels this task
            if answered < mine:
                self._lose(sender, Trouble.BROKEN)

    async def _incoming(
        self, stream: AsyncIterator[Data], *, sender: PeerID | None = None, expected: int | None = None
    ) -> AsyncIterator[Data]:
        """Yields messages and counts them; ends at a message without a tensor."""
        async for message in stream:
            if message.code == averaging_pb2.GROUP_DISBANDED:
                raise _GaveUp("a groupmate has given the all-reduce up")
            if expected is not None and message.code != expected:
                return
            self.bytes_received += len(message.tensor_part.buffer)
            # Otherwise autograd would record all that is computed with the tensor, and never free it.
            message.tensor_part.requires_grad = False
            if sender is not None:
                mate = self.mates[sender]
                mate.weight, mate.parts, mate.last_part = message.weight, mate.parts + 1, self._seconds()
                mate.first_part = mate.last_part if mate.first_part is None else mate.first_part
            yield message

    async def _give_up_the_missing(self) -> None:
        """Gives up the senders that have not called in time."""
        if self._travel.chunk_seconds is None or not self.parts[self.own]:
            return
        await asyncio.sleep(self._travel.chunk_seconds)
        for peer, mate in self.mates.items():
            if not mate.has_called:
                self._lose(peer, Trouble.FAULTY)

    def _lose(self, sender: PeerID, trouble: Trouble) -> None:
        """Notes that a sender's exchange has ended. It is not lost if it has all answers: it may hang up before this
        peer's handler has ended."""
        if not self.reducer.is_done:
            self._note(sender, trouble)

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _note(self, peer: PeerID, trouble: Trouble) -> None:
        """Notes that the exchange with a peer has failed. After this peer has given up, failures say nothing of
        others."""
        if not self._given_up.done():
            if peer in self.mates:
                self.mates[peer].trouble = max(self.mates[peer].trouble, trouble)
            self._on_fault()

    def note_gone(self, peer: PeerID) -> None:
        """Notes that a groupmate answers no ping, or is banned."""
        self._note(peer, Trouble.FAULTY)

    def note_overdue(self, peers: frozenset[PeerID]) -> None:
        """Notes that the all-reduce has waited for these peers for too long."""
        for peer in peers:
            self._note(peer, Trouble.FAULTY)

    def in_trouble(self, least: Trouble) -> frozenset[PeerID]:
        """Groupmates with at least this kind of trouble."""
        return frozenset(peer for peer, mate in self.mates.items() if mate.trouble >= least)

    def verdict(self, fault: Exception | None, *, is_repetition: bool = False) -> Verdict:
        """Returns this peer's verdict: whether it has no fault so far, and which groupmates are to blame if it has.

        A stream may break by accident, so a peer that breaks off is named in a repetition only, and only if there is a
        third peer that can say the same.

        Args:
            fault: Error that ended the all-reduce early.
            is_repetition: True if the group has tried before.
        """
        least = Trouble.BROKEN if is_repetition and len(self.group.peers) > 2 else Trouble.FAULTY
        whole, named = fault is None and not self.is_torn, self.in_trouble(least)
        if not (whole or named):
            named = self.slow.overdue(NEARLY)
            for peer in named:
                self.mates[peer].trouble = Trouble.FAULTY
        return Verdict(whole=whole, faulty=named)

    @property
    def is_torn(self) -> bool:
        """True if some parts of the result are missing."""
        return self.reducer.has_overflowed or bool(self.in_trouble(Trouble.GAVE_UP))

    # -- peers for which this one waits

    def late_peers(self) -> frozenset[PeerID]:
        """Senders whose parts have not all come; if there are none, reducers whose answers have not all come.

        An answer may be late because of a sender whose parts the reducer lacks, so senders come first.
        """
        return frozenset(self._late_senders() or self._late_reducers())

    def _late_senders(self) -> dict[PeerID, int]:
        """Number of parts that have come from each late sender."""
        return {peer: self.mates[peer].parts for peer in self.reducer.awaited if peer in self.mates}

    def _late_reducers(self) -> dict[PeerID, int]:
        """Number of answers that have come from each late reducer."""
        return {peer: mate.answers for peer, mate in self.mates.items() if mate.answers < len(self.parts[peer])}

    def late(self) -> Late:
        """Peers for which the all-reduce waits; none after this peer has given up, since nobody sends during the
        agreement."""
        if self._given_up.done():
            return Late({}, reduce=False)
        mates = self.mates.items()
        if senders := self._late_senders():
            first = {peer: mate.first_part for peer, mate in mates if mate.first_part is not None}
            return Late(senders, reduce=False, first=first)
        late = self._late_reducers()
        lack_mine = {peer for peer in late if not self.mates[peer].has_all_of_mine}
        if 2 * len(lack_mine) > len(self.mates):
            # This peer's own link may be what they wait for. Otherwise these few peers read slowly.
            late = {peer: count for peer, count in late.items() if peer not in lack_mine}
        first = {peer: mate.first_answer for peer, mate in mates if mate.first_answer is not None}
        return Late(late, reduce=True, first=first)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    # -- the report ------------------------------------------------------------------------------------------------

    def report(self) -> RoundReport:
        """Makes the report on the events so far."""
        refused, mine = self.reducer.refused, len(self.parts[self.own])
        nothing_of = {peer for peer, parts in refused.items() if parts >= mine}
        told = {peer: mate.weight for peer, mate in self.mates.items() if mate.weight is not None}
        brought = {
            str(peer): max(weight, 0.0) if math.isfinite(weight) and peer not in nothing_of else 0.0
            for peer, weight in told.items()
        }
        sent = {peer: weight for peer, weight in (told | {self.own: self.weight}).items() if peer not in nothing_of}
        counted = self._travel.reduction.counted(list(sent.values()), self.group.shares_of(list(sent)))
        weights = dict(zip(sent, counted, strict=True))
        if not mine:  # it reduces no part, so nobody has sent it any weight
            senders, total, own_share = len(self.group.peers), None, None
        else:
            senders, total = sum(weight > 0 for weight in weights.values()), math.fsum(weights.values())
            own_share = weights.get(self.own, 0.0) / total if total > 0 else 1.0
        return RoundReport(
            group_size=len(self.group.peers),
            senders=senders,
            own_share=own_share,
            weight=total,
            torn=self.is_torn,
            refused=tuple(map(str, refused)),
            delays=self._delays(weights),
            brought=brought,
            reduced_share=sum(self.reducer.lengths) / max(self._values, 1),
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            seconds=self._seconds(),
        )

    def _delays(self, weights: dict[PeerID, float]) -> dict[str, Delay]:
        """Seconds that this peer waited for each groupmate beyond twice the median of the group.

        A reducer answers when all senders' parts are there. So its delay counts from the last part that came here: a
        slow sender delays all reducers, this peer too. In a pair it is unknown which of the two is slow.
        """
        if len(self.group.peers) < FEWEST_TO_COMPARE:
            return {}
        sent = {peer: mate.last_part for peer, mate in self.mates.items() if mate.last_part is not None}
        answered = {peer: mate.last_answer for peer, mate in self.mates.items() if mate.last_answer is not None}
        last_sent, found = max(sent.values(), default=0.0), {}
        for peer in self.mates:
            late = _beyond_usual(sent, peer)
            if peer in answered:
                late = max(late, min(_beyond_usual(answered, peer), answered[peer] - last_sent))
            found[str(peer)] = Delay(max(late, 0.0), self._share_of(weights.get(peer, 0.0), weights))
        return found

    def _share_of(self, weight: float, weights: dict[PeerID, float]) -> float:
        """Share of the samples that a peer's weight is. No claim counts for more than the work of two peers."""
        peers = len(self.group.peers)
        if len(weights) < 2:  # a peer that averages no part sees no weights
            return 1 / peers
        share = weight / (math.fsum(weights.values()) or 1.0)
        return min(share, 2 / peers) if math.isfinite(share) else 0.0


def _trouble_of(error: Exception) -> Trouble:
    if isinstance(error, _GaveUp):
        return Trouble.GAVE_UP
    return Trouble.FAULTY if isinstance(error, Misconduct) else Trouble.BROKEN


def _beyond_usual(moments: dict[PeerID, float], peer: PeerID) -> float:
    """Returns by how much one value exceeds twice the median of the others.

    >>> _beyond_usual({"ada": 0.25, "grace": 0.5, "mallory": 4.0}, "mallory")
    3.5
    """
    others = sorted(moment for other, moment in moments.items() if other != peer)
    return moments[peer] - 2 * others[(len(others) - 1) // 2] if peer in moments and others else 0.0
