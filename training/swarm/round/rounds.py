"""All-reduces of a peer: each is repeated until its group agrees that the result counts.

hivemind changes a peer's tensors while the others' parts arrive. If a peer of the group dies then, the others are left
with averages that differ, and with no gradients to average again. Here tensors change when the group has agreed that
the all-reduce counts, or that it is repeated without the peers that are gone; see `agreement`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter

from training.swarm.defence.auditor import Auditor
from training.swarm.defence.clipping import Clipping
from training.swarm.engine.streams import until_hung_up
from training.swarm.node.signs_of_life import ping
from training.swarm.peers.groups import Attempt, Contribution, Group, RoundReport, spoilers
from training.swarm.peers.patience import limit_of
from training.swarm.peers.vigil import Vigil
from training.swarm.round.agreement import Agreement
from training.swarm.round.allreduce import ReportingRunner
from training.swarm.round.reducer import shortened_part_bytes

REPETITIONS = 2
"""An all-reduce is repeated so often at most; each time it takes the loss of another peer."""
IDS_KEPT = 65_536
"""Of groups that this peer was in; a group with one of these ids is none for it."""
LOOK_SECONDS = 0.1
"""A peer that waits for news of a group looks this often whether there are any."""
BANS_LOOK_SECONDS = 0.5
"""How often a running all-reduce looks whether one of its peers is banned."""
_AGREEMENTS_KEPT = 8
"""Peers that end late may still ask what was decided on the last few all-reduces."""


class RoundFailedError(AllreduceException):
    """A round that has come to nothing for this peer, whose tensors are as they were.

    Args:
        reason: What has happened.
        spoiled_by: See `RoundReport`.
    """

    def __init__(self, reason: str, spoiled_by: Mapping[str, float]):
        super().__init__(reason)
        self.spoiled_by = spoiled_by


@dataclass(frozen=True, kw_only=True, slots=True)
class Travel:
    """How tensors travel in an all-reduce."""

    compression: CompressionBase
    part_bytes: int
    round_own_parts: bool
    """See `ReportingRunner`."""
    chunk_seconds: float | None
    """Longest silence of a sender; a reducer, which waits for senders itself, may be silent twice as long."""
    clipping: Clipping | None = None
    """See `ReportingRunner`."""
    most_weight: float = math.inf
    """See `ReportingRunner`."""
    audited: bool = False
    """Whether reducers are checked, so that a peer may have to hold all senders' copies of a part."""

    def part_bytes_among(self, peers: int) -> int:
        """Longest part in a group of so many; all its peers must cut their tensors alike."""
        holds_all = self.clipping is not None or self.audited
        return shortened_part_bytes(self.part_bytes, peers) if holds_all else self.part_bytes


