"""One peer's part in an all-reduce whose groupmates are played: what it hears, and what it says, when it goes wrong."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.partition import AllreduceException
from hivemind.compression import deserialize_torch_tensor
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm.engine.coroutine import wait_for_result
from training.swarm.round.allreduce import ReportingRunner
from training.swarm.round.reducer import FiniteReducer
from training.swarm.round.service import Service

OWN, OTHER = PeerID(b"1" * 32), PeerID(b"2" * 32)
Data = averaging_pb2.AveragingData


def runner(*, own_share, stub=None, others=(OTHER,), **kwargs):
    """Of a group, the others of which are reached by `stub`, or by those of its items that have their ids."""
    made = ReportingRunner(
        p2p=SimpleNamespace(peer_id=OWN),
        servicer_type=Service,
        prefix="test",
        tensors=[torch.ones(4096)],
        part_size_bytes=1024,
        group_id=b"group",
        ordered_peer_ids=(OWN, *others),
        peer_fractions=(own_share, *[(1 - own_share) / len(others)] * len(others)),
        **kwargs,
    )
    stubs = stub if isinstance(stub, dict) else {OTHER: stub}
    made._servicer_type = SimpleNamespace(get_stub=lambda _p2p, peer, **kwargs: stubs[peer])
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


@pytest.mark.parametrize("slow_readers, late", [(1, 1), (2, 0)])
def test_a_reducer_that_reads_slowly_is_late_unless_this_peers_own_link_may_be_slow(slow_readers, late):
    """Most other reducers have got all parts by then."""
    others = tuple(PeerID(str(number).encode() * 32) for number in range(2, 5))

    def reducer(reads_slowly):
        async def take(parts):
            await anext(parts)
            if not reads_slowly:
                async for _ in parts:
                    pass
            await asyncio.sleep(60)
            yield

        async def call(parts):
            return take(parts)

        return SimpleNamespace(rpc_aggregate_part=call)

    async def average():
        stub = {peer: reducer(number < slow_readers) for number, peer in enumerate(others)}
        peer = runner(own_share=0.0, stub=stub, others=others)
        sending = [asyncio.ensure_future(peer._communicate_with_peer(other)) for other in others]
        await asyncio.sleep(0.2)
        late, got_all = peer._late(), len(peer._has_all_of_mine)
        for task in sending:
            task.cancel()
        return late.parts.keys() & set(others[:slow_readers]), got_all

    found, got_all = wait_for_result(average())
    assert len(found) == late and got_all == len(others) - slow_readers


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


def test_a_reducer_answers_a_sender_of_which_nothing_more_comes():
    """It has sent all its parts, and hangs up when it has all answers: its word that this was all may be lost."""

    async def send_all():
        peer = runner(own_share=1.0)
        container, own = peer.tensor_part_container, asyncio.ensure_future(peer._communicate_with_peer(OWN))
        parts = [
            container.compression.compress(part, container.tensor_infos[0]) for part in peer.parts_for_local_averaging
        ]

        async def sender():
            for part in parts:
                yield Data(code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"group", tensor_part=part, weight=1.0)
            await asyncio.sleep(60)

        answers = [answer async for answer in peer.rpc_aggregate_part(sender(), SimpleNamespace(remote_id=OTHER))]
        await own
        return len(answers) == len(parts) > 1 and not peer.report().torn

    assert wait_for_result(asyncio.wait_for(send_all(), 5))


def test_a_sender_that_hangs_up_as_soon_as_it_has_all_answers_is_not_lost():
    """hivemind bans it if its own part in the call has not quite ended, and the group would average again."""

    async def send_all():
        faults = asyncio.Event()
        peer = runner(own_share=1.0, on_fault=faults.set)
        own = asyncio.ensure_future(peer._communicate_with_peer(OWN))
        answers = peer.rpc_aggregate_part(parts_of(peer), SimpleNamespace(remote_id=OTHER))
        for _ in peer.parts_for_local_averaging:
            assert (await anext(answers)).code == averaging_pb2.AVERAGED_PART
        await answers.aclose()
        await own
        del answers
        for _ in range(9):  # Python ends a generator that nobody has any more in a task of its own
            await asyncio.sleep(0)
        return peer.verdict(None).whole and not faults.is_set()

    assert wait_for_result(asyncio.wait_for(send_all(), 5))


def test_a_second_stream_of_a_senders_parts_is_refused():
    """Other parts, once more signed, would make a reducer that has confirmed the first ones look like a liar."""

    async def send_twice():
        peer = runner(own_share=1.0)
        own = asyncio.ensure_future(peer._communicate_with_peer(OWN))
        caller = SimpleNamespace(remote_id=OTHER)
        first = peer.rpc_aggregate_part(parts_of(peer), caller)
        began = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        second = [answer.code async for answer in peer.rpc_aggregate_part(parts_of(peer), caller)]
        answers = [await began] + [answer async for answer in first]
        await own
        return second, {answer.code for answer in answers}, peer.report().torn

    expected = [averaging_pb2.PROTOCOL_VIOLATION], {averaging_pb2.AVERAGED_PART}, False
    assert wait_for_result(asyncio.wait_for(send_twice(), 5)) == expected


def test_nothing_is_noted_for_a_backward_pass_whatever_a_message_asks_for():
    """A part that asks for gradients would make averages leaves of a graph, which nothing ever frees."""

    async def send():
        peer = runner(own_share=1.0)
        own = asyncio.ensure_future(peer._communicate_with_peer(OWN))
        messages = parts_of(peer, requires_grad=True)
        taken = [deserialize_torch_tensor(one.tensor_part) async for one in peer._incoming(messages)]
        answers = peer.rpc_aggregate_part(parts_of(peer, requires_grad=True), SimpleNamespace(remote_id=OTHER))
        assert [answer.code async for answer in answers][-1] == averaging_pb2.AVERAGED_PART
        await own
        return taken

    assert not any(part.requires_grad for part in wait_for_result(asyncio.wait_for(send(), 5)))


async def parts_of(peer, *, requires_grad=False):
    """All parts of a sender, the same as the peer's own."""
    container = peer.tensor_part_container
    for part in peer.parts_for_local_averaging:
        sent = container.compression.compress(part, container.tensor_infos[0])
        sent.requires_grad = requires_grad
        yield Data(code=averaging_pb2.PART_FOR_AVERAGING, group_id=b"group", tensor_part=sent, weight=1.0)


