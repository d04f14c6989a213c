"""Two peers over real connections: neither is in a group of which it knows nothing, or it says so; and their means."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import ExitStack
from typing import AsyncIterator  # noqa: UP035  hivemind knows this one alone

import pytest
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.dht import DHT
from hivemind.p2p import P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture, get_dht_time
from hivemind.utils.asyncio import as_aiter

from training.swarm.averaging import SwarmGradientAverager
from training.swarm.coroutine import wait_for_result
from training.swarm.matchmaking import PatientMatchmaking
from training.swarm.rounds import ReportingAverager

WINDOW_SECONDS, REQUEST_SECONDS = 10.0, 3.0


class Seeker(ServicerBase):
    """A peer that looks for a group, and first of all asks one that it is told."""

    def __init__(self, dht: DHT):
        self.dht = dht

    async def open(self) -> None:
        """Others can ask it from now on."""
        self.p2p = await self.dht.replicate_p2p()
        self.matchmaking = PatientMatchmaking(
            self.p2p,
            b"schema",
            self.dht,
            servicer_type=Seeker,
            prefix="meeting",
            target_group_size=2,
            min_group_size=2,
            min_matchmaking_time=WINDOW_SECONDS,
            request_timeout=REQUEST_SECONDS,
            client_mode=False,
        )
        await self.add_p2p_handlers(self.p2p, namespace="meeting")

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        async for message in self.matchmaking.rpc_join_group(request, context):
            yield message

    async def meet(self, other: PeerID, both_ask: asyncio.Barrier) -> GroupInfo:
        """Looks for a group; both ask each other at the same moment, as with old news of when the other began."""
        leaders = self.matchmaking.potential_leaders
        pop_next_leader = leaders.pop_next_leader

        async def pop_other() -> PeerID:
            leaders.pop_next_leader = pop_next_leader
            while not math.isfinite(leaders.declared_expiration_time):
                await asyncio.sleep(0.01)
            await both_ask.wait()
            return other

        leaders.pop_next_leader = pop_other
        now = get_dht_time()
        control = StepControl(
            scheduled_time=now, deadline=now + 60, allow_retries=False, weight=1.0, data_for_gather=b""
        )
        control.attach(MPFuture(), MPFuture())
        return await self.matchmaking.look_for_group(control)


async def cross(seekers: list[Seeker]) -> tuple[list[GroupInfo], float]:
    """The group that each finds, and the seconds from the question to the answer."""
    for seeker in seekers:
        await seeker.open()
    began = time.monotonic()
    both_ask = asyncio.Barrier(2)
    first, second = seekers
    groups = await asyncio.gather(first.meet(second.p2p.peer_id, both_ask), second.meet(first.p2p.peer_id, both_ask))
    return list(groups), time.monotonic() - began


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        first = DHT(start=True)
        stack.callback(first.shutdown)
        second = DHT(start=True, initial_peers=first.get_visible_maddrs())
        stack.callback(second.shutdown)
        yield first, second


@pytest.mark.swarm
def test_two_peers_that_ask_each_other_at_once_are_in_one_group_of_which_both_know(nodes):
    groups, seconds = wait_for_result(cross([Seeker(node) for node in nodes]))
    assert groups[0].group_id == groups[1].group_id
    assert set(groups[0].peer_ids) == {node.peer_id for node in nodes}
    assert seconds < REQUEST_SECONDS


async def send_part(node: DHT, peer: PeerID) -> averaging_pb2.AveragingData:
    """What a peer answers to a part of a tensor for a group that it has never heard of."""
    stub = ReportingAverager.get_stub(await node.replicate_p2p(), peer, namespace="averaging")
    parts = as_aiter(averaging_pb2.AveragingData(group_id=b"a group without it"))
    return await anext(await stub.rpc_aggregate_part(parts))


@pytest.mark.swarm
def test_a_peer_that_looks_for_a_group_says_at_once_that_it_is_in_no_other(nodes):
    node, other = nodes
    averager = ReportingAverager(
        [torch.zeros(4)],
        node,
        prefix="averaging",
        min_matchmaking_time=WINDOW_SECONDS,
        request_timeout=REQUEST_SECONDS,
        start=True,
    )
    try:
        control = averager.step(wait=False, timeout=60)
        while control.stage != AveragingStage.LOOKING_FOR_GROUP:
            time.sleep(0.01)
        answer = wait_for_result(asyncio.wait_for(send_part(other, node.peer_id), REQUEST_SECONDS))
        assert answer.code == averaging_pb2.BAD_GROUP_ID
    finally:
        averager.shutdown()


@pytest.mark.swarm
def test_micro_batches_of_uneven_size_count_by_their_samples(nodes):
    parameter = torch.nn.Parameter(torch.zeros(3))
    averager = SwarmGradientAverager([parameter], dht=nodes[0], prefix="mean", start=False)
    for samples, gradient in ((4, 1.0), (2, 4.0)):
        parameter.grad = torch.full((3,), gradient)
        averager.accumulate_grads_(samples)
    averager.load_accumulators_into_averager_()
    with averager.get_tensors() as (mean,):
        assert mean.tolist() == [2.0] * 3  # hivemind's is 1.5
