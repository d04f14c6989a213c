"""Peers of one process that average by the trainer's own all-reduce; only their network is replaced.

Groups, parts, codecs, signatures, agreements, checks of reducers, proofs, and who is left out for how long: all of that
is the code that volunteers run. `Connection` stands in for hivemind's network daemon: it hands messages over within the
process. There is no search for groups: whoever most honest peers do not leave out is in the group. Time-outs count as
if each peer had a processor of its own, so that a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import time
from collections.abc import AsyncIterator as Messages
from collections.abc import Callable
from functools import cache, partial
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

import torch
from hivemind.p2p import P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils.asyncio import achain, as_aiter
from hivemind.utils.crypto import RSAPrivateKey

from calculator.swarm.exchange import part_bytes
from training.swarm.config import SwarmConfig
from training.swarm.defence.auditor import Auditor
from training.swarm.defence.clipping import clipping_of_gradients
from training.swarm.engine.calls import until_hung_up
from training.swarm.engine.codecs import exchange_codec
from training.swarm.engine.ids import peer_id_of
from training.swarm.node.identity import Signer
from training.swarm.peers import table
from training.swarm.peers.groups import Contribution, Group
from training.swarm.round.allreduce import AllReduce, Travel
from training.swarm.round.reducer import WeightedMean
from training.swarm.round.rounds import AllReduces, GroupAllReduce

PREFIX = "benchmark"
QUIET_SECONDS, LOOKS = 0.05, 3
"""Checks are over when nobody has checked anything in so many looks, so far apart."""
_QUEUE = 4
"""Messages of a stream that are under way."""

Lie = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""From a part's average, all senders' parts, one a row, and the place of a sender to what the reducer answers it."""


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock counts the processor's time, divided among the peers, and the time in which nothing runs.

    Args:
        peers: That share this process.
    """

    def __init__(self, peers: int):
        self._peers, self._idle = peers, 0.0
        super().__init__(_Selector(self._note_idle))

    def _note_idle(self, seconds: float) -> None:
        self._idle += seconds

    def time(self) -> float:
        """See `asyncio`."""
        return time.process_time() / self._peers + self._idle


class _Selector(selectors.DefaultSelector):
    def __init__(self, note_idle: Callable[[float], None]):
        super().__init__()
        self._note_idle = note_idle

    def select(self, timeout: float | None = None) -> list:
        events = super().select(timeout)
        if not events and timeout is not None and timeout > 0:
            self._note_idle(timeout)
        return events


Handlers = dict[tuple[PeerID, str], Callable]
"""The network: what answers a call to a peer."""


class Connection:
    """The part of hivemind's `P2P` that averaging uses."""

    def __init__(self, handlers: Handlers, peer_id: PeerID):
        self._handlers, self.peer_id = handlers, peer_id

    async def add_protobuf_handler(self, name: str, handler: Callable, *_: object, **__: object) -> None:
        """From now on others can call it."""
        self._handlers[self.peer_id, name] = handler

    async def call_protobuf_handler(self, peer: PeerID, name: str, message: object, *_: object) -> object:
        """Another peer's answer."""
        if name.endswith("rpc_ping"):
            return dht_pb2.PingResponse()
        return await self._handlers[peer, name](message, self._context(peer, name))

    async def iterate_protobuf_handler(self, peer: PeerID, name: str, message: object, *_: object) -> Messages:
        """Another peer's answers."""
        return _stream(self._handlers[peer, name](message, self._context(peer, name)))

    def _context(self, peer: PeerID, name: str) -> P2PContext:
        return P2PContext(handle_name=name, local_id=peer, remote_id=self.peer_id)


async def _stream(answers: Messages) -> Messages:
    """A handler runs by itself, as it does behind a network; closing the stream cancels it."""
    queue = asyncio.Queue(_QUEUE)

    async def run() -> None:
        try:
            async for message in answers:
                await queue.put((message, None))
            await queue.put((None, StopAsyncIteration()))
        except Exception as error:
            await queue.put((None, error))

    running = asyncio.create_task(run())
    try:
        while True:
            message, end = await queue.get()
            if isinstance(end, StopAsyncIteration):
                return
            if end is not None:
                raise end
            yield message
    finally:
        running.cancel()