class AveragingMethod(Protocol):
    """Which all-reduces a round consists of, and of which tensors. `reducer` averages the parts."""

    phases: tuple[bytes, ...]
    """Names of the all-reduces that it takes; groupmates may begin each before this peer does."""

    async def average(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        """Averages the tensors in place.

        Raises:
            Exception: If that has failed; the tensors are then as they were.
        """


class Mean:
    """All tensors in one all-reduce."""

    phases = (b"",)

    async def average(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        """See `AveragingMethod`."""
        return await all_reduce(tensors, infos)


class AllReduces:
    """The all-reduces of this peer, by the ids of their groups, which groupmates name when they call.

    Args:
        connection: To the network.
        servicer: Class of the averager's process, whose calls groupmates answer.
        prefix: Of the averager.
        has_no_group: See `PatientMatchmaking.has_no_group`.
        auditor: Checks reducers; None: nobody does.
        is_banned: Whether a groupmate has been banned since it came into the group; an all-reduce ends then.
    """

    def __init__(
        self,
        connection: P2P,
        servicer: type[ServicerBase],
        prefix: str,
        *,
        has_no_group: Callable[[], bool],
        auditor: Auditor | None = None,
        is_banned: Callable[[PeerID], bool] = lambda peer: False,
    ):
        self._connection, self._servicer, self._prefix = connection, servicer, prefix
        self._is_banned = is_banned
        self._has_no_group, self._auditor = has_no_group, auditor
        self._runners: dict[bytes, asyncio.Future[ReportingRunner]] = {}
        self._used: dict[bytes, None] = {}
        """Digests of the ids of the latest groups, the oldest first."""
        self._agreements: dict[bytes, Agreement] = {}
        self._expecting = 0
        self._news = asyncio.Event()
        self._callers: dict[bytes, set[PeerID]] = {}
        """Of groups that this peer is in and lets wait: who has called."""
        self._closing: set[asyncio.Task] = set()
        self._newest: ReportingRunner | None = None

    @property
    def peer_id(self) -> PeerID:
        """This peer."""
        return self._connection.peer_id

    # -- which groups there are ------------------------------------------------------------------------------------

    @contextmanager
    def expecting_a_group(self) -> Iterator[None]:
        """Within this context a groupmate may know of a group that this peer has not heard of yet."""
        self._expecting += 1
        try:
            yield
        finally:
            self._expecting -= 1
            self._spread_news()

    def announce(self, *group_ids: bytes) -> None:
        """This peer is in these groups: what is sent to them waits until their all-reduces begin.

        Raises:
            AllreduceException: If one has the id of an earlier group. What this peer signs names the group: with one id
                for two groups, its words of both would contradict each other, and prove that it lies.
        """
        for group_id in group_ids:
            if (used := hashlib.sha256(group_id).digest()) in self._used:
                raise AllreduceException("a group has the id of an earlier one")
            self._used[used] = None
        while len(self._used) > IDS_KEPT:
            del self._used[next(iter(self._used))]
        for group_id in group_ids:
            self._runners[group_id] = asyncio.get_running_loop().create_future()
        self._spread_news()

    def forget(self, *group_ids: bytes) -> None:
        """These are over."""
        for group_id in group_ids:
            if (runner := self._runners.pop(group_id, None)) is not None:
                runner.cancel()  # if it has not begun, nobody needs to wait for it
        self._spread_news()

    def _spread_news(self) -> None:
        # Each news has an event of its own, which stays set: clearing a common one could outrun a peer that waits.
        self._news.set()
        self._news = asyncio.Event()

    async def called_by_most(self, group_id: bytes, peers: Sequence[PeerID]) -> None:
        """Returns when more than half of the others average with this peer's group, which it has not announced yet.

        Of a pair nobody can tell who is right, so one other peer is never enough.

        Args:
            group_id: Of the group.
            peers: All of the group.
        """
        others = set(peers) - {self.peer_id}
        callers = self._callers[group_id] = set()
        try:
            self._spread_news()  # those that have called before are counted as well
            while len(callers & others) < max(2, len(others) // 2 + 1):
                await self._news.wait()
        finally:
            del self._callers[group_id]

    async def _is_member_of(self, group_id: bytes, caller: PeerID) -> bool:
        """Whether this peer is in the group; waits while it may be about to hear of it."""
        while group_id not in self._runners and self._expecting and not self._has_no_group():
            if (callers := self._callers.get(group_id)) is not None and caller not in callers:
                callers.add(caller)
                self._spread_news()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
        return group_id in self._runners

    async def _runner_of(self, group_id: bytes, caller: PeerID) -> ReportingRunner | None:
        """The group's all-reduce, when it has begun; None if this peer is not in the group, or it has failed."""
        if not await self._is_member_of(group_id, caller):
            return None
        begun = self._runners[group_id]
        # Other calls wait for the same future. `await begun` would cancel it for all of them when one caller hangs up.
        await asyncio.wait([begun])
        return None if begun.cancelled() else begun.result()

    # -- calls of groupmates ---------------------------------------------------------------------------------------

    async def aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """A groupmate sends its parts; their means.

        hivemind never answers for a group that it does not know of; here the answer is BAD_GROUP_ID, so that the
        sender's group can repeat the all-reduce without this peer at once.
        """
        request = await anext(stream)
        runner = await self._runner_of(request.group_id, context.remote_id)
        if runner is None:
            yield averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
            return
        async for message in until_hung_up(runner.rpc_aggregate_part(achain(as_aiter(request), stream), context)):
            yield message

    async def agree(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader:
        """A groupmate tells its verdict on an all-reduce; the answer is the group's decision, or that there is none."""
        # Agreements are kept for longer than runners: the all-reduce may be over here when a late groupmate asks.
        if request.group_id not in self._agreements:
            await self._runner_of(request.group_id, context.remote_id)
        agreement = self._agreements.get(request.group_id)
        if agreement is None:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_ID)
        return await agreement.hear(context.remote_id, request)

    # -- this peer's part ------------------------------------------------------------------------------------------

    async def attempt(
        self,
        tensors: Sequence[torch.Tensor],
        infos: Sequence[CompressionInfo] | None,
        group: Group,
        *,
        contribution: Contribution,
        travel: Travel,
        is_repetition: bool = False,
    ) -> Attempt:
        """One all-reduce of an announced group, and the group's decision on it. Changes no tensors.

        It ends as soon as this peer knows that it has failed for anybody: the whole group must repeat it then.
        """
        over = asyncio.Event()
        runner = ReportingRunner(
            p2p=self._connection,
            servicer_type=self._servicer,
            prefix=self._prefix,
            tensors=tensors,
            tensor_infos=infos,
            weight=contribution.weight,
            group_id=group.group_id,
            ordered_peer_ids=group.peers,
            peer_fractions=group.fractions,
            compression=travel.compression,
            part_size_bytes=travel.part_bytes_among(len(group.peers)),
            sender_timeout=travel.chunk_seconds,
            reducer_timeout=2 * travel.chunk_seconds if travel.chunk_seconds is not None else None,
            round_own_parts=travel.round_own_parts,
            clipping=travel.clipping,
            most_weight=travel.most_weight,
            unvouched=group.unvouched,
            plan=self._auditor.plan() if self._auditor is not None else None,
            patience_seconds=limit_of(contribution, len(group.peers), travel.chunk_seconds),
            on_fault=over.set,
        )
        agreement = self._begin(group, runner, on_bad_verdict=over.set, is_repetition=is_repetition)
        async with self._watching(group, runner, agreement):
            updates, fault = await self._collect(runner, len(tensors), over)
            report = runner.report()  # before the agreement, whose time is not that of the average
            if self._auditor is not None and fault is None and not report.torn:
                await self._auditor.begin_checks(runner.books)
            with self.expecting_a_group():  # parts of a repetition may come before this peer knows of it
                decision = await agreement.reach(runner.verdict(fault, is_repetition=is_repetition))
        if self._auditor is not None:  # the tensors change next
            self._auditor.close(runner.books)
        return Attempt(
            report=replace(report, **runner.traffic),  # answers to slower groupmates have left during the agreement
            decision=decision,
            updates=updates,
            fault=fault,
            weight=contribution.weight,
            absent=frozenset(agreement.absent),
            troubles=frozenset(runner.troubles),
        )

    def _begin(
        self,
        group: Group,
        runner: ReportingRunner,
        *,
        on_bad_verdict: Callable[[], None],
        is_repetition: bool = False,
    ) -> Agreement:
        """From now on groupmates' calls reach the runner and the agreement."""
        agreement = self._agreements[group.group_id] = Agreement(
            own=self.peer_id,
            group_id=group.group_id,
            peers=group.peers,
            referees=[peer for peer, fraction in zip(group.peers, group.fractions, strict=True) if fraction > 0],
            ask=self._ask,
            on_bad_verdict=on_bad_verdict,
            is_repetition=is_repetition,
        )
        while len(self._agreements) > _AGREEMENTS_KEPT:
            del self._agreements[next(iter(self._agreements))]
        if self._auditor is not None:
            self._auditor.open(runner.books)
        self._runners[group.group_id].set_result(runner)
        self._newest = runner
        return agreement

    @asynccontextmanager
    async def _watching(self, group: Group, runner: ReportingRunner, agreement: Agreement) -> AsyncIterator[None]:
        """Within this context groupmates that are gone or banned are not waited for."""
        called = frozenset(peer for peer, share in zip(group.peers, group.fractions, strict=True) if share > 0)

        def note_gone(peer: PeerID) -> None:
            agreement.note_gone(peer)
            runner.note_gone(peer)

        async def answers(peer: PeerID, seconds: float) -> bool:
            return await ping(self._connection, peer, seconds) is not None

        async def cut_the_banned() -> None:
            while True:
                await asyncio.sleep(BANS_LOOK_SECONDS)
                for peer in filter(self._is_banned, group.peers):
                    agreement.bar(peer)
                    runner.note_gone(peer)

        vigil = Vigil(answers, lambda: (runner.late_peers() & called) | agreement.asked, note_gone)
        watches = [asyncio.create_task(watch) for watch in (vigil.watch(), cut_the_banned())]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()

    def late_peers(self) -> frozenset[PeerID]:
        """For whom the newest all-reduce waits here."""
        return self._newest.late_peers() if self._newest is not None else frozenset()

    async def _collect(
        self, runner: ReportingRunner, count: int, over: asyncio.Event
    ) -> tuple[tuple[torch.Tensor, ...], Exception | None]:
        """Runs an all-reduce until this peer has all results, or anybody's has failed; the results, and the fault."""
        updates: list[torch.Tensor] = []
        collecting = asyncio.create_task(_take_results(runner, updates, count, over))
        # When this peer has everything, a slow groupmate may still need its parts, so the task goes on.
        self._closing.add(collecting)
        collecting.add_done_callback(self._closing.discard)
        fault: Exception | None = AllreduceException("a peer was lost")
        watch = asyncio.create_task(runner.patience.watch())
        try:
            await over.wait()
        finally:  # also if the round is cancelled because it has lasted too long
            watch.cancel()  # during the agreement nobody sends
            if len(updates) == count:
                fault = None
            elif collecting.done() and collecting.result() is not None:
                fault = collecting.result()
            if fault is not None:
                runner.finalize(cancel=True)  # peers that wait for parts of this one end as well
        return tuple(updates), fault

    async def _ask(self, referee: PeerID, verdict: averaging_pb2.MessageFromLeader) -> averaging_pb2.MessageFromLeader:
        return await self._servicer.get_stub(self._connection, referee, namespace=self._prefix).rpc_agree(verdict)


async def _take_results(
    runner: ReportingRunner, updates: list[torch.Tensor], count: int, over: asyncio.Event
) -> Exception | None:
    """Runs an all-reduce to its end, and appends its results to `updates`; returns its fault."""
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


@dataclass(frozen=True, kw_only=True)
class GroupAllReduce:
    """Averages tensors with a group, with as many repetitions as that takes."""

    all_reduces: AllReduces
    group: Group
    contribution: Contribution
    travel: Travel

    async def __call__(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None = None, *, phase: bytes = b""
    ) -> RoundReport:
        """Changes the tensors to the group's mean; until then, the results take 4 bytes a value beside them.

        A peer keeps its tensors if all others of its group are gone, or if the last repetition has failed as well.

        Raises:
            RoundFailedError: If nothing has changed and another group may average the same tensors.
        """
        began, group = time.monotonic(), replace(self.group, group_id=self.group.group_id + phase)
        attempts: list[Attempt] = []
        while True:
            last = await self._attempt(tensors, infos, group, is_repetition=bool(attempts))
            attempts.append(last)
            left = group.of(last.decision)
            if not self._can_repeat(last, left, len(attempts)):
                break
            group = left
        report = self._report(attempts, left=group.peers if last.decision.counts else left.peers)
        if self._keeps_own(last, len(attempts)):
            report = replace(report, senders=1, own_share=1.0, weight=last.weight)
        elif last.fault is not None or not last.decision.counts:  # for example, the others repeat it without this peer
            reason = str(last.fault or "the group has given this all-reduce up")
            raise RoundFailedError(reason, report.spoiled_by) from last.fault
        else:
            for tensor, update in zip(tensors, last.updates, strict=True):
                tensor.add_(update)
        return replace(report, seconds=time.monotonic() - began)

    async def _attempt(
        self,
        tensors: Sequence[torch.Tensor],
        infos: Sequence[CompressionInfo] | None,
        group: Group,
        *,
        is_repetition: bool,
    ) -> Attempt:
        if is_repetition:  # the groups of the first attempts were announced when the round found its group
            self.all_reduces.announce(group.group_id)
        try:
            return await self.all_reduces.attempt(
                tensors,
                infos,
                group,
                contribution=self.contribution,
                travel=self.travel,
                is_repetition=is_repetition,
            )
        finally:
            if is_repetition:
                self.all_reduces.forget(group.group_id)

    def _can_repeat(self, attempt: Attempt, left: Group, attempts: int) -> bool:
        """Whether this peer repeats the all-reduce with those who are left."""
        if attempt.decision.counts or attempts > REPETITIONS:
            return False
        return self.all_reduces.peer_id in left.peers and len(left.peers) > 1 and any(left.fractions)

    def _keeps_own(self, attempt: Attempt, attempts: int) -> bool:
        """Whether this peer's tensors stay as they are: nobody else is left, or the last repetition has failed.

        After a failed repetition one peer may hold all answers and another one only some: with these, their tensors
        would differ.
        """
        own, members = self.all_reduces.peer_id, attempt.decision.members
        gave_up = attempts > REPETITIONS and own in members
        return gave_up or members == (own,)

    def _report(self, attempts: Sequence[Attempt], *, left: Sequence[PeerID]) -> RoundReport:
        """What the attempts did together; the last one's result is the round's."""
        last, own = attempts[-1], self.all_reduces.peer_id
        absent = frozenset().union(*(attempt.absent for attempt in attempts))
        lost = [peer for peer in self.group.peers if peer not in (*left, own)]
        return replace(
            last.report,
            group_size=len(self.group.peers),
            repeated=len(attempts) - 1,
            lost=tuple(str(peer) for peer in lost),
            absent=tuple(str(peer) for peer in lost if peer in absent),
            spoiled_by=spoilers(attempts, self.group, lost, own),
            torn=last.report.torn or last.decision.solitary or not last.decision.counts,
            bytes_sent=sum(attempt.report.bytes_sent for attempt in attempts),
            bytes_received=sum(attempt.report.bytes_received for attempt in attempts),
        )
