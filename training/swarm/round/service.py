"""The averager's process: runs the trainer's rounds, and answers the calls of other peers.

A round looks for a group (`matchmaking`), averages with it (`rounds`), and looks for another one if that fails. All
calls of other peers to an averager come to this process: `rpc_join_group`, `rpc_aggregate_part` and `rpc_agree` of
`Service`, and those of a donor (`serving.StateService`) and a guard (`auditor.Auditor`). Calls to the DHT node go to
the node's own process, and answers to this peer's calls go to the process that has called.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

import torch
from hivemind.compression import CompressionInfo
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import achain, as_aiter, switch_to_uvloop

from calculator.swarm.exchange import part_bytes
from training.swarm.engine.calls import until_hung_up
from training.swarm.engine.engine import open_connection
from training.swarm.engine.process import DHT
from training.swarm.node.admission import Guest, admission_of
from training.swarm.peers.groups import AllReduceError, AveragedGroup, Group
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.round.allreduce import Travel
from training.swarm.round.gathering import FormedGroup, GroupMessage, shares
from training.swarm.round.matchmaking import Matchmaking, schema_of
from training.swarm.round.pipe import (
    AveragerSettings,
    Begin,
    Cancel,
    Caught,
    Ended,
    Fewer,
    Given,
    MakeDonor,
    Offer,
    Reached,
    Ready,
    Stage,
    Start,
    Wanted,
)
from training.swarm.round.rounds import AllReduces, AveragingMethod, GroupAllReduce, RoundFailedError

LOCK_LOOK_SECONDS = 0.01
"""Interval at which a round looks whether the trainer still holds the tensors."""


def serve(service: Service) -> None:
    """Runs the averager's process: its main function.

    The loop runs in a thread: it gets OpenMP threads of its own there. Those of the trainer do not exist in a forked
    process, and work that is passed to them never ends (pytorch issue 17199).
    """
    # Ctrl-C in a terminal reaches this process as well. The trainer decides when it ends: perhaps after an average.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    thread = threading.Thread(target=_run, args=(service,), daemon=True)
    thread.start()
    thread.join()


def _run(service: Service) -> None:
    switch_to_uvloop().run_until_complete(service.run())


@asynccontextmanager
async def _held(lock: Lock) -> AsyncIterator[None]:
    """Context that holds the lock. The trainer may hold it for long, for example while it makes an update.

    A plain `with` would block all calls of other peers meanwhile. hivemind's `enter_asynchronously` waits in a thread:
    if the round ends before the thread has the lock, the thread takes it nevertheless, and nobody releases it.
    """
    while not lock.acquire(block=False):
        await asyncio.sleep(LOCK_LOOK_SECONDS)
    try:
        yield
    finally:
        lock.release()


@dataclass
class _Pending:
    """State of a round under way."""

    begin: Begin
    task: asyncio.Task | None = None
    start: asyncio.Future[Start] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Set when the trainer lets the round average."""
    gone: int = 0
    """Number of expected peers that are gone."""
    faults: dict[PeerID, float] = field(default_factory=dict)
    """Faults of peers in the search; see `matchmaking.Search`."""
    spoiled_by: dict[str, float] = field(default_factory=dict)
    """Weights of the evidence against peers; see `pipe.Ended`."""
    averages: bool = False
    """True once the round averages. Then it is not cancelled: the whole group would have to repeat the average."""


def send_end(pipe: Connection, ended: Ended) -> None:
    """Tells the trainer how a round has ended. The trainer hears of the end even if the result cannot be sent."""
    with suppress(OSError):  # the trainer is gone
        try:
            pipe.send(ended)
        except OSError:
            raise
        except Exception as error:  # such as a value that cannot be pickled; nothing of it is sent then
            fault = f"its result cannot be handed on: {type(error).__name__}"
            pipe.send(replace(ended, group=None, fault=fault))


