"""Rounds of this peer: each all-reduce is repeated until its group agrees that the result counts.

A peer's tensors change only when the group has agreed that the all-reduce counts (`agreement`). If a peer of the group
is lost meanwhile, the others still have the values that they brought, and repeat the all-reduce without that peer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from hivemind.compression import CompressionInfo, NoCompression
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import averaging_pb2

from calculator.swarm.exchange import GATHERED_PARTS, LARGEST_PART_BYTES
from training.swarm.node.slow_nodes import ping
from training.swarm.peers.groups import AllReduceError, Contribution, Group, RoundReport
from training.swarm.peers.liveness import Liveness, limit_of
from training.swarm.peers.times import LOOK_SECONDS, POLL_SECONDS
from training.swarm.round.agreement import Agreement, Decision
from training.swarm.round.allreduce import AllReduce, Travel, Trouble
from training.swarm.round.guard import RoundGuard

REPETITIONS = 2
"""Most repetitions of an all-reduce; each is due to the loss of another peer."""
DOUBT = 0.75
"""Weight of a fault that may be another peer's. An honest peer is seldom suspected with others three times."""
SMALLEST_GATHERED_BYTES = 1 << 10
"""Least length of such a part. Its message has some 40 bytes more."""
_AGREEMENTS_KEPT = 8
"""Number of the last all-reduces for which late peers may still ask for the decision."""


class RoundFailedError(AllReduceError):
    """A round has failed for this peer, whose tensors are unchanged.

    Args:
        reason: Description of the failure, for people.
        spoiled_by: Weights of the evidence against peers; see `RoundReport`.
    """

    def __init__(self, reason: str, spoiled_by: Mapping[str, float]):
        super().__init__(reason)
        self.spoiled_by = spoiled_by


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Result of one all-reduce, before any tensor is changed."""

    report: RoundReport
    decision: Decision
    updates: tuple[torch.Tensor, ...]
    """Difference of each tensor to its average; arbitrary numbers if there is a fault."""
    fault: Exception | None
    """Error that ended the all-reduce early; None if all results came."""
    absent: frozenset[PeerID]
    """Groupmates that are alive and say that they are not in the group."""
    troubles: frozenset[PeerID] = frozenset()
    """Groupmates with which this peer's own exchange has failed."""