# -- what a reducer takes ----------------------------------------------------------------------------------------------


def reduce_part(*parts, weights):
    """What comes back to each sender of one part: the way from what it sent to the mean, as the runner has it."""

    async def send(reducer, number):
        tensor = torch.tensor(parts[number])
        average = await reducer.accumulate_part(number, 0, tensor, weight=weights[number])
        return (average - tensor).tolist()

    async def all_send():
        reducer = FiniteReducer((torch.Size([2]),), len(parts))
        answers = await asyncio.gather(*(send(reducer, number) for number in range(len(parts))))
        return answers, dict(reducer.refused), reducer.spoiled

    return wait_for_result(all_send())


def test_a_part_that_is_not_finite_is_left_out_and_its_sender_gets_the_mean():
    answers, refused, spoiled = reduce_part([1.0, 2.0], [torch.nan, 0.0], [3.0, 6.0], weights=[1, 5, 3])
    assert answers == [[1.5, 3.0], [2.5, 5.0], [-0.5, -1.0]]
    assert refused == {1: 1} and not spoiled


@pytest.mark.parametrize("weight", [torch.nan, torch.inf, -1.0])
def test_a_weight_that_is_none_is_refused_with_its_part(weight):
    answers, refused, _ = reduce_part([1.0, 2.0], [9.0, 9.0], weights=[1, weight])
    assert answers == [[0.0, 0.0], [1.0, 2.0]] and refused == {1: 1}


def test_where_nobody_has_any_weight_all_keep_their_own():
    answers, refused, spoiled = reduce_part([1.0, 2.0], [9.0, 9.0], weights=[0.0, 0.0])
    assert answers == [[0.0, 0.0], [0.0, 0.0]] and not refused and not spoiled


def test_numbers_that_add_up_to_none_spoil_no_tensor():
    answers, _, spoiled = reduce_part([3e38, 2.0], [3e38, 9.0], weights=[1.0, 1.0])
    assert answers == [[0.0, 0.0], [0.0, 0.0]] and spoiled


def test_a_sender_that_dies_while_its_part_is_averaged_takes_no_other_down():
    async def one_dies():
        reducer = FiniteReducer((torch.Size([1]),) * 2, 3)
        first = [asyncio.ensure_future(reducer.accumulate_part(n, 0, torch.tensor([float(n)]))) for n in (1, 2)]
        await asyncio.sleep(0.01)
        first[1].cancel()  # as hivemind does with the handler of a connection that breaks
        reducer.on_sender_failed(2)
        means = [await reducer.accumulate_part(0, 0, torch.tensor([0.0])), await first[0]]
        return *means, *await asyncio.gather(*(reducer.accumulate_part(n, 1, torch.tensor([float(n)])) for n in (0, 1)))

    assert [mean.item() for mean in wait_for_result(one_dies())] == [1.0, 1.0, 0.5, 0.5]
