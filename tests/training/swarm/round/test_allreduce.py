"""All-reduces without a network: whole ones against the mean in double precision, and one peer's part in torn ones."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest
import torch
from hivemind.compression import NoCompression, Uniform8BitQuantization
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm.engine import engine
from training.swarm.engine.codecs import decode, exchange_codec
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.peers.groups import AllReduceError, Group
from training.swarm.round.allreduce import AllReduce, Travel, Trouble
from training.swarm.round.reducer import Reducer, WeightedMean

engine.prepare()

OWN, OTHER = PeerID(b"1" * 32), PeerID(b"2" * 32)
SHAPES = ((64, 33), (7,), (1000,), (0,), ())
Data = averaging_pb2.AveragingData
PLAIN = Travel(codec=NoCompression(), part_bytes=1024, reduction=WeightedMean())


# -- whole groups ------------------------------------------------------------------------------------------------------


def tensors_of(number):
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


async def stream_to(reducer, sender, parts):
    """A call from one peer of a group to another, as the network opens it."""
    return reducer().answer(sender, parts)


async def meet(weights, fractions, *, travel=PLAIN, make=tensors_of, spoil=lambda peers: None):
    """The all-reduces of a group after they have run, with what each has raised."""
    ids = tuple(PeerID(bytes([number]) * 32) for number in range(len(weights)))
    group, peers = Group(group_id=b"group", peers=ids, fractions=fractions), {}

    def call_from(sender):
        return lambda reducer, parts: stream_to(lambda: peers[reducer], sender, parts)

    for number, (one, weight) in enumerate(zip(ids, weights, strict=True)):
        facts = {"tensors": make(number), "weight": weight, "travel": travel, "call": call_from(one)}
        peers[one] = AllReduce(own=one, group=group, **facts)
    spoil(peers)
    faults = await asyncio.wait_for(asyncio.gather(*(one.run() for one in peers.values()), return_exceptions=True), 20)
    return list(peers.values()), faults


@pytest.mark.parametrize("fractions", [(1, 1, 1), (5, 0, 2), (0, 0, 1), (0.6, 0.3, 0.1)])
@pytest.mark.parametrize("weights", [(1.0, 2.0, 5.0), (8.0, 0.0, 0.5)])
@pytest.mark.parametrize("part_bytes", [64, 1 << 19])
def test_all_get_the_mean_of_all_weighted_by_their_samples(fractions, weights, part_bytes):
    travel = Travel(codec=NoCompression(), part_bytes=part_bytes, reduction=WeightedMean())
    peers, faults = wait_for_result(meet(weights, fractions, travel=travel))
    assert faults == [None] * 3
    for number, peer in enumerate(peers):
        report = peer.report()
        assert not report.torn and report.group_size == 3 and peer.verdict(None).whole
        assert report.reduced_share == pytest.approx(fractions[number] / sum(fractions), abs=0.4)
        if peer.parts[peer.own]:
            assert (report.senders, report.weight) == (sum(weight > 0 for weight in weights), sum(weights))
            assert report.own_share == pytest.approx(weights[number] / sum(weights))
        else:
            assert report.weight is report.own_share is None
        assert_mean(peer, number, weights, error=1e-6)


def assert_mean(peer, number, weights, *, error):
    """Tensors plus updates are the mean in double precision, up to this share of its length."""
    all_tensors = [tensors_of(one) for one in range(len(weights))]
    for place, (own, update) in enumerate(zip(all_tensors[number], peer.updates, strict=True)):
        mean = sum(weight * one[place].double() for weight, one in zip(weights, all_tensors, strict=True)) / sum(
            weights
        )
        assert float((own + update - mean).norm()) <= error * float(mean.norm())


@pytest.mark.parametrize("codec", ["uniform8", "blockwise8", "float16"])
def test_codecs_change_the_mean_by_no_more_than_their_error(codec):
    travel = Travel(codec=exchange_codec(1000, codec), part_bytes=1 << 19, reduction=WeightedMean())
    peers, faults = wait_for_result(meet((1.0, 3.0), (1, 1), travel=travel))
    assert faults == [None, None]
    for number, peer in enumerate(peers):
        assert_mean(peer, number, (1.0, 3.0), error=0.04)
        assert peer.bytes_sent < 0.7 * 4 * sum(tensor.numel() for tensor in tensors_of(0))


@pytest.mark.parametrize("rounds_own", [True, False])
def test_equal_tensors_stay_equal_if_own_parts_are_rounded_as_well(rounds_own):
    travel = Travel(
        codec=Uniform8BitQuantization(), part_bytes=512, reduction=WeightedMean(), round_own_parts=rounds_own
    )
    same = partial(tensors_of, 7)
    peers, _ = wait_for_result(meet((1.0, 1.0), (1, 1), travel=travel, make=lambda number: same()))
    unchanged = [not bool(update.any()) for peer in peers for update in peer.updates if update.numel()]
    assert all(unchanged) == rounds_own


GATHERING = Travel(codec=NoCompression(), part_bytes=64, reduction=WeightedMean(), gathers=True)


def message_of(number):
    return [torch.randint(256, (1000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))]


@pytest.mark.parametrize("fractions", [(1, 1), (1, 1, 1, 1), (5, 0, 2), (0, 0, 1)])
def test_all_get_the_messages_of_all_others_in_the_groups_order(fractions):
    weights = [1.0] * len(fractions)
    peers, faults = wait_for_result(meet(weights, fractions, travel=GATHERING, make=message_of))
    assert faults == [None] * len(fractions)
    messages = [message_of(number)[0] for number in range(len(fractions))]
    for number, peer in enumerate(peers):
        others = torch.stack(messages[:number] + messages[number + 1 :])
        assert torch.equal(peer.updates[0], others) and peer.verdict(None).whole
    # As many bytes in all as if each had sent its message to each other one; from a slow peer fewer, from clients one.
    sent = [peer.bytes_sent for peer in peers]
    assert sum(sent) == 1000 * len(peers) * (len(peers) - 1)
    assert all(one == 1000 for one, fraction in zip(sent, fractions, strict=True) if not fraction)
    if fractions == (5, 0, 2):
        assert sent[2] < sent[0]


@pytest.mark.parametrize("fault", ["length", "type", "weight"])
def test_a_part_that_cannot_be_gathered_arrives_as_zeros_and_its_sender_is_named(fault):
    def spoil(peers):
        third = list(peers.values())[2]
        if fault == "weight":
            third.weight = float("nan")
        for parts in third.parts.values():
            for number, part in enumerate(parts):
                values = {"length": part.values[:-1], "type": part.values.float(), "weight": part.values}[fault]
                parts[number] = replace(part, values=values)

    peers, _ = wait_for_result(meet((1.0,) * 3, (1, 1, 0), travel=GATHERING, make=message_of, spoil=spoil))
    for peer in peers[:2]:
        assert not bool(peer.updates[0][1].any())
        assert peer.report().refused == (str(peers[2].own),)


def test_nobody_uses_an_average_of_which_a_sender_breaks_off():
    async def break_off(self, reducer, sent=AllReduce._outgoing):
        count = 0
        async for message in sent(self, reducer):
            if self.own == break_off.own and count:
                raise ConnectionError("it breaks off")
            count += 1
            yield message

    def spoil(peers):
        break_off.own = list(peers)[2]
        for peer in peers.values():
            peer._outgoing = partial(break_off, peer)
            peer._on_fault = peer.give_up

    peers, faults = wait_for_result(meet((1.0, 1.0, 1.0), (1, 1, 1), spoil=spoil))
    assert all(isinstance(fault, Exception) for fault in faults)
    for peer in peers[:2]:
        named = peer.verdict(AllReduceError("lost"), is_repetition=True).faulty
        assert named <= {peers[2].own}  # it, or nobody: the other one has said that it is not the cause


# -- one peer, with groupmates that are played -------------------------------------------------------------------------


def one_peer(*, own_share, call=None, others=(OTHER,), on_fault=lambda: None, chunk_seconds=None):
    """One peer of a group. It reaches the others by `call`, or by the items of `call` that have their ids."""
    calls = call if isinstance(call, dict) else {OTHER: call}
    return AllReduce(
        own=OWN,
        group=Group(
            group_id=b"group",
            peers=(OWN, *others),
            fractions=(own_share, *[(1 - own_share) / len(others)] * len(others)),
        ),
        tensors=[torch.ones(4096)],
        weight=1.0,
        travel=Travel(codec=NoCompression(), part_bytes=1024, reduction=WeightedMean(), chunk_seconds=chunk_seconds),
        call=lambda peer, parts: calls[peer](parts),
        on_fault=on_fault,
    )


async def parts_of(peer, *, requires_grad=False, hangs_up=True):
    """All parts of a sender, the same as the peer's own."""
    async for message in peer._encoded(OWN, NoCompression()):
        message.tensor_part.requires_grad = requires_grad
        yield message
    if not hangs_up:
        await asyncio.sleep(60)


