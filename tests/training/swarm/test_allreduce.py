"""One peer's part in an all-reduce whose groupmates are played: what it hears, and what it says, when it goes wrong."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.partition import AllreduceException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm.allreduce import ReportingRunner
from training.swarm.coroutine import wait_for_result
from training.swarm.rounds import ReportingAverager

OWN, OTHER = PeerID(b"1" * 32), PeerID(b"2" * 32)
Data = averaging_pb2.AveragingData


def runner(*, own_share, stub=None, **kwargs):
    """Of a group of two, the other of which is reached by `stub`."""
    made = ReportingRunner(
        p2p=SimpleNamespace(peer_id=OWN),
        servicer_type=ReportingAverager,
        prefix="test",
        tensors=[torch.ones(4096)],
        part_size_bytes=1024,
        group_id=b"group",
        ordered_peer_ids=(OWN, OTHER),
        peer_fractions=(own_share, 1 - own_share),
        **kwargs,
    )
    made._servicer_type = SimpleNamespace(get_stub=lambda *args, **kwargs: stub)
    return made


@pytest.mark.parametrize("end", ["silence", "a word", "an error"])
def test_a_peer_in_client_mode_hears_at_once_that_a_reducer_is_gone(end):
    """It has sent one part of many, and cannot send more; hivemind lets it wait for the end of the whole step."""

    async def take_one(parts):
        sending = asyncio.ensure_future(anext(parts))

        async def answers():
            await sending
            if end == "a word":
                yield Data(code=averaging_pb2.CANCELLED)
                await asyncio.sleep(60)
            if end == "an error":
                raise ConnectionError("it is gone")

        return answers()

    async def average():
        faults = asyncio.Event()
        peer = runner(own_share=0.0, stub=SimpleNamespace(rpc_aggregate_part=take_one), on_fault=faults.set)
        with pytest.raises(AllreduceException, match="has ended the exchange"):
            await asyncio.wait_for(peer._communicate_with_peer(OTHER), 5)
        return faults.is_set() and not peer.verdict(None).whole

    assert wait_for_result(average())


def test_a_reducer_that_gives_up_tells_those_who_still_send():
    async def send_and_wait():
        peer = runner(own_share=1.0)
        part = peer.tensor_part_container.compression.compress(
            peer.parts_for_local_averaging[0], peer.tensor_part_container.tensor_infos[0]
        )

        async def slow_sender():
            yield Data(code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"group", tensor_part=part, weight=1.0)
            await asyncio.sleep(60)

        answers = peer.rpc_aggregate_part(slow_sender(), SimpleNamespace(remote_id=OTHER))
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.05)
        assert not first.done()
        peer.finalize(cancel=True)
        codes = [(await asyncio.wait_for(first, 5)).code]
        return codes + [message.code async for message in answers]

    assert wait_for_result(send_and_wait()) == [averaging_pb2.CANCELLED]