class _Door(ServicerBase):
    """The calls of an all-reduce, as `service.Service` takes them."""

    def __init__(self, all_reduces: AllReduces | None = None):
        self.all_reduces = all_reduces

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """A groupmate sends parts."""
        first = await anext(stream)
        one = await self.all_reduces.begun(first.group_id, context.remote_id)
        async for message in until_hung_up(one.answer(context.remote_id, achain(as_aiter(first), stream))):
            yield message

    async def rpc_agree(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader:
        """A groupmate tells its verdict."""
        return await self.all_reduces.agree(request, context.remote_id)


class LyingAllReduces(AllReduces):
    """Those of a peer that answers with something else than the average. It signs that, and shows all that it is asked
    for."""

    lie: Lie

    def _begin(self, group: Group, one: AllReduce, **given: object) -> object:
        reducer, parts, lie = one.reducer, {}, self.lie
        take = reducer.take

        async def lying(sender: PeerID, part: torch.Tensor, weight: float) -> torch.Tensor:
            sent = parts.setdefault(reducer.averaged, {})
            sent[sender] = part
            update = await take(sender, part, weight)  # now all senders' parts have come
            parts_sent = torch.stack([sent[peer] for peer in group.peers])
            return lie(part + update, parts_sent, group.peers.index(sender)) - part

        reducer.take = lying
        return super()._begin(group, one, **given)


class SilentAuditor(Auditor):
    """Auditor of a peer that shows what it has sent, but not what it has averaged, so that nobody can prove anything.

    Args:
        hides: Whether it does so in this average.
    """

    def __init__(self, *args: object, hides: Callable[[], bool], **facts: object):
        super().__init__(*args, **facts)
        self._hides = hides

    async def _show(self, request: averaging_pb2.MessageFromLeader, peer: PeerID) -> Messages:
        if self._hides() and request.suggested_leader == self._connection.peer_id.to_bytes():
            yield averaging_pb2.DownloadData()
            return
        async for message in super()._show(request, peer):
            yield message


# hivemind names a peer's calls after the class.
SilentAuditor.__name__ = Auditor.__name__


@cache
def key_of(number: int) -> RSAPrivateKey:
    """A key for each peer of this process; 2048 bits, as volunteers have them."""
    return RSAPrivateKey()


class Member:
    """One peer."""

    def __init__(self, number: int, handlers: Handlers, swarm: SwarmConfig, clock: Callable[[], float]):
        key = key_of(number)
        public = key.get_public_key().to_bytes()
        self.peer_id = peer_id_of(b"[owner:" + public + b"]")
        self.connection = Connection(handlers, self.peer_id)
        self.peers = table.Peers(clock=clock)
        self.caught: set[str] = set()
        """Peers that it has proof against, or that have evaded its checks."""
        self._swarm, self._signer, self._clock = swarm, Signer(public, key.sign), clock

    def _note_caught(self, peer: str, weight: float, deed: str) -> None:
        self.caught.add(peer)
        self.peers.spoiled(table.id_bytes(peer), weight, deed)

    async def open(self, lie: Lie | None, *, hides: Callable[[], bool] | None, audits: bool) -> None:
        """From now on others can call it."""
        swarm, clipping = self._swarm, clipping_of_gradients(self._swarm)
        auditor = None
        if audits:
            facts = {"signer": self._signer, "share": swarm.audit_share, "clipping": clipping}
            noting = {"caught": self._note_caught, "clock": self._clock}
            made = Auditor if hides is None else partial(SilentAuditor, hides=hides)
            auditor = made(self.connection, PREFIX, **facts, **noting)
            await auditor.open()
        kind = AllReduces if lie is None else LyingAllReduces
        self.all_reduces = kind(self.connection, _Door, PREFIX, has_no_group=lambda: False, guard=auditor)
        if lie is not None:
            self.all_reduces.lie = lie
        self._auditor = auditor
        await _Door(self.all_reduces).add_p2p_handlers(self.connection, namespace=PREFIX)

    @property
    def checks(self) -> int:
        """Number of checks that are under way."""
        return len(self._auditor._tasks) if self._auditor is not None else 0


class Peers:
    """Peers that average again and again; the last ones are hostile.

    Args:
        count: All of them.
        liars: Those that lie as reducers.
        swarm: Of the recipe: how they average, and how much they check.
        values: All numbers of the tensors together.
        smallest: Tensors of so many values travel in 8 bit.
        lie: What liars answer.
        hides: Whether liars show nothing when they are checked; None: they show all.
        audits: Whether reducers are checked at all.
        update_seconds: How long an update takes in the run that this stands for.
        seed: Of the group's order.
    """

    def __init__(
        self,
        count: int,
        liars: int,
        swarm: SwarmConfig,
        *,
        values: int,
        smallest: int,
        lie: Lie,
        hides: Callable[[], bool] | None,
        audits: bool,
        update_seconds: float,
        seed: int,
    ):
        handlers, self._now, self._update_seconds = {}, 0.0, update_seconds
        self.members = [Member(number, handlers, swarm, lambda: self._now) for number in range(count)]
        self._honest, self._order, self._count = self.members[: count - liars], random.Random(seed), 0
        self._lie, self._hides, self._audits = lie, hides, audits
        self._travel = Travel(
            codec=exchange_codec(smallest, swarm.gradient_codec),
            part_bytes=part_bytes(values),
            reduction=clipping_of_gradients(swarm) or WeightedMean(),
            is_guarded=audits,
        )
        self._loop = Loop(count)
        self._loop.run_until_complete(self._open())

    async def _open(self) -> None:
        for member in self.members:
            lie = None if member in self._honest else self._lie
            await member.open(lie, hides=None if lie is None else self._hides, audits=self._audits)

    def group(self) -> list[int]:
        """Numbers of those that the next update takes in."""
        half = len(self._honest) / 2
        return [
            number
            for number, one in enumerate(self.members)
            if one in self._honest
            or sum(other.peers.is_left_out(one.peer_id.to_bytes()) for other in self._honest) <= half
        ]

    def average(self, tensors: dict[int, list[torch.Tensor]], weight: float) -> None:
        """Averages the tensors of a group in place, by the members' numbers, and lets all checks end."""
        self._loop.run_until_complete(self._average(tensors, weight))
        self._now += self._update_seconds

    async def _average(self, tensors: dict[int, list[torch.Tensor]], weight: float) -> None:
        numbers = list(tensors)
        self._order.shuffle(numbers)  # as the leader of a group does
        self._count += 1
        peers = tuple(self.members[number].peer_id for number in numbers)
        shares = (1 / len(peers),) * len(peers)
        group = Group(group_id=self._count.to_bytes(8) + os.urandom(12), peers=peers, fractions=shares)
        for number in numbers:
            self.members[number].all_reduces.announce(group.group_id)
        rounds = [
            GroupAllReduce(
                all_reduces=self.members[number].all_reduces,
                group=group,
                contribution=Contribution(weight=weight),
                travel=self._travel,
            )(tensors[number])
            for number in numbers
        ]
        reports = await asyncio.gather(*rounds)
        if any(report.senders != len(peers) or report.torn for report in reports):
            raise RuntimeError("an average has failed")
        await self._let_checks_end()
        for number in numbers:
            self.members[number].all_reduces.forget(group.group_id)

    async def _let_checks_end(self) -> None:
        quiet = 0
        while quiet < LOOKS:
            await asyncio.sleep(QUIET_SECONDS)
            quiet = 0 if any(member.checks for member in self.members) else quiet + 1

    def close(self) -> None:
        """Ends what is under way."""
        self._loop.run_until_complete(_end_all())
        self._loop.close()


async def _end_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