@pytest.mark.parametrize("end", ["silence", "a word", "an error"])
def test_a_peer_in_client_mode_hears_at_once_that_a_reducer_is_gone(end):
    """It has sent one part of many, and cannot send more."""

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
        peer = one_peer(own_share=0.0, call=take_one, on_fault=faults.set)
        with pytest.raises((AllReduceError, ConnectionError)):
            await asyncio.wait_for(peer.run(), 5)
        return faults.is_set() and not peer.verdict(None).whole and peer.in_trouble(Trouble.BROKEN) == {OTHER}

    assert wait_for_result(average())


def test_a_reducer_that_has_given_up_because_of_another_one_is_not_named():
    async def give_up(parts):
        async def answers():
            yield Data(code=averaging_pb2.GROUP_DISBANDED)

        return answers()

    async def average():
        others = (OTHER, PeerID(b"3" * 32))
        peer = one_peer(own_share=0.0, call=dict.fromkeys(others, give_up), others=others)
        with pytest.raises(AllReduceError):
            await asyncio.wait_for(peer.run(), 5)
        return peer.verdict(AllReduceError("lost"), is_repetition=True)

    verdict = wait_for_result(average())
    assert not verdict.whole and not verdict.faulty


def test_an_answer_with_numbers_that_are_not_finite_is_refused_and_its_reducer_named():
    async def answer(parts):
        async def answers():
            async for message in parts:
                spoilt = torch.full_like(decode(message.tensor_part), torch.nan)
                part = NoCompression().compress(spoilt, None)
                yield Data(code=averaging_pb2.AVERAGED_PART, tensor_part=part)

        return answers()

    async def average():
        peer = one_peer(own_share=0.0, call=answer)
        with pytest.raises(AllReduceError, match="not finite"):
            await asyncio.wait_for(peer.run(), 5)
        return peer.verdict(AllReduceError("lost"))

    assert wait_for_result(average()).faulty == {OTHER}