class AveragingMethod(Protocol):
    """Sequence of all-reduces that make up a round."""

    phases: tuple[bytes, ...]
    """Names of the all-reduces that make up the round; groupmates may begin each before this peer does."""

    async def average(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        """Averages the tensors in place.

        Raises:
            Exception: If averaging has failed; the tensors are then unchanged.
        """


class Mean:
    """Method that averages all tensors in one all-reduce."""

    phases = (b"",)

    async def average(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        """Averages all tensors in place by one all-reduce; see `AveragingMethod`."""
        return await all_reduce(tensors, infos)


class AllReduces:
    """All-reduces of this peer, by the ids of their groups, which groupmates name when they call.

    Args:
        connection: This peer's connection to the network.
        servicer: Class of the averager's process, whose calls groupmates answer.
        prefix: Prefix of the averager.
        has_no_group: Returns True if this peer is certainly in no group; see `Matchmaking.has_no_group`.
        guard: Watches all messages; None: no guard.
        is_banned: Returns True if a groupmate has been banned since it came into the group; the all-reduce ends then.
    """

    def __init__(
        self,
        connection: P2P,
        servicer: type[ServicerBase],
        prefix: str,
        *,
        has_no_group: Callable[[], bool],
        guard: RoundGuard | None = None,
        is_banned: Callable[[PeerID], bool] = lambda peer: False,
    ):
        self._connection, self._servicer, self._prefix = connection, servicer, prefix
        self._is_banned, self._has_no_group, self._guard = is_banned, has_no_group, guard
        self._begun: dict[bytes, asyncio.Future[AllReduce]] = {}
        self._agreements: dict[bytes, Agreement] = {}
        self._expecting = 0
        self._news = asyncio.Event()
        self._callers: dict[bytes, set[PeerID]] = {}
        """Peers that have called, by group; only for groups in which this peer is and which wait for it."""
        self._newest: AllReduce | None = None

    @property
    def peer_id(self) -> PeerID:
        """Id of this peer."""
        return self._connection.peer_id

    # -- groups ------------------------------------------------------------------------------------------------------

    @contextmanager
    def expecting_a_group(self) -> Iterator[None]:
        """Context in which a groupmate may know of a group that this peer has not heard of yet."""
        self._expecting += 1
        try:
            yield
        finally:
            self._expecting -= 1
            self._spread_news()

    def announce(self, *group_ids: bytes) -> None:
        """Notes that this peer is in these groups: messages to them wait until their all-reduces begin."""
        for group_id in group_ids:
            self._begun[group_id] = asyncio.get_running_loop().create_future()
        self._spread_news()

    def forget(self, *group_ids: bytes) -> None:
        """Forgets groups that are over."""
        for group_id in group_ids:
            if (begun := self._begun.pop(group_id, None)) is not None:
                begun.cancel()  # if the all-reduce has not begun, nobody needs to wait for it
        self._spread_news()

    def _spread_news(self) -> None:
        # Each change has an event of its own, which stays set: clearing a common one could outrun a peer that waits.
        self._news.set()
        self._news = asyncio.Event()

    async def called_by_most(self, group_id: bytes, peers: Sequence[PeerID]) -> None:
        """Waits until more than half of the others average with a group whose all-reduce this peer has not begun yet.

        In a pair it is unknown which of the two is right, so one other peer is never enough.

        Args:
            group_id: Id of the group.
            peers: All peers of the group.
        """
        others = set(peers) - {self.peer_id}
        callers = self._callers[group_id] = set()
        try:
            self._spread_news()  # callers from before this call count as well
            while len(callers & others) < max(2, len(others) // 2 + 1):
                await self._news.wait()
        finally:
            del self._callers[group_id]

    # -- calls of groupmates ---------------------------------------------------------------------------------------

    async def is_member_of(self, group_id: bytes, caller: PeerID) -> bool:
        """Returns True if this peer is in the group; waits while this peer may be about to hear of the group.

        Args:
            group_id: Id of the group, as the caller names it.
            caller: Calling peer; it counts as one that averages already (`called_by_most`).
        """
        while group_id not in self._begun and self._expecting and not self._has_no_group():
            if (callers := self._callers.get(group_id)) is not None and caller not in callers:
                callers.add(caller)
                self._spread_news()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), POLL_SECONDS)
        return group_id in self._begun

    async def begun(self, group_id: bytes, caller: PeerID) -> AllReduce | None:
        """Waits until the group's all-reduce has begun, and returns it; None if this peer is not in the group, or gave
        it up."""
        if not await self.is_member_of(group_id, caller):
            return None
        begun = self._begun[group_id]
        # Other calls wait for the same future. `await begun` would cancel it for all of them when one caller hangs up.
        await asyncio.wait([begun])
        return None if begun.cancelled() else begun.result()

    async def agree(self, request: averaging_pb2.MessageFromLeader, caller: PeerID) -> averaging_pb2.MessageFromLeader:
        """Takes a groupmate's verdict on an all-reduce. Returns the group's decision, or a refusal if there is none.

        `Agreement.hear` refuses callers that are not in the group.
        """
        # Agreements are kept for longer than all-reduces: one may be over here when a late groupmate asks.
        if request.group_id not in self._agreements:
            await self.begun(request.group_id, caller)
        agreement = self._agreements.get(request.group_id)
        if agreement is None:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_ID)
        return await agreement.hear(caller, request)

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
        """Runs one all-reduce of an announced group, and waits for the group's decision on it. Changes no tensors.

        It ends as soon as this peer hears that it has failed for any member, since the whole group must repeat it.
        """
        over = asyncio.Event()
        one = AllReduce(
            own=self.peer_id,
            group=group,
            tensors=tensors,
            infos=infos,
            weight=contribution.weight,
            travel=travel,
            call=self._send_parts,
            guard=self._guard,
            late_seconds=limit_of(contribution, len(group.peers), travel.chunk_seconds),
            on_fault=over.set,
        )
        agreement = self._begin(group, one, on_bad_verdict=over.set, is_repetition=is_repetition)
        async with self._watching(group, one, agreement):
            fault = await _run(one, over)
            report = one.report()  # before the agreement, whose time is not part of the average's
            if one.guard is not None and fault is None and not report.torn:
                await one.guard.finished()
            with self.expecting_a_group():  # parts of a repetition may come before this peer knows of the repetition
                decision = await agreement.reach(one.verdict(fault, is_repetition=is_repetition))
        return Attempt(
            # Answers to slower groupmates have left during the agreement.
            report=replace(report, bytes_sent=one.bytes_sent, bytes_received=one.bytes_received),
            decision=decision,
            updates=one.updates,
            fault=fault,
            absent=frozenset(agreement.absent),
            troubles=one.in_trouble(Trouble.BROKEN),
        )

    def _begin(
        self, group: Group, one: AllReduce, *, on_bad_verdict: Callable[[], None], is_repetition: bool = False
    ) -> Agreement:
        """Lets groupmates' calls reach the all-reduce and the agreement from now on."""
        agreement = self._agreements[group.group_id] = Agreement(
            own=self.peer_id,
            group_id=group.group_id,
            peers=group.peers,
            referees=group.reducers,
            ask=self._ask,
            on_bad_verdict=on_bad_verdict,
            is_repetition=is_repetition,
        )
        while len(self._agreements) > _AGREEMENTS_KEPT:
            del self._agreements[next(iter(self._agreements))]
        self._begun[group.group_id].set_result(one)
        self._newest = one
        return agreement

    @asynccontextmanager
    async def _watching(self, group: Group, one: AllReduce, agreement: Agreement) -> AsyncIterator[None]:
        """Context in which groupmates that are gone or banned are not waited for."""
        called = frozenset(group.reducers)

        def note_gone(peer: PeerID) -> None:
            agreement.note_gone(peer)
            one.note_gone(peer)

        async def answers(peer: PeerID, seconds: float) -> bool:
            return await ping(self._connection, peer, seconds) is not None

        async def cut_the_banned() -> None:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                for peer in filter(self._is_banned, group.peers):
                    note_gone(peer)

        liveness = Liveness(
            answers,
            late=one.late,
            asked=lambda: (one.late_peers() & called) | {agreement.asked} - {None},
            slow=one.slow,
            on_overdue=one.note_overdue,
            on_gone=note_gone,
        )
        watches = [asyncio.create_task(watch) for watch in (liveness.watch(), cut_the_banned())]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()

    def late_peers(self) -> frozenset[PeerID]:
        """Peers for which the newest all-reduce waits."""
        return self._newest.late_peers() if self._newest is not None else frozenset()

    async def _send_parts(
        self, reducer: PeerID, parts: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        stub = self._servicer.get_stub(self._connection, reducer, namespace=self._prefix)
        return await stub.rpc_aggregate_part(parts)

    async def _ask(self, referee: PeerID, verdict: averaging_pb2.MessageFromLeader) -> averaging_pb2.MessageFromLeader:
        return await self._servicer.get_stub(self._connection, referee, namespace=self._prefix).rpc_agree(verdict)


async def _run(one: AllReduce, over: asyncio.Event) -> Exception | None:
    """Runs an all-reduce until this peer has all results, or the all-reduce has failed for any peer; returns the
    fault."""
    running = asyncio.create_task(one.run())
    running.add_done_callback(lambda _: over.set())
    fault: Exception | None = AllReduceError("a peer was lost")
    try:
        await over.wait()
        if running.done():
            fault = running.exception()
    finally:  # also if the round is cancelled because it has lasted too long
        if fault is not None:
            one.give_up()
            running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
    return fault


@dataclass(frozen=True, kw_only=True)
class GroupAllReduce:
    """Averages tensors with a group; repeats the all-reduce when a peer is lost."""

    all_reduces: AllReduces
    group: Group
    contribution: Contribution
    travel: Travel

    async def __call__(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None = None, *, phase: bytes = b""
    ) -> RoundReport:
        """Changes the tensors to the group's mean; until then, the results take 4 bytes a value in addition.

        A peer keeps its tensors if all others of its group are gone, or if the last repetition has failed as well.

        Raises:
            RoundFailedError: If nothing has changed and another group may average the same tensors.
        """
        last, _, report = await self._agreed(tensors, infos, phase)
        if last is not None:
            for tensor, update in zip(tensors, last.updates, strict=True):
                tensor.add_(update)
        return report

    async def gather(self, message: torch.Tensor) -> tuple[dict[PeerID, torch.Tensor], RoundReport]:
        """Sends a message to all peers of the group, and gets theirs.

        As many bytes go up as if each peer sent its message to each other one. They go through the reducers, so a slow
        link sends fewer of them, and peers in client mode take part.

        Args:
            message: (length,) in uint8, equally long for all peers.

        Returns:
            Messages of all peers, in the group's order; only this peer's own if all others are gone, or if the last
            repetition has failed as well.

        Raises:
            RoundFailedError: If another group may exchange the same messages.
        """
        peers = len(self.group.peers)
        length = max(len(message) // (GATHERED_PARTS * peers), SMALLEST_GATHERED_BYTES)
        length = min(length, LARGEST_PART_BYTES // peers)  # an answer has a part of each peer
        travel = replace(self.travel, codec=NoCompression(), part_bytes=length, gathers=True)
        last, group, report = await replace(self, travel=travel)._agreed([message], None)
        own = self.all_reduces.peer_id
        if last is None:
            return {own: message}, report
        others = iter(last.updates[0])
        return {peer: message if peer == own else next(others) for peer in group.peers}, report

    async def _agreed(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None, phase: bytes = b""
    ) -> tuple[Attempt | None, Group, RoundReport]:
        """Repeats the all-reduce until its result counts. Returns the last attempt, its group and the report.

        The attempt is None if this peer keeps what it has; see `__call__`, also for errors.
        """
        began, group = time.monotonic(), replace(self.group, group_id=self.group.group_id + phase)
        attempts: list[Attempt] = []
        while True:
            last = await self._attempt(tensors, infos, group, is_repetition=bool(attempts))
            attempts.append(last)
            left = group.of(last.decision.members, last.decision.group_id)
            if not self._can_repeat(last, left, len(attempts)):
                break
            group = left
        report = self._report(attempts, left=group.peers if last.decision.counts else left.peers)
        report = replace(report, seconds=time.monotonic() - began)
        if self._keeps_own(last, len(attempts)):
            return None, group, replace(report, senders=1, own_share=1.0, weight=self.contribution.weight)
        if last.fault is not None or not last.decision.counts:  # for example, the others repeat it without this peer
            reason = str(last.fault or "the group has given this all-reduce up")
            raise RoundFailedError(reason, report.spoiled_by) from last.fault
        return last, group, report

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
        """Returns True if this peer repeats the all-reduce with the remaining peers."""
        if attempt.decision.counts or attempts > REPETITIONS:
            return False
        return self.all_reduces.peer_id in left.peers and len(left.peers) > 1 and any(left.fractions)

    def _keeps_own(self, attempt: Attempt, attempts: int) -> bool:
        """Returns True if this peer's tensors stay as they are: nobody else is left, or the last repetition has failed.

        After a failed repetition one peer may have all answers and another only some: with these answers, their tensors
        would differ.
        """
        own, members = self.all_reduces.peer_id, attempt.decision.members
        gave_up = attempts > REPETITIONS and own in members
        return gave_up or members == (own,)

    def _report(self, attempts: Sequence[Attempt], *, left: Sequence[PeerID]) -> RoundReport:
        """Combines the attempts into a report; the last one's result is the round's."""
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


def spoilers(attempts: Sequence[Attempt], group: Group, lost: Sequence[PeerID], own: PeerID) -> dict[str, float]:
    """Finds the peers that have spoiled a round. Returns the weight of each one's fault, by id.

    - A peer that was lost, if this peer's own exchange with it has failed as well. If several were lost, with less
      weight: some of them may have been left out because of the others.
    - If the result counts for the group and this peer lacks some of it, the peers that have not sent it, with less
      weight: the link between the two may be at fault.

    Args:
        attempts: All attempts of the round.
        group: Group of the first attempt.
        lost: Peers that take no part in the last attempt.
        own: This peer.
    """
    absent = frozenset().union(*(attempt.absent for attempt in attempts))
    troubles = frozenset().union(*(attempt.troubles for attempt in attempts))
    # A peer that has lost all of several others is more likely to be at fault itself.
    if len(lost) > 1 and len(lost) == len(group.peers) - 1:
        return {}
    found = {str(peer): DOUBT if len(lost) > 1 else 1.0 for peer in lost if peer in troubles - absent}
    last = attempts[-1]
    has_lost_all = len(last.troubles) == len(group.peers) - 1 > 1  # then its own link is at fault
    if last.decision.counts and last.fault is not None and not has_lost_all:
        for peer in last.troubles - absent:
            found.setdefault(str(peer), DOUBT)
    found.pop(str(own), None)
    return found
