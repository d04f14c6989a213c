"""A group agrees on its all-reduce: several peers' parts in one process, joined by calls instead of a network."""

import asyncio

import pytest
import torch
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm import agreement
from training.swarm.agreement import Agreement, Decision, Verdict
from training.swarm.allreduce import FiniteReducer
from training.swarm.coroutine import wait_for_result

PEERS = tuple(PeerID(bytes([number]) * 32) for number in range(4))
WHOLE, TORN = Verdict(whole=True), Verdict(whole=False)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(agreement, "VERDICT_SECONDS", 0.2)
    monkeypatch.setattr(agreement, "ANSWER_SECONDS", 0.4)


def decide(verdicts, *, dead=(), referees=PEERS, delays=None):
    """What each peer with a verdict takes for decided; the dead answer nobody."""

    async def group():
        there = {}

        def ask_from(own):
            async def ask(referee, message):
                if referee in dead:
                    raise ConnectionError("it is dead")
                return await there[referee].hear(own, message)

            return ask

        for peer in PEERS:
            there[peer] = Agreement(own=peer, group_id=b"first", peers=PEERS, referees=referees, ask=ask_from(peer))

        async def reach(peer):
            await asyncio.sleep((delays or {}).get(peer, 0.0))
            return await there[peer].reach(verdicts[peer])

        return dict(zip(verdicts, await asyncio.gather(*map(reach, verdicts)), strict=True))

    return wait_for_result(group())


def test_a_round_that_was_whole_for_all_counts_for_all():
    assert {decision.counts for decision in decide(dict.fromkeys(PEERS, WHOLE)).values()} == {True}


@pytest.mark.parametrize("victim", PEERS)
def test_the_survivors_repeat_a_torn_round_in_one_group(victim):
    """Also if only one of them has noticed, and if the dead peer was to be the referee."""
    survivors = tuple(peer for peer in PEERS if peer != victim)
    for noticed in survivors:
        verdicts = dict.fromkeys(survivors, WHOLE)
        verdicts[noticed] = Verdict(whole=False, lost=frozenset({victim}))
        decisions = decide(verdicts, dead={victim})
        assert len({decision.group_id for decision in decisions.values()}) == 1
        assert {decision.members for decision in decisions.values()} == {survivors}


def test_a_peer_that_is_silent_is_waited_for_only_so_long_and_then_told_what_was_decided():
    late = PEERS[3]
    decisions = decide(dict.fromkeys(PEERS, WHOLE), delays={late: 0.5})
    assert all(decision.counts for decision in decisions.values())
    decisions = decide({**dict.fromkeys(PEERS, WHOLE), PEERS[1]: TORN}, delays={late: 0.5})
    assert {decision.members for decision in decisions.values()} == {PEERS[:3]}


def test_peers_in_client_mode_find_another_referee():
    verdicts = dict.fromkeys((PEERS[1], PEERS[2], PEERS[3]), TORN)
    decisions = decide(verdicts, dead={PEERS[0]}, referees=(PEERS[0], PEERS[2]))
    assert {decision.members for decision in decisions.values()} == {PEERS[1:]}


def test_a_peer_whose_referees_are_all_gone_decides_for_itself():
    alone = {PEERS[1]: TORN}
    assert decide(alone, dead={PEERS[0]}, referees=PEERS[:1])[PEERS[1]].members == (PEERS[1],)
    assert decide({PEERS[1]: WHOLE}, dead={PEERS[0]}, referees=PEERS[:1])[PEERS[1]].counts


def test_strangers_have_no_say_and_cannot_be_named():
    stranger = PeerID(b"9" * 32)

    async def ask_a_stranger_in():
        part = Agreement(own=PEERS[0], group_id=b"first", peers=PEERS, referees=PEERS, ask=None)
        return await part.hear(stranger, TORN.message(b"first"))

    assert wait_for_result(ask_a_stranger_in()).code == averaging_pb2.PROTOCOL_VIOLATION
    for members in ((stranger, PEERS[0]), (PEERS[1], PEERS[0]), ()):
        with pytest.raises(ValueError, match="the referee"):
            Decision.read(Decision(group_id=b"second", members=members).message(), PEERS)


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
