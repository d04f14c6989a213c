"""Streams end when their reader has everything: between two real nodes, and in each handler of the averagers."""

import asyncio
from types import SimpleNamespace
from typing import AsyncIterator  # noqa: UP035  hivemind knows this one alone

import pytest
import torch
from hivemind.p2p import P2PContext, ServicerBase
from hivemind.proto import averaging_pb2

from training.swarm.engine.calls import HANG_UP_SECONDS, Connection, first_of, until_hung_up
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.round.service import Service
from training.swarm.state.serving import StateService

PARTS = 3
SOON_SECONDS, A_WHILE_SECONDS = HANG_UP_SECONDS / 3, 0.3


async def messages(make, count=PARTS):
    for _ in range(count):
        yield make()


class Writer(ServicerBase):
    """A handler that has said everything when its reader has not."""

    def __init__(self):
        self.ended = asyncio.Event()

    async def rpc_download_state(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        try:
            async for message in until_hung_up(messages(averaging_pb2.DownloadData)):
                yield message
        finally:
            self.ended.set()


@pytest.mark.swarm
def test_a_stream_lasts_until_its_reader_has_everything_and_hangs_up():
    async def read():
        first = await Connection.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        second = await Connection.create(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=await first.get_visible_maddrs()
        )
        try:
            writer = Writer()
            await writer.add_p2p_handlers(first)
            stream = await Writer.get_stub(second, first.peer_id).rpc_download_state(averaging_pb2.MessageFromLeader())
            parts = first_of(stream, PARTS)
            for _ in range(PARTS):
                await anext(parts)
            await asyncio.sleep(A_WHILE_SECONDS)
            assert not writer.ended.is_set()
            assert [part async for part in parts] == []
            await asyncio.wait_for(writer.ended.wait(), SOON_SECONDS)
        finally:
            await second.shutdown()
            await first.shutdown()

    wait_for_result(read())


def test_a_stream_that_ends_before_has_no_more():
    async def read():
        return len([part async for part in first_of(messages(object, 2), PARTS)])

    assert wait_for_result(read()) == 2


def leader():
    service = object.__new__(Service)
    matchmaking = SimpleNamespace(rpc_join_group=lambda request, context: messages(averaging_pb2.MessageFromLeader))
    service.matchmaking = matchmaking
    return service.rpc_join_group(averaging_pb2.JoinRequest(), None)


def reducer():
    service = object.__new__(Service)
    caller = SimpleNamespace(remote_id="groupmate")
    service._guests = {}
    all_reduce = SimpleNamespace(
        answer=lambda sender, stream: messages(averaging_pb2.AveragingData),
        group=SimpleNamespace(peers=(caller.remote_id,)),
    )

    async def begun(group_id, caller):
        return all_reduce

    service.rounds = SimpleNamespace(begun=begun)
    return service.rpc_aggregate_part(messages(lambda: averaging_pb2.AveragingData(group_id=b"group")), caller)


def donor():
    states = StateService(None, "prefix", ask=lambda number, seed: None)
    states._priority = 0.0
    head = averaging_pb2.DownloadData().tensor_part.SerializeToString()

    async def answer(_ask):
        return b"", torch.zeros(PARTS, dtype=torch.uint8), [(head, 1)] * PARTS

    states._answer = answer
    return states.rpc_download_state(averaging_pb2.MessageFromLeader(), SimpleNamespace(remote_id="newcomer"))


@pytest.mark.parametrize("handler", [leader, reducer, donor])
def test_the_averagers_handlers_wait_for_their_readers(handler):
    """The daemon would throw away what it has not passed on."""

    async def read():
        said = handler()
        for _ in range(PARTS):
            await anext(said)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(said), A_WHILE_SECONDS)

    wait_for_result(read())
