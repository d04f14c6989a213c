"""One all-reduce, with a report: who sent, how much of the average is this peer's own, how many bytes it took.

In a butterfly all-reduce each peer is the reducer of some parts: it gets them from all senders, and answers with the
mean. hivemind reports a round as done with a group of n even if nobody else's tensors arrived: it replaces parts that
fail by the peer's own, with a warning in the log. Here they are counted. Numbers that are not finite do not spread: a
reducer leaves out such a part, and a sender gives up a reducer that answers with such a part.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner
from hivemind.averaging.partition import DEFAULT_PART_SIZE_BYTES
from hivemind.compression import CompressionBase, CompressionInfo, NoCompression, deserialize_torch_tensor
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2

from training.swarm.defence.books import Books, FalseSignatureError, Plan
from training.swarm.defence.clipping import Clipping
from training.swarm.defence.receipts import shares_of
from training.swarm.engine.streams import first_of
from training.swarm.peers.groups import Delay, RoundReport
from training.swarm.peers.patience import NEARLY, Late, Patience
from training.swarm.round.agreement import Verdict
from training.swarm.round.reducer import CheckedParts, ClippingReducer, FiniteReducer

FEWEST_TO_COMPARE = 3
"""Peers of a group in which a slow one can be told from the others."""


class ReportingRunner(AllReduceRunner):
    """An all-reduce that counts bytes and notes the others' weights as they arrive.

    Args:
        tensors: See hivemind.
        peer_fractions: Share of the values that each peer averages; 0 in client mode.
        compression: How parts travel; None: in 32 bit.
        part_size_bytes: Longest part.
        tensor_infos: How each tensor is encoded; None: all alike.
        round_own_parts: Average this peer's own parts as the others would have received them. Peers whose tensors are
            equal then keep them; otherwise the mean of the reducer's exact and the others' rounded tensors differs
            from both.
        clipping: Average by CenteredClip; None: by the weighted mean.
        most_weight: In the mean, a peer's weight counts as no more than this; CenteredClip compares weights.
        unvouched: Peers of whose weight a share counts, in CenteredClip; see `Scope`.
        plan: How reducers are checked; None: they are not.
        patience_seconds: A peer that is much slower than the others is given up after so long; None: never. See
            `patience`.
        on_fault: Called when the average can no longer be whole.
        kwargs: See hivemind.
    """

    def __init__(
        self,
        *,
        tensors: Sequence[torch.Tensor],
        peer_fractions: Sequence[float],
        compression: CompressionBase | None = None,
        part_size_bytes: int = DEFAULT_PART_SIZE_BYTES,
        tensor_infos: Sequence[CompressionInfo] | None = None,
        round_own_parts: bool = False,
        clipping: Clipping | None = None,
        most_weight: float = math.inf,
        unvouched: frozenset[PeerID] = frozenset(),
        plan: Plan | None = None,
        patience_seconds: float | None = None,
        on_fault: Callable[[], None] = lambda: None,
        **kwargs,
    ):
        parts = dict(
            compression=compression or NoCompression(), part_size_bytes=part_size_bytes, tensor_infos=tensor_infos
        )
        super().__init__(tensors=tensors, peer_fractions=tuple(peer_fractions), **parts, **kwargs)
        # hivemind has made a reducer and parts of its own; ours take their places.
        self.tensor_part_reducer.finished.set()  # or it would complain of the parts that never came
        shapes, senders = tuple(part.shape for part in self.parts_for_local_averaging), len(self.sender_peer_ids)
        self.tensor_part_reducer = (
            FiniteReducer(shapes, senders, most_weight)
            if clipping is None
            else ClippingReducer(shapes, senders, clipping, shares_of(self.sender_peer_ids, unvouched))
        )
        self._unvouched = unvouched
        self.books = None if plan is None else self._open_books(plan)
        """What was sent and answered, signed; None: nobody signs anything."""
        self.tensor_part_container.finalize()
        self.tensor_part_container = CheckedParts(
            tensors, peer_fractions, return_deltas=True, check=self._check_answer, **parts
        )
        self._round_own_parts, self._on_fault = round_own_parts, on_fault
        self._began = time.monotonic()
        self._bytes_sent = self._bytes_received = 0
        self._weights: dict[PeerID, float] = {}
        self._streaming: set[PeerID] = set()
        self._faulty: set[PeerID] = set()
        self.troubles: set[PeerID] = set()
        """Groupmates with which the exchange failed before this peer gave the all-reduce up."""
        self._ended: set[PeerID] = set()
        """Those of them that may have failed because they have given it up themselves."""
        self._answered: Counter[PeerID] = Counter()
        self._sent_at: dict[PeerID, float] = {}
        self._first_sent: dict[PeerID, float] = {}
        self._first_answered: dict[PeerID, float] = {}
        self._has_all_of_mine: set[PeerID] = set()
        """Reducers to which all parts of this peer have left."""
        self._answered_at: dict[PeerID, float] = {}
        self._talks: dict[PeerID, asyncio.Future] = {}
        self._hung_up: set[PeerID] = set()
        self._given_up = asyncio.get_running_loop().create_future()
        others = self.group_size - 1
        self.patience = Patience(others, patience_seconds, self._late, on_overdue=self._note_overdue)

    def _open_books(self, plan: Plan) -> Books:
        parts = {
            peer: self.parts_for_local_averaging
            if peer == self.peer_id
            else self.tensor_part_container.get_raw_input_parts(number)
            for number, peer in enumerate(self.ordered_peer_ids)
        }
        return Books(plan, self.group_id, self.peer_id, parts, self._unvouched)

    def report(self) -> RoundReport:
        """What has happened so far."""
        container, reducer = self.tensor_part_container, self.tensor_part_reducer
        refused = tuple(self.sender_peer_ids[number] for number in reducer.refused)
        nothing_of = {self.sender_peer_ids[n] for n, parts in reducer.refused.items() if parts >= reducer.num_parts}
        left_out = self.banned_senders | nothing_of
        weights = {peer: weight for peer, weight in self._weights.items() if peer not in left_out}
        if self.peer_id not in left_out:
            weights[self.peer_id] = self.weight
        others = [(peer, weight) for peer, weight in weights.items() if peer != self.peer_id]
        others += [(peer, 0.0) for peer in nothing_of]
        brought = {str(peer): max(weight, 0.0) if math.isfinite(weight) else 0.0 for peer, weight in others}
        counted = reducer.counted(list(weights.values()), shares_of(list(weights), self._unvouched))
        weights = dict(zip(weights, counted, strict=True))
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
            delays=self._delays(weights),
            brought=brought,
            reduced_share=sum(shape.numel() for shape in reducer.part_shapes) / max(container.total_size, 1),
            **self.traffic,
            seconds=time.monotonic() - self._began,
        )

    def _delays(self, weights: dict[PeerID, float]) -> dict[str, Delay]:
        """How long this peer waited for each groupmate beyond what is usual among them, twice the median.

        A reducer answers when all senders' parts are there. So it is late only by what it takes beyond the last part
        that came here: a slow sender delays all reducers, this peer too. In a pair nobody can tell who is slow.
        """
        others = [peer for peer in self.ordered_peer_ids if peer != self.peer_id]
        if self.group_size < FEWEST_TO_COMPARE:
            return {}
        sent = {peer: self._sent_at[peer] - self._began for peer in others if peer in self._sent_at}
        answered = {peer: self._answered_at[peer] - self._began for peer in others if peer in self._answered_at}
        last_sent, found = max(sent.values(), default=0.0), {}
        for peer in others:
            late = _beyond_usual(sent, peer)
            if peer in answered:
                late = max(late, min(_beyond_usual(answered, peer), answered[peer] - last_sent))
            found[str(peer)] = Delay(max(late, 0.0), self._share_of(weights.get(peer, 0.0), weights))
        return found

    def _share_of(self, weight: float, weights: dict[PeerID, float]) -> float:
        """A peer's share of the samples; what it claims counts for no more than two peers' work."""
        if not self._weights:  # a peer that averages nothing sees no weights
            return 1 / self.group_size
        share = weight / (math.fsum(weights.values()) or 1.0)
        return min(share, 2 / self.group_size) if math.isfinite(share) else 0.0

    def verdict(self, fault: Exception | None, *, is_repetition: bool = False) -> Verdict:
        """Whether all went well so far, and who is to blame if it did not.

        A stream may break by accident, so whoever breaks off is to blame in a repetition only, and only if there is a
        third peer that can say the same. It may also end because the other one has heard that the all-reduce has
        failed: then this peer counts as told.

        Args:
            fault: What ended it early.
            is_repetition: Whether the group has tried before.
        """
        whole = fault is None and not self.report().torn
        own = self._faulty | (self.troubles - self._ended if is_repetition and self.group_size > 2 else set())
        if own or whole:
            return Verdict(whole=whole, faulty=frozenset(own))
        if nearly := self.patience.overdue(NEARLY):
            self.troubles |= nearly
            return Verdict(whole=False, faulty=nearly)
        ended = self._ended if is_repetition and self.group_size > 2 else set()
        return Verdict(whole=False, told=not self.troubles - self._ended, faulty=frozenset(ended))

    def late_peers(self) -> frozenset[PeerID]:
        """For whom this peer waits: senders whose parts have not all come, or else reducers whose answers have not.

        An answer may be late because of a sender whose parts the reducer lacks, so senders come first.
        """
        return frozenset(self._late_senders() or self._late_reducers())

    def _late_senders(self) -> dict[PeerID, int]:
        """How many parts came of those whose parts are late."""
        # A reducer reads a sender's next part when all have sent the one before.
        came, parts = self.tensor_part_reducer.num_parts_received, self.tensor_part_reducer.num_parts
        last = min(came, default=0)
        late = zip(self.sender_peer_ids, came, strict=True)
        return {peer: count for peer, count in late if count == last < parts and peer != self.peer_id}

    def _late_reducers(self) -> dict[PeerID, int]:
        """How many answers came of those whose answers are late."""
        due = zip(self.ordered_peer_ids, self.tensor_part_container.num_parts_by_peer, strict=True)
        came = self._answered
        return {peer: came[peer] for peer, count in due if came[peer] < count and peer != self.peer_id}

    def _late(self) -> Late:
        """See `Patience`."""
        if senders := self._late_senders():
            return Late(senders, reduce=False, first=self._first_sent)
        late = self._late_reducers()
        lack_mine = late.keys() - self._has_all_of_mine
        if 2 * len(lack_mine) > self.group_size - 1:
            # This peer's own link may be what they wait for. Otherwise these few read slowly.
            late = {peer: count for peer, count in late.items() if peer not in lack_mine}
        return Late(late, reduce=True, first=self._first_answered)

    def _note_overdue(self, peers: frozenset[PeerID]) -> None:
        """The all-reduce has waited for these for too long."""
        if not self._given_up.done():
            self.troubles |= peers
            self._faulty |= peers
            self._on_fault()

    def note_gone(self, peer: PeerID) -> None:
        """A groupmate does not even answer a ping; nothing happens if this peer has no need of it any more."""
        if not self._given_up.done():
            self.troubles.add(peer)
            self._faulty.add(peer)
            self._on_fault()

    def _note_trouble(self, peer: PeerID) -> None:
        """The exchange with a groupmate has failed with the error that is being handled, if any."""
        if peer == self.peer_id or self._given_up.done():
            return
        self.troubles.add(peer)
        if isinstance(sys.exception(), FalseSignatureError):
            self._faulty.add(peer)
        if not isinstance(sys.exception(), TimeoutError | RuntimeError | ValueError):
            self._ended.add(peer)

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes so far; an answer to a groupmate may leave when this peer has all that it needs."""
        return {"bytes_sent": self._bytes_sent, "bytes_received": self._bytes_received}

    def finalize(self, *, cancel: bool = False, exception: BaseException | None = None) -> None:
        """Ends this peer's part; with `cancel`, peers that still send are told at once that it has given up."""
        super().finalize(cancel=cancel, exception=exception)
        if cancel and not self._given_up.done():
            self._given_up.set_result(None)

    # -- as a sender -----------------------------------------------------------------------------------------------

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        """Sends a reducer its parts, and takes the means.

        hivemind goes on with the other reducers if one fails, and takes this peer's own parts in place of the means.
        Here the failure is told at once, so that the group can repeat the all-reduce.
        """
        try:
            if peer_id != self.peer_id:
                await self._talk_to(peer_id)
            elif self._round_own_parts:
                await self._reduce_rounded_parts()
            else:
                await self._reduce_own_parts()
        except Exception:
            self._note_trouble(peer_id)
            self._on_fault()
            if peer_id in self.sender_peer_ids and peer_id not in self.active_senders:
                # It is gone, and has sent nothing: without the ban this peer, as a reducer, would wait for its parts.
                await self._ban_sender(peer_id)
            raise

    async def _reduce_own_parts(self) -> None:
        """This peer's own parts are averaged as they are.

        Each is noted just before it is averaged: if all were noted first, all others would wait for that.
        """
        own, sender = self.ordered_peer_ids.index(self.peer_id), self.sender_peer_ids.index(self.peer_id)
        for index, part in enumerate(self.parts_for_local_averaging):
            if self.books is not None:
                await self.books.note_own(index, self.weight)
            averaged = await self.tensor_part_reducer.accumulate_part(sender, index, part, weight=self.weight)
            self.tensor_part_container.register_processed_part(own, index, averaged - part)

    async def _reduce_rounded_parts(self) -> None:
        """This peer's own parts go through the codec before they are averaged, as everybody else's do."""
        container = self.tensor_part_container
        own, sender = self.ordered_peer_ids.index(self.peer_id), self.sender_peer_ids.index(self.peer_id)
        index = 0
        async for message in container.iterate_input_parts_for(own):
            if self.books is not None:
                await self.books.note_sent(self.peer_id, message, self.weight)
            rounded = deserialize_torch_tensor(message)
            averaged = await self.tensor_part_reducer.accumulate_part(sender, index, rounded, weight=self.weight)
            container.register_processed_part(own, index, averaged - rounded)
            index += 1

    async def _talk_to(self, peer_id: PeerID) -> None:
        """hivemind's exchange with a reducer; it also ends if this peer is in client mode and the reducer is gone.

        In hivemind a peer in client mode reads nothing until it has sent everything. A reducer that is gone takes
        nothing more, so the peer would never come to read that.
        """
        talking = self._talks[peer_id] = asyncio.ensure_future(super()._communicate_with_peer(peer_id))
        try:
            await talking
        except asyncio.CancelledError:
            # Either this reducer has hung up, which fails its parts only, or the whole all-reduce is cancelled, which
            # must be passed on.
            if peer_id in self._hung_up:
                raise AllreduceException(f"{peer_id} has ended the exchange") from None
            raise

    def _note_hang_up(self, peer_id: PeerID) -> None:
        """A reducer will not answer this peer, which is still sending."""
        self._hung_up.add(peer_id)
        self._talks[peer_id].cancel()

    def _check_answer(self, peer_index: int, part: torch.Tensor) -> None:
        """Refuses a reducer's answer that would spoil this peer's tensors."""
        peer = self.ordered_peer_ids[peer_index]
        if peer != self.peer_id and not bool(torch.isfinite(part).all()):
            self._faulty.add(peer)
            raise AllreduceException(f"{peer} has sent numbers that are not finite")
        self._answered[peer] += 1
        self._answered_at[peer] = time.monotonic()
        self._first_answered.setdefault(peer, self._answered_at[peer] - self._began)

    def _get_peer_stub(self, peer: PeerID) -> _CountingStub:
        """How a reducer is called: bytes are counted, and the stream is closed by its reader (see `streams`)."""
        on_hang_up = partial(self._note_hang_up, peer) if self.should_delay_results(self.peer_id) else None
        answers = self.tensor_part_container.num_parts_by_peer[self.ordered_peer_ids.index(peer)]
        return _CountingStub(super()._get_peer_stub(peer), peer, self, answers, on_hang_up)

    # -- as a reducer ----------------------------------------------------------------------------------------------

    async def _ban_sender(self, peer_id: PeerID) -> None:
        """Goes on without a sender. hivemind would wait until all senders have begun, this one included.

        Not if everything is averaged: a sender that has all its answers hangs up, perhaps before hivemind has ended its
        part, above all on a busy machine. hivemind takes that for a loss, and the group would repeat a whole average.
        """
        if self.tensor_part_reducer.finished.is_set():
            return
        if self.books is not None:
            self.books.forget(peer_id)
        await super()._ban_sender(peer_id)
        self._note_trouble(peer_id)
        self._on_fault()
        if self.active_senders | self.banned_senders >= set(self.sender_peer_ids):
            self.all_senders_started.set()

    async def _handle_missing_senders(self) -> None:
        """Bans the senders that have sent nothing in time."""
        before = set(self.banned_senders)
        await super()._handle_missing_senders()
        self._faulty |= (self.banned_senders - before - self.active_senders) & self.troubles

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """A sender's parts come, and their means go back.

        If this peer gives up, the sender is told at once, whatever it waits for. Nothing is awaited after the last
        part: the sender hangs up as soon as it has all answers, and its end of the stream may be lost.
        """
        sender = context.remote_id
        if sender in self._streaming:  # other parts than the first would make this peer's signed words look like lies
            yield averaging_pb2.AveragingData(code=averaging_pb2.PROTOCOL_VIOLATION)
            return
        self._streaming.add(sender)
        parts = first_of(stream, self.tensor_part_reducer.num_parts)
        if self.books is not None and context.remote_id in self.sender_peer_ids:
            parts = self.books.taking(context.remote_id, parts)
        answers = super().rpc_aggregate_part(self._incoming(parts, context.remote_id), context)
        while True:
            # hivemind's next answer may need other senders' parts, for which it waits as long as its time-outs allow.
            # Waiting for `_given_up` besides ends that at once.
            coming = asyncio.ensure_future(anext(answers, None))
            try:
                await asyncio.wait({coming, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
                    return
                message = await coming
            finally:
                coming.cancel()
            if message is None:
                return
            if self.books is not None and message.code == averaging_pb2.AVERAGED_PART:
                await self.books.sign_answer(context.remote_id, message)
            self._bytes_sent += len(message.tensor_part.buffer)
            yield message

    async def _incoming(self, stream: AsyncIterator, sender: PeerID | None = None) -> AsyncIterator:
        async for message in stream:
            self._bytes_received += len(message.tensor_part.buffer)
            # Else whatever is computed with the tensor would be noted for a backward pass, and never freed.
            message.tensor_part.requires_grad = False
            if sender is not None:
                self._weights[sender], self._sent_at[sender] = message.weight, time.monotonic()
                self._first_sent.setdefault(sender, self._sent_at[sender] - self._began)
            yield message

    async def _outgoing(self, stream: AsyncIterator, reducer: PeerID) -> AsyncIterator:
        async for message in stream:
            self._bytes_sent += len(message.tensor_part.buffer)
            yield message
        self._has_all_of_mine.add(reducer)


class _CountingStub:
    """A groupmate's reducer, with the bytes to and from it counted.

    Args:
        stub: hivemind's.
        peer: Whose.
        runner: Counts.
        count: Answers that must come; then the stream is closed.
        on_hang_up: Called if the stream ends before the first answer, or that answer is a refusal. None: the caller
            reads answers while it sends, and sees that by itself.
    """

    def __init__(
        self,
        stub: object,
        peer: PeerID,
        runner: ReportingRunner,
        count: int,
        on_hang_up: Callable[[], None] | None = None,
    ):
        self._stub, self._peer, self._runner = stub, peer, runner
        self._count, self._on_hang_up = count, on_hang_up

    async def rpc_aggregate_part(self, parts: AsyncIterator) -> AsyncIterator:
        books = self._runner.books
        parts = parts if books is None else books.sending(self._peer, parts)
        stream = first_of(await self._stub.rpc_aggregate_part(self._runner._outgoing(parts, self._peer)), self._count)
        answers = self._runner._incoming(stream if books is None else books.answered(self._peer, stream))
        return answers if self._on_hang_up is None else self._listening(answers)

    def _listening(self, answers: AsyncIterator) -> AsyncIterator:
        # Asks for the first answer now, while hivemind still sends; hivemind would ask only afterwards.
        first = asyncio.ensure_future(anext(answers, None))

        def look(first: asyncio.Future) -> None:
            if not first.cancelled() and (first.exception() is not None or not _is_answer(first.result())):
                self._on_hang_up()

        async def all_answers() -> AsyncIterator:
            if (message := await first) is not None:
                yield message
                async for message in answers:
                    yield message

        first.add_done_callback(look)
        return all_answers()


def _beyond_usual(moments: dict[PeerID, float], peer: PeerID) -> float:
    """By how much one of these exceeds twice the median of the others.

    >>> _beyond_usual({"ada": 0.25, "grace": 0.5, "mallory": 4.0}, "mallory")
    3.5
    """
    others = sorted(moment for other, moment in moments.items() if other != peer)
    return moments[peer] - 2 * others[(len(others) - 1) // 2] if peer in moments and others else 0.0


def _is_answer(message: averaging_pb2.AveragingData | None) -> bool:
    return message is not None and message.code == averaging_pb2.AVERAGED_PART
