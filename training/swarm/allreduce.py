"""One all-reduce with the group in view: who sent, how much of the average is one's own, how many bytes it took.

hivemind reports a round as done with a group of n also when nobody else's tensors arrived: parts that fail are
replaced by one's own with a warning in the log. Here they are counted. And numbers that are not finite stay where they
are: a sender's part is left out of the average, a reducer that answers with such is given up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.partition import TensorPartReducer
from hivemind.compression import CompressionBase, CompressionInfo, deserialize_torch_tensor
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2

from training.swarm.agreement import Verdict
from training.swarm.groups import RoundReport
from training.swarm.streams import first_of


class FiniteReducer(TensorPartReducer):
    """hivemind's mean of a part of all peers, without what is not finite.

    Where nothing is left, or nobody has any weight, each peer keeps its own; hivemind divides by zero.
    """

    def __init__(self, part_shapes: Sequence[torch.Size], num_senders: int):
        super().__init__(part_shapes, num_senders)
        self.refused: Counter[int] = Counter()
        """Parts that were left out, by the sender's number."""
        self.spoiled = False
        """Whether a sum of finite numbers was not finite, so that no mean came of it."""
        self._empty: set[int] = set()

    async def accumulate_part(
        self, sender_index: int, part_index: int, tensor_part: torch.Tensor, weight: float = 1.0
    ) -> torch.Tensor:
        """See hivemind. A refused part becomes zeros in place, for what is answered is the way from it to the mean."""
        if not (math.isfinite(weight) and weight >= 0 and bool(torch.isfinite(tensor_part).all())):
            self.refused[sender_index] += 1
            tensor_part.detach().zero_()
            weight = 0.0
        # A connection that breaks cancels its handler, and with it what the handler awaits: that is the mean of this
        # part, for which the other senders wait as well.
        average = await asyncio.shield(
            asyncio.ensure_future(super().accumulate_part(sender_index, part_index, tensor_part, weight=weight))
        )
        return tensor_part if part_index in self._empty else average

    def check_current_part_finished(self) -> None:
        """See hivemind."""
        if self.current_part_accumulated_from == self.num_current_senders:
            finite = math.isfinite(self.denominator) and bool(torch.isfinite(self.accumulator).all())
            if not finite or not self.denominator:
                self.spoiled |= not finite
                self._empty.add(self.current_part_index)
                self.denominator = 1.0
        super().check_current_part_finished()