def test_a_sender_that_never_calls_is_named_in_the_first_attempt():
    async def silent(parts):
        async def answers():
            await asyncio.sleep(60)
            yield

        return answers()

    async def average():
        over = asyncio.Event()
        peer = one_peer(own_share=0.5, call=silent, on_fault=over.set, chunk_seconds=0.1)
        running = asyncio.create_task(peer.run())
        await asyncio.wait_for(over.wait(), 5)
        peer.give_up()
        running.cancel()
        return peer.verdict(AllReduceError("lost"))

    assert wait_for_result(average()).faulty == {OTHER}


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

        return call

    async def average():
        calls = {peer: reducer(number < slow_readers) for number, peer in enumerate(others)}
        peer = one_peer(own_share=0.0, call=calls, others=others)
        running = asyncio.create_task(peer.run())
        await asyncio.sleep(0.2)
        late, got_all = peer.late(), sum(mate.has_all_of_mine for mate in peer.mates.values())
        running.cancel()
        return late.parts.keys() & set(others[:slow_readers]), got_all

    found, got_all = wait_for_result(average())
    assert len(found) == late and got_all == len(others) - slow_readers


def test_a_reducer_that_gives_up_tells_those_who_still_send():
    async def send_and_wait():
        peer = one_peer(own_share=1.0)

        async def slow_sender():
            yield await anext(parts_of(peer))
            await asyncio.sleep(60)

        answers = peer.answer(OTHER, slow_sender())
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.05)
        assert not first.done()
        peer.give_up()
        codes = [(await asyncio.wait_for(first, 5)).code]
        return codes + [message.code async for message in answers]

    assert wait_for_result(send_and_wait()) == [averaging_pb2.GROUP_DISBANDED]


def test_a_sender_that_gives_up_says_so_in_place_of_the_next_part():
    async def give_up():
        peer = one_peer(own_share=0.0)
        messages = peer._outgoing(OTHER)
        codes = [(await anext(messages)).code]
        peer.give_up()
        return codes + [message.code async for message in messages]

    assert wait_for_result(give_up()) == [averaging_pb2.PART_FOR_AVERAGING, averaging_pb2.GROUP_DISBANDED]


def test_a_reducer_answers_a_sender_of_which_nothing_more_comes():
    """It has sent all its parts, and hangs up when it has all answers: its word that this was all may be lost."""

    async def send_all():
        peer = one_peer(own_share=1.0)
        own = asyncio.ensure_future(peer.run())
        answers = [answer async for answer in peer.answer(OTHER, parts_of(peer, hangs_up=False))]
        await own
        return len(answers) == len(peer.parts[OWN]) > 1 and not peer.report().torn

    assert wait_for_result(asyncio.wait_for(send_all(), 5))


