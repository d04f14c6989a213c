"""Averagers that report each round, and whose groups agree on what counts.

hivemind changes a peer's tensors while the others' parts arrive. If a peer of the group dies then, the others are left
with averages that differ, and with no gradients to average again. Here tensors change when the group has agreed that
the all-reduce counts, or that it is repeated without those who are gone; see `agreement`.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import queue
import time
from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import AsyncIterator  # noqa: UP035  hivemind knows this one alone

import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter
from hivemind.utils.timed_storage import get_dht_time

from calculator.exchange import part_bytes
from training.swarm.agreement import Agreement
from training.swarm.allreduce import ReportingRunner
from training.swarm.groups import Attempt, AveragedGroup, Group, RoundReport
from training.swarm.matchmaking import PatientMatchmaking
from training.swarm.streams import until_hung_up

REPETITIONS = 2
"""An all-reduce is repeated so often at most; each time it takes the loss of another peer."""

LOOK_SECONDS = 0.1
"""A peer that waits for news of a group looks this often whether there are any."""
_AGREEMENTS_KEPT = 8
"""Peers that end late may still ask what was decided on the last few all-reduces."""


class _Control(StepControl):
    """A step that can be cancelled at any time.

    hivemind tells the averager's process first and marks the step then: a process that looks in between finds nothing
    to do, and goes on to average. And there a second cancel is an error.
    """

    def cancel(self) -> bool:
        """See hivemind."""
        marked = super(StepControl, self).cancel()
        return marked if self._cancel is None or self._cancel.done() else super().cancel()


class ReportingAverager(DecentralizedAverager):
    """An averager whose results are `AveragedGroup`s, and whose groups wait for the peers that are expected.

    `expected_group_size` says how many these are, 0 that nobody knows; see `PatientMatchmaking`.
    """

    _rpc_handlers = None
    _stub_type = None
    round_own_parts = False
    """See `ReportingRunner`."""

    def __init__(self, averaged_tensors: Sequence[torch.Tensor], *args, epochs_apart: int = 0, **kwargs):
        self._epochs_apart = epochs_apart
        self.reports: queue.SimpleQueue[RoundReport] = queue.SimpleQueue()
        self._expected_group_size = multiprocessing.Value(ctypes.c_int, 0)
        self._last_report: RoundReport | None = None
        self._agreements: dict[bytes, Agreement] = {}
        self.last_round: tuple[StepControl, float] | None = None
        """The last one that runs in the background, and when its search for a group began (monotonic clock)."""
        self.is_new = True
        """Whether it has been in no average with others yet."""
        self._steps = 0
        self._closing: set[asyncio.Task] = set()
        kwargs.setdefault("part_size_bytes", part_bytes(sum(tensor.numel() for tensor in averaged_tensors)))
        super().__init__(averaged_tensors, *args, **kwargs)

    @property
    def expected_group_size(self) -> int:
        """How many peers the next group is expected to have; 0 if unknown."""
        return self._expected_group_size.value

    @expected_group_size.setter
    def expected_group_size(self, value: int) -> None:
        self._expected_group_size.value = value

    def step(self, *args, **kwargs):
        """See hivemind; besides, each round that has ended well puts its report into `reports`."""
        outcome = super().step(*args, **kwargs)
        if isinstance(outcome, StepControl):
            outcome.__class__ = _Control  # hivemind makes it
            self.last_round = outcome, time.monotonic()
            self._weigh(outcome)
            outcome.add_done_callback(self._keep_report)
        elif isinstance(outcome, AveragedGroup):
            self.reports.put(outcome.report)
        return outcome

    def _weigh(self, control: StepControl) -> None:
        """Sets this peer's weight in a round that begins, if it is not hivemind's."""

    def _keep_report(self, control: StepControl) -> None:
        if not control.cancelled() and control.exception() is None and isinstance(control.result(), AveragedGroup):
            self.reports.put(control.result().report)
            self.is_new &= control.result().report.senders < 2

    async def _step(self, *, step: StepControl, future_for_init: object) -> None:
        """In the averager's process: one round, from looking for a group on."""
        if not isinstance(self._matchmaking, PatientMatchmaking):
            self._matchmaking = PatientMatchmaking(
                self._p2p, self.schema_hash, self.dht, client_mode=self.client_mode, **self.matchmaking_kwargs
            )
            self._matchmaking.epochs_apart = self._epochs_apart
        self._matchmaking.expect(self._expected_group_size.value)
        self._steps += 1
        try:
            with suppress(InvalidStateError):  # the trainer gave this round up while it ended
                await super()._step(step=step, future_for_init=future_for_init)
        finally:
            self._steps -= 1
            if not self._steps:  # a group that was found as the step was cancelled gets an answer, not silence
                self._pending_groups_registered.set()

    async def _aggregate_with_group(self, group_info: GroupInfo, *args, **kwargs) -> AveragedGroup:
        gathered = await super()._aggregate_with_group(group_info, *args, **kwargs)
        return AveragedGroup.of_those_left(gathered, self._last_report)

    async def _run_allreduce_inplace_(
        self,
        tensors: Sequence[torch.Tensor],
        group_info: GroupInfo,
        group_id: bytes | None = None,
        *,
        peer_fractions: Sequence[float],
        **kwargs,
    ) -> None:
        """As in hivemind, but tensors change when the group has agreed on the result; takes 4 bytes a value until then.

        A peer keeps its tensors if all of its group are gone, or if each repetition has failed as well.
        """
        began, sent, received, absent = time.monotonic(), 0, 0, set()
        first_id = group_info.group_id if group_id is None else group_id
        group = Group(group_id=first_id, peers=tuple(group_info.peer_ids), fractions=tuple(peer_fractions))
        for repeated in range(REPETITIONS + 1):
            try:
                attempt = await self._all_reduce(tensors, group, **kwargs)
            finally:
                self._pending_groups_registered.set()
                if group.group_id != first_id:
                    self._running_groups.pop(group.group_id, None)
            sent, received = sent + attempt.report.bytes_sent, received + attempt.report.bytes_received
            absent |= attempt.absent
            rest = group.of(attempt.decision)
            if attempt.decision.counts or len(rest.peers) < 2 or not any(rest.fractions):
                break
            if self.peer_id not in rest.peers or repeated == REPETITIONS:
                break
            group = rest
        left = group.peers if attempt.decision.counts else rest.peers
        lost = [peer for peer in group_info.peer_ids if peer not in (*left, self.peer_id)]
        report = replace(
            attempt.report,
            group_size=group_info.group_size,
            repeated=repeated,
            lost=tuple(str(peer) for peer in lost),
            absent=tuple(str(peer) for peer in lost if peer in absent),
            torn=attempt.report.torn or attempt.decision.solitary or not attempt.decision.counts,
        )
        gave_up = attempt.fault is not None and repeated == REPETITIONS and self.peer_id in attempt.decision.members
        if gave_up or attempt.decision.members == (self.peer_id,):
            report = replace(report, senders=1, own_share=1.0, weight=attempt.weight)
        elif attempt.fault is not None:
            raise attempt.fault  # nothing has changed: hivemind looks for another group with the same tensors
        else:
            for tensor, update in zip(tensors, attempt.updates, strict=False):  # an auxiliary peer has no updates
                tensor.add_(update, alpha=self._averaging_alpha)
            self.last_updated = get_dht_time()
            self._state_updated.set()
        self._last_report = replace(report, bytes_sent=sent, bytes_received=received, seconds=time.monotonic() - began)

    async def _all_reduce(self, tensors: Sequence[torch.Tensor], group: Group, **kwargs) -> Attempt:
        """One all-reduce of a group, and what the group thinks of it. Changes no tensors.

        It ends as soon as this peer knows that it has failed for anybody: the whole group must repeat it then.
        """
        over = asyncio.Event()
        runner = ReportingRunner(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group.group_id,
            ordered_peer_ids=group.peers,
            peer_fractions=group.fractions,
            round_own_parts=self.round_own_parts,
            on_fault=over.set,
            **kwargs,
        )
        agreement = self._agreements[group.group_id] = Agreement(
            own=self.peer_id,
            group_id=group.group_id,
            peers=group.peers,
            referees=[peer for peer, fraction in zip(group.peers, group.fractions, strict=True) if fraction > 0],
            ask=self._ask,
            on_bad_verdict=over.set,
        )
        while len(self._agreements) > _AGREEMENTS_KEPT:
            del self._agreements[next(iter(self._agreements))]
        self._running_groups.setdefault(group.group_id, asyncio.Future()).set_result(runner)
        self._pending_groups_registered.set()
        updates: list[torch.Tensor] = []
        collecting = asyncio.create_task(_collect(runner, updates, len(tensors), over))
        self._closing.add(collecting)  # when all is here, a slow groupmate may still want something
        collecting.add_done_callback(self._closing.discard)
        try:
            await over.wait()
        finally:
            fault = collecting.result() if collecting.done() else AllreduceException("a peer was lost")
            if len(updates) == len(tensors):
                fault = None
            if fault is not None:
                runner.finalize(cancel=True)  # so that those end as well who wait for parts of this peer
        report = runner.report()
        self._pending_groups_registered.clear()  # parts of a repetition may come before this peer knows of it
        decision = await agreement.reach(runner.verdict(fault))
        return Attempt(
            report=replace(report, **runner.traffic),
            decision=decision,
            updates=tuple(updates),
            fault=fault,
            weight=runner.weight,
            absent=frozenset(agreement.absent),
        )

    async def _ask(self, referee: PeerID, verdict: averaging_pb2.MessageFromLeader) -> averaging_pb2.MessageFromLeader:
        return await type(self).get_stub(self._p2p, referee, namespace=self.prefix).rpc_agree(verdict)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """See hivemind, where who is in no group is silent until it is in one; here it says so."""
        request = await anext(stream)
        if not await self._may_know(request.group_id):
            yield averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
            return
        async for message in until_hung_up(super().rpc_aggregate_part(achain(as_aiter(request), stream), context)):
            yield message

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """See hivemind."""
        async for message in until_hung_up(super().rpc_join_group(request, context)):
            yield message

    async def _may_know(self, group_id: bytes) -> bool:
        """Waits while this peer may be about to hear of the group; whether it can know it then."""
        while group_id not in self._running_groups and not self._pending_groups_registered.is_set():
            if isinstance(self._matchmaking, PatientMatchmaking) and self._matchmaking.has_no_group:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._pending_groups_registered.wait(), LOOK_SECONDS)
        return True

    async def rpc_agree(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader:
        """A groupmate tells how its all-reduce went, and asks what the group makes of it."""
        if request.group_id not in self._agreements:
            await self._may_know(request.group_id)
            if (begun := self._running_groups.get(request.group_id)) is not None:
                await asyncio.shield(begun)
        agreement = self._agreements.get(request.group_id)
        if agreement is None:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_ID)
        return await agreement.hear(context.remote_id, request)


async def _collect(
    runner: ReportingRunner, updates: list[torch.Tensor], count: int, over: asyncio.Event
) -> Exception | None:
    """Takes an all-reduce's results and sees it to its end, which an auxiliary peer awaits without any; its fault."""
    try:
        async for update in runner:
            updates.append(update)
            if len(updates) == count:
                over.set()
    except Exception as error:
        return error
    finally:
        over.set()
    return None