class ReportingRunner(AllReduceRunner):
    """An all-reduce that counts bytes and notes the others' weights as they arrive.

    Args:
        round_own_parts: Reduce this peer's own parts as the others would have received them. Peers whose tensors are
            equal then keep them; else the reducer's exact and the others' rounded tensors have a mean that is none's.
        on_fault: Called when the average can be whole no more.
        kwargs: See hivemind.
    """

    reducer = FiniteReducer
    """What forms the mean of a part, as hivemind's `TensorPartReducer` does."""

    def __init__(self, *, round_own_parts: bool = False, on_fault: Callable[[], None] = lambda: None, **kwargs):
        super().__init__(**kwargs)
        self.tensor_part_reducer.finished.set()  # hivemind's own, which would complain that it was not used
        shapes = tuple(part.shape for part in self.parts_for_local_averaging)
        self.tensor_part_reducer = self.reducer(shapes, len(self.sender_peer_ids))
        self._take_part = self.tensor_part_container.register_processed_part
        self.tensor_part_container.register_processed_part = self._take_finite_part
        self._round_own_parts, self._on_fault = round_own_parts, on_fault
        self._began = time.monotonic()
        self._bytes_sent = self._bytes_received = 0
        self._weights: dict[PeerID, float] = {}
        self._faulty: set[PeerID] = set()
        self._talks: dict[PeerID, asyncio.Future] = {}
        self._ended: set[PeerID] = set()

    def report(self) -> RoundReport:
        """What has happened so far."""
        container, reducer = self.tensor_part_container, self.tensor_part_reducer
        refused = tuple(self.sender_peer_ids[number] for number in reducer.refused)
        nothing_of = {self.sender_peer_ids[n] for n, parts in reducer.refused.items() if parts >= reducer.num_parts}
        left_out = self.banned_senders | nothing_of
        weights = {peer: weight for peer, weight in self._weights.items() if peer not in left_out}
        if self.peer_id not in left_out:
            weights[self.peer_id] = self.weight
        failed = container.failed_size / max(container.total_size, 1)
        if reducer.num_parts == 0:  # it reduces nothing, so nobody has sent it any weight
            senders, total, own_share = len(self.sender_peer_ids), None, 1.0 if failed == 1 else None
        else:
            senders, total = sum(weight > 0 for weight in weights.values()), math.fsum(weights.values())
            own_share = failed + (1 - failed) * (weights.get(self.peer_id, 0.0) / total if total > 0 else 1.0)
        return RoundReport(
            group_size=self.group_size,
            senders=senders if failed < 1 else 1,
            own_share=own_share,
            weight=total,
            torn=failed > 0 or bool(self.banned_senders) or reducer.spoiled,
            refused=tuple(map(str, refused)),
            reduced_share=sum(shape.numel() for shape in reducer.part_shapes) / max(container.total_size, 1),
            **self.traffic,
            seconds=time.monotonic() - self._began,
        )

    def verdict(self, fault: Exception | None) -> Verdict:
        """Whether all has gone well so far, and who sent nonsense; `fault` is what has ended it early."""
        return Verdict(whole=fault is None and not self.report().torn, faulty=frozenset(self._faulty))

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes so far; an answer to a groupmate may leave when this peer has all that it needs."""
        return {"bytes_sent": self._bytes_sent, "bytes_received": self._bytes_received}

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if not (self._round_own_parts and peer_id == self.peer_id):
            try:
                await self._talk_to(peer_id)
            except Exception:
                self._on_fault()
                if peer_id in self.sender_peer_ids and peer_id not in self.active_senders:
                    await self._ban_sender(peer_id)  # it is gone before it began to send: nobody waits for it
                raise
            return
        container, loop = self.tensor_part_container, asyncio.get_running_loop()
        own, sender = self.ordered_peer_ids.index(peer_id), self.sender_peer_ids.index(peer_id)
        for index, (part, info) in enumerate(tuple(container._input_parts_by_peer[own])):
            rounded = await loop.run_in_executor(None, _rounded, container.compression, part, info)
            averaged = await self.tensor_part_reducer.accumulate_part(sender, index, rounded, weight=self.weight)
            container.register_processed_part(own, index, averaged - rounded)

    async def _talk_to(self, peer_id: PeerID) -> None:
        """hivemind's exchange with a reducer; a peer in client mode, too, hears at once that it ends.

        hivemind has such a peer read nothing until it has sent everything, which it never has if the reducer is gone.
        """
        talking = self._talks[peer_id] = asyncio.ensure_future(super()._communicate_with_peer(peer_id))
        try:
            await talking
        except asyncio.CancelledError:
            if peer_id in self._ended:
                raise AllreduceException(f"{peer_id} has ended the exchange") from None
            raise

    def _note_end(self, peer_id: PeerID) -> None:
        """A reducer will not answer this peer, which is still sending."""
        self._ended.add(peer_id)
        self._talks[peer_id].cancel()

    async def _ban_sender(self, peer_id: PeerID) -> None:
        """See hivemind, which waits for the first part of a banned sender all the same."""
        await super()._ban_sender(peer_id)
        self._on_fault()
        if self.active_senders | self.banned_senders >= set(self.sender_peer_ids):
            self.all_senders_started.set()

    def _take_finite_part(self, peer_index: int, part_index: int, part: torch.Tensor) -> None:
        """Takes a reducer's answer, unless it would spoil this peer's tensors."""
        peer = self.ordered_peer_ids[peer_index]
        if peer != self.peer_id and not bool(torch.isfinite(part).all()):
            self._faulty.add(peer)
            raise AllreduceException(f"{peer} has sent numbers that are not finite")
        self._take_part(peer_index, part_index, part)

    def _get_peer_stub(self, peer: PeerID) -> _CountingStub:
        on_end = partial(self._note_end, peer) if self.should_delay_results(self.peer_id) else None
        answers = self.tensor_part_container.num_parts_by_peer[self.ordered_peer_ids.index(peer)]
        return _CountingStub(super()._get_peer_stub(peer), self, answers, on_end)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """See hivemind. Who sends to a peer that has given up is told so at once, whatever it waits for.

        The sender may hang up as soon as it has all answers, so what comes after its last part is not waited for.
        """
        parts = first_of(stream, self.tensor_part_reducer.num_parts)
        answers = super().rpc_aggregate_part(self._incoming(parts, context.remote_id), context)
        while True:
            coming = asyncio.ensure_future(anext(answers, None))
            try:
                if not self._future.done():
                    await asyncio.wait({coming, self._future}, return_when=asyncio.FIRST_COMPLETED)
                if self._future.cancelled() and not coming.done():
                    yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
                    return
                message = await coming
            finally:
                coming.cancel()
            if message is None:
                return
            self._bytes_sent += len(message.tensor_part.buffer)
            yield message

    async def _incoming(self, stream: AsyncIterator, sender: PeerID | None = None) -> AsyncIterator:
        async for message in stream:
            self._bytes_received += len(message.tensor_part.buffer)
            if sender is not None:
                self._weights[sender] = message.weight
            yield message

    async def _outgoing(self, stream: AsyncIterator) -> AsyncIterator:
        async for message in stream:
            self._bytes_sent += len(message.tensor_part.buffer)
            yield message


def _rounded(codec: CompressionBase, part: torch.Tensor, info: CompressionInfo) -> torch.Tensor:
    return deserialize_torch_tensor(codec.compress(part.detach(), info, allow_inplace=False))


class _CountingStub:
    """A groupmate's reducer, with the bytes to and from it counted.

    Args:
        stub: hivemind's.
        runner: Counts.
        count: Answers that are to come; then it hangs up.
        on_end: Called if the first answer, awaited from the start, is none or a refusal; None: nobody needs to know.
    """

    def __init__(self, stub: object, runner: ReportingRunner, count: int, on_end: Callable[[], None] | None = None):
        self._stub, self._runner, self._count, self._on_end = stub, runner, count, on_end

    async def rpc_aggregate_part(self, parts: AsyncIterator) -> AsyncIterator:
        stream = await self._stub.rpc_aggregate_part(self._runner._outgoing(parts))
        answers = self._runner._incoming(first_of(stream, self._count))
        return answers if self._on_end is None else self._listening(answers)

    def _listening(self, answers: AsyncIterator) -> AsyncIterator:
        first = asyncio.ensure_future(anext(answers, None))

        def look(first: asyncio.Future) -> None:
            if not first.cancelled() and (first.exception() is not None or not _is_answer(first.result())):
                self._on_end()

        async def all_answers() -> AsyncIterator:
            if (message := await first) is not None:
                yield message
                async for message in answers:
                    yield message

        first.add_done_callback(look)
        return all_answers()


def _is_answer(message: averaging_pb2.AveragingData | None) -> bool:
    return message is not None and message.code == averaging_pb2.AVERAGED_PART