def test_a_sender_that_hangs_up_as_soon_as_it_has_all_answers_is_not_lost():
    async def send_all():
        faults = asyncio.Event()
        peer = one_peer(own_share=1.0, on_fault=faults.set)
        own = asyncio.ensure_future(peer.run())
        answers = peer.answer(OTHER, parts_of(peer))
        for _ in peer.parts[OWN]:
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
        peer = one_peer(own_share=1.0)
        own = asyncio.ensure_future(peer.run())
        first = peer.answer(OTHER, parts_of(peer))
        began = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        second = [answer.code async for answer in peer.answer(OTHER, parts_of(peer))]
        answers = [await began] + [answer async for answer in first]
        await own
        return second, {answer.code for answer in answers}, peer.report().torn

    expected = [averaging_pb2.PROTOCOL_VIOLATION], {averaging_pb2.AVERAGED_PART}, False
    assert wait_for_result(asyncio.wait_for(send_twice(), 5)) == expected


@pytest.mark.parametrize("fault", ["breaks off", "sends what cannot be read", "is silent"])
def test_a_sender_that_fails_ends_the_all_reduce(fault):
    async def send():
        faults = asyncio.Event()
        peer = one_peer(own_share=1.0, on_fault=faults.set, chunk_seconds=0.2)

        async def parts():
            message = await anext(parts_of(peer))
            if fault == "sends what cannot be read":
                message.tensor_part.buffer = b"?"
            yield message
            if fault == "is silent":
                await asyncio.sleep(60)

        running = asyncio.create_task(peer.run())
        codes = [answer.code async for answer in peer.answer(OTHER, parts())]
        running.cancel()
        return codes, faults.is_set(), peer.in_trouble(Trouble.BROKEN)

    codes, has_failed, troubles = wait_for_result(asyncio.wait_for(send(), 5))
    assert has_failed and troubles == {OTHER} and averaging_pb2.AVERAGED_PART not in codes[1:]


def test_nothing_is_noted_for_a_backward_pass_whatever_a_message_asks_for():
    """A part that asks for gradients would make averages leaves of a graph, which nothing ever frees."""

    async def send():
        peer = one_peer(own_share=1.0)
        own = asyncio.ensure_future(peer.run())
        messages = parts_of(peer, requires_grad=True)
        taken = [decode(one.tensor_part) async for one in peer._incoming(messages)]
        answers = peer.answer(OTHER, parts_of(peer, requires_grad=True))
        assert [answer.code async for answer in answers][-1] == averaging_pb2.AVERAGED_PART
        await own
        return taken

    assert not any(part.requires_grad for part in wait_for_result(asyncio.wait_for(send(), 5)))


# -- what a reducer takes ----------------------------------------------------------------------------------------------


def reduce_part(*parts, weights):
    """What comes back to each sender of one part: the way from what it sent to the mean."""

    async def all_send():
        reducer = Reducer([2], range(len(parts)), WeightedMean())
        sent = (reducer.take(n, torch.tensor(part), weights[n]) for n, part in enumerate(parts))
        answers = await asyncio.gather(*sent)
        return [answer.tolist() for answer in answers], dict(reducer.refused), reducer.has_overflowed

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


def test_a_handler_that_is_cancelled_takes_the_average_from_no_other_sender():
    """As the handler of a connection that breaks when its part has come."""

    async def one_is_cancelled():
        reducer = Reducer([1], range(3), WeightedMean())
        first = [asyncio.ensure_future(reducer.take(n, torch.tensor([float(n)]), 1.0)) for n in (1, 2)]
        await asyncio.sleep(0.01)
        first[1].cancel()
        return await reducer.take(0, torch.tensor([0.0]), 1.0), await first[0]

    assert [update.item() for update in wait_for_result(one_is_cancelled())] == [1.0, 0.0]


def test_an_all_reduce_that_is_given_up_lets_nobody_wait():
    async def give_up():
        reducer = Reducer([1], range(2), WeightedMean())
        first = asyncio.ensure_future(reducer.take(0, torch.zeros(1), 1.0))
        await asyncio.sleep(0.01)
        reducer.close()
        for late in (first, reducer.take(1, torch.zeros(1), 1.0)):
            with pytest.raises(AllReduceError):
                await asyncio.wait_for(late, 5)

    wait_for_result(give_up())