class Service(ServicerBase):
    """Averager's process: made by the trainer; `averager.Averager` explains the arguments."""

    def __init__(
        self,
        dht: DHT,
        settings: AveragerSettings,
        *,
        pipe: Connection,
        tensors: Sequence[torch.Tensor],
        lock: Lock,
        tensor_infos: Sequence[CompressionInfo] | None,
        method: AveragingMethod,
        donor: MakeDonor | None,
    ):
        self.dht, self.settings = dht, settings
        self._pipe, self._tensors, self._lock = pipe, tensors, lock
        self._tensor_infos, self._method, self._make_donor = tensor_infos, method, donor
        self._total_size = sum(tensor.numel() for tensor in tensors)
        self._travel = Travel(
            codec=settings.compression,
            part_bytes=settings.part_bytes or part_bytes(self._total_size),
            reduction=settings.reduction,
            round_own_parts=settings.round_own_parts,
            chunk_seconds=settings.next_chunk_timeout_seconds,
            is_guarded=settings.guard is not None,
        )
        self._pending: dict[int, _Pending] = {}
        self._guests: dict[PeerID, Guest] = {}
        """Groupmates of the newest group."""

    # -- orders of the trainer ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serves until the trainer sends None or is gone."""
        try:
            connection = await open_connection(self.dht)
            await self._open(connection)
        except Exception as error:
            self._pipe.send(Ready(str(error) or type(error).__name__))
            return
        self._pipe.send(Ready(None))
        messages, loop = asyncio.Queue(), asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._read_pipe, messages)
        while (message := await messages.get()) is not None:
            self._take(message)

    async def _open(self, connection: P2P) -> None:
        """Makes the objects that answer other peers, and lets peers call; in client mode nobody can call."""
        settings = self.settings
        self.peer_id, self._connection = connection.peer_id, connection
        self.matchmaking = Matchmaking(connection, self.dht, Service, settings, schema=schema_of(self._tensors))
        guard = settings.guard(connection, self.dht, settings.prefix, self._report_caught) if settings.guard else None
        self.rounds = AllReduces(
            connection,
            Service,
            settings.prefix,
            has_no_group=lambda: self.matchmaking.has_no_group,
            guard=guard,
            is_banned=self._is_banned,
        )
        self._donor = None
        if self._make_donor is not None:
            ask = lambda number, what: self._pipe.send(Wanted(number, what))  # noqa: E731
            self._donor = self._make_donor(self.dht, settings.prefix, ask)
        if guard is not None:  # also in client mode: a peer that this one has called can answer on that connection
            await guard.open()
        if not settings.client_mode:
            await self.add_p2p_handlers(connection, namespace=settings.prefix)
            if self._donor is not None:
                await self._donor.add_p2p_handlers(connection, namespace=settings.prefix)

    def _report_caught(self, peer: str, weight: float, deed: str) -> None:
        self._pipe.send(Caught(peer, weight, deed))

    def _read_pipe(self, messages: asyncio.Queue) -> None:
        try:
            while self._pipe.poll():
                messages.put_nowait(self._pipe.recv())
        except (EOFError, OSError):
            messages.put_nowait(None)

    def _take(self, message: object) -> None:
        match message:
            case Begin(number):
                pending = self._pending[number] = _Pending(message)
                pending.task = asyncio.create_task(self._run_round(pending))
            case Start(number):
                if number in self._pending:  # otherwise the round has failed already
                    self._pending[number].start.set_result(message)
            case Fewer(number, gone):
                if number in self._pending:
                    self._pending[number].gone += gone
                    self.matchmaking.expect_fewer(gone)
            case Cancel(number):
                if number in self._pending and not self._pending[number].averages:
                    self._pending[number].task.cancel()
            case Offer(priority):
                self._donor.offer(priority)
            case Given(number, answer):
                self._donor.take(number, answer)

    # -- a round ---------------------------------------------------------------------------------------------------

    async def _run_round(self, pending: _Pending) -> None:
        number, group, fault = pending.begin.number, None, "it was cancelled"
        try:
            group = await self._average_in_time(pending)
        except Exception as error:  # after any error, the trainer hears of it and this process goes on
            fault = str(error) or type(error).__name__
        finally:
            del self._pending[number]
            spoiled_by = {str(peer): weight for peer, weight in pending.faults.items() if weight}
            send_end(self._pipe, Ended(number, group, fault, spoiled_by | pending.spoiled_by))

    async def _average_in_time(self, pending: _Pending) -> AveragedGroup:
        """Looks for groups until one has averaged or the time is over.

        Raises:
            Exception: The error of the last group, or one that says that there was none.
        """
        deadline = get_dht_time() + pending.begin.seconds
        while True:
            try:
                return await self._average_with_a_group(pending, deadline)
            except Exception:
                # Tensors change only after an agreement, so they are still this peer's own, for the next group.
                if get_dht_time() >= deadline:
                    raise
                # A search may fail at once, for example without a node: without a pause the repetition would keep a
                # core busy.
                await asyncio.sleep(POLL_SECONDS)

    async def _average_with_a_group(self, pending: _Pending, deadline: float) -> AveragedGroup:
        begin, number = pending.begin, pending.begin.number
        self._pipe.send(Reached(number, Stage.SEARCHING))
        with self.rounds.expecting_a_group():
            gone = pending.gone + sum(weight >= 1 for weight in pending.faults.values())
            expected = max(begin.expected_peers - gone, 0)
            self.matchmaking.left_out = frozenset(map(PeerID, begin.left_out))
            formed = await self.matchmaking.find_group(
                begin.packed, deadline=deadline, expected_peers=expected, faults=pending.faults
            )
            if formed is None:
                raise AllReduceError("no group was found")
            self._pipe.send(Reached(number, Stage.WAITING))
            groups = [formed.group_id + phase for phase in self._method.phases]
            start = await self._start_of(pending, groups[0], formed.peers)
            # Still inside this context: otherwise a quicker groupmate would hear that this peer is not in the group.
            self.rounds.announce(*groups)
        pending.averages = True
        self._pipe.send(Reached(number, Stage.AVERAGING))
        try:
            group = await asyncio.wait_for(self._average(formed, start), self.settings.allreduce_timeout_seconds)
            pending.spoiled_by |= group.report.spoiled_by
            return group
        except RoundFailedError as error:
            pending.spoiled_by |= error.spoiled_by
            raise
        except TimeoutError:
            pending.spoiled_by |= dict.fromkeys(map(str, self.rounds.late_peers()), 1.0)
            raise
        finally:
            pending.averages = False
            self.rounds.forget(*groups)

    async def _start_of(self, pending: _Pending, group_id: bytes, peers: Sequence[PeerID]) -> Start:
        """Waits until the trainer lets a round average; tells the trainer if most of the group average already."""

        async def tell_when_awaited() -> None:
            await self.rounds.called_by_most(group_id, peers)
            self._pipe.send(Reached(pending.begin.number, Stage.AWAITED))

        telling = asyncio.create_task(tell_when_awaited())
        try:
            # The shield keeps the future open if the round is cancelled here: a Start that is already in the pipe would
            # otherwise fail on it (InvalidStateError) and end this process.
            return await asyncio.shield(pending.start)
        finally:
            telling.cancel()

    async def _average(self, formed: FormedGroup, start: Start) -> AveragedGroup:
        messages, group = self._shares(formed)
        all_reduce = GroupAllReduce(
            all_reduces=self.rounds,
            group=group,
            contribution=start.contribution,
            travel=self._travel,
        )
        async with _held(self._lock):
            report = await self._method.average(self._tensors, self._tensor_infos, all_reduce)
        return AveragedGroup.of_those_left(messages, report)

    def _shares(self, formed: FormedGroup) -> tuple[dict, Group]:
        """Returns the messages of the group's peers, and the share of the values that each of them averages."""
        messages = [GroupMessage.read(one) for one in formed.messages]
        fractions = shares(self._total_size, messages)
        admission, members = admission_of(self.dht), list(zip(formed.peers, messages, strict=True))
        self._guests = {peer: Guest(admission, one.ticket, str(peer)) for peer, one in members if peer != self.peer_id}
        unvouched = [peer for peer, one in members if admission is not None and not admission.vouches_for(one.ticket)]
        group = Group(
            group_id=formed.group_id,
            peers=formed.peers,
            fractions=tuple(fractions),
            unvouched=frozenset(unvouched),
        )
        return {peer: one.announcement for peer, one in members}, group

    # -- calls of other peers --------------------------------------------------------------------------------------

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """Answers a peer that asks this one to lead it to a group."""
        async for message in until_hung_up(self.matchmaking.rpc_join_group(request, context)):
            yield message

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Takes a groupmate's parts that this peer averages, and answers with their means."""
        first = await anext(stream)
        all_reduce = await self.rounds.begun(first.group_id, context.remote_id)
        if all_reduce is None or not self._may_send(context.remote_id, all_reduce.group):
            # So that the sender's group can repeat the all-reduce without this peer at once.
            yield averaging_pb2.AveragingData(code=averaging_pb2.BAD_GROUP_ID)
            return
        async for message in until_hung_up(all_reduce.answer(context.remote_id, achain(as_aiter(first), stream))):
            yield message

    def _may_send(self, caller: PeerID, group: Group) -> bool:
        """Returns True if a caller is in a group and not banned; its ticket was checked when the group formed."""
        return caller in group.peers and not self._is_banned(caller)

    def _is_banned(self, peer: PeerID) -> bool:
        return peer in self._guests and self._guests[peer].has_been_banned_for_long

    async def rpc_agree(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader:
        """Takes a groupmate's verdict on an all-reduce, and answers with the group's decision."""
        if self._is_banned(context.remote_id):
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
        return await self.rounds.agree(request, context.remote_id)
