"""Donors give newcomers their state, and are not held up by those that do not take it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from hivemind.compression import CompressionInfo, NoCompression
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.engine import engine
from training.swarm.engine.calls import Connection
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.state import serving
from training.swarm.state.serving import StateService, pack

engine.prepare()
MESSAGES, MESSAGE_BYTES = 16, 1 << 16
LARGE_BYTES = 64 << 20
"""More than the network's buffers hold between two peers."""
REQUEST = averaging_pb2.MessageFromLeader()


def donor(state_bytes=MESSAGES * MESSAGE_BYTES):
    """Its trainer answers at once."""
    tensor = torch.zeros(state_bytes // 4)
    metadata = MSGPackSerializer.dumps({"epoch": 1, "optimizer_metadata": []})
    state = (metadata, *pack([tensor], [CompressionInfo.from_tensor(tensor, key=0)], NoCompression()))
    service = StateService(
        SimpleNamespace(admission=None),
        "demo",
        ask=lambda number, seed: service.take(number, state),
    )
    service._priority = 1.0
    return service


def download(service, peer="newcomer"):
    return service.rpc_download_state(REQUEST, SimpleNamespace(remote_id=peer))


async def messages_taken(service, pause_seconds):
    """How many messages a newcomer gets that pauses after each, until it has all or the donor ends the call."""
    taken = 0

    async def take():
        nonlocal taken
        async for _ in download(service):
            taken += 1
            if taken == MESSAGES:
                return
            await asyncio.sleep(pause_seconds(taken))

    reading = asyncio.create_task(take())  # the donor cancels the task in which hivemind writes its messages
    async with asyncio.timeout(30):
        await asyncio.wait([reading])
    return taken


def test_a_newcomer_may_have_two_downloads_open_and_keeps_nobody_else_from_one():
    async def begin():
        service = donor()
        begun = [download(service, peer) for peer in ("eve", "eve", "eve", "ada")]
        return [await anext(one, None) is not None for one in begun]

    assert wait_for_result(begin()) == [True, True, False, True]


@pytest.mark.parametrize(
    "pause_seconds, whole",
    [
        (lambda taken: 0.02, True),
        (lambda taken: 1.0 if taken == 8 else 0.0, True),
        (lambda taken: 60.0, False),
        (lambda taken: 60.0 if taken == 14 else 0.0, False),
        (lambda taken: 0.6, False),
    ],
    ids=["slowly", "with a rest", "nothing", "nothing more", "too slowly"],
)
def test_who_takes_less_than_a_slow_link_carries_is_given_up(pause_seconds, whole, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(serving, "SLOWEST_READER_BYTES_PER_SECOND", 4 * MESSAGE_BYTES)
    assert (wait_for_result(messages_taken(donor(), pause_seconds)) == MESSAGES) is whole


@pytest.mark.swarm
def test_over_a_real_connection_the_state_of_a_newcomer_that_reads_nothing_is_dropped(monkeypatch):
    # Long enough that both have begun before the first is given up, on a busy machine too.
    monkeypatch.setattr(serving, "PATIENCE_SECONDS", 5.0)
    monkeypatch.setattr(serving, "SLOWEST_READER_BYTES_PER_SECOND", LARGE_BYTES / 5)

    async def read_nothing():
        service = donor(LARGE_BYTES)
        first = await Connection.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        second = await Connection.create(
            host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=await first.get_visible_maddrs()
        )
        try:
            await service.add_p2p_handlers(first, namespace="demo")
            stub = StateService.get_stub(second, first.peer_id, namespace="demo")
            streams = [await stub.rpc_download_state(REQUEST) for _ in range(2)]
            begun = [await anext(stream) for stream in streams]
            are_open = service._quota.open
            async with asyncio.timeout(30):
                while service._quota.open:
                    await asyncio.sleep(0.1)
            return len(begun), are_open
        finally:
            await second.shutdown()
            await first.shutdown()

    assert wait_for_result(read_nothing()) == (2, 2)
