"""A round's all-reduces and their repetitions, with the all-reduces played; what is told of the peers that are lost."""

import pytest
import torch
from hivemind.p2p import PeerID

from tests.training.swarm.played import averaged
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.peers.groups import AllReduceError, Contribution, Group
from training.swarm.round.agreement import Decision
from training.swarm.round.rounds import DOUBT, REPETITIONS, Attempt, GroupAllReduce, RoundFailedError

OWN, OTHER, THIRD = (PeerID(name) for name in (b"own", b"other", b"third"))


class PlayedAllReduces:
    """Attempts come out as told, one after the other."""

    peer_id = OWN

    def __init__(self, *attempts):
        self.attempts, self.known = list(attempts), []

    async def attempt(self, tensors, infos, group, *, contribution, travel, is_repetition):
        self.known.append(group.group_id)
        return self.attempts.pop(0)

    def announce(self, group_id):
        self.known.append(group_id)

    def forget(self, group_id):
        assert group_id in self.known


def attempt(decision, *, fault=None, updates=(), absent=(), troubles=()):
    facts = {"report": averaged(torn=False).report, "decision": decision, "fault": fault}
    return Attempt(**facts, updates=updates, absent=frozenset(absent), troubles=frozenset(troubles))


def average(*attempts, peers=(OWN, OTHER)):
    """This peer's tensor after the round, its report, and the groups whose all-reduces were announced or tried."""
    tensor = torch.zeros(2)
    fractions = (1 / len(peers),) * len(peers)
    played = PlayedAllReduces(*attempts)
    group = Group(group_id=b"first", peers=peers, fractions=fractions)
    all_reduce = GroupAllReduce(all_reduces=played, group=group, contribution=Contribution(weight=32.0), travel=None)
    report = wait_for_result(all_reduce([tensor], phase=b"P"))
    return tensor.tolist(), report, played.known


def again(*members, **facts):
    return Decision(group_id=b"again", members=members, **facts)


LOST = AllReduceError("lost")


def test_tensors_change_when_the_group_agrees_that_the_result_counts():
    tensor, report, known = average(attempt(Decision(), updates=(torch.ones(2),)))
    assert tensor == [1.0, 1.0] and report.senders == 2 and report.repeated == 0 and known == [b"firstP"]


def test_those_who_were_lost_are_known_also_where_nobody_is_left():
    alone = attempt(again(OWN, solitary=True), fault=LOST, absent=[OTHER])
    tensor, report, _ = average(alone)
    assert (report.senders, report.own_share, report.lost, report.absent) == (1, 1.0, (str(OTHER),), (str(OTHER),))
    assert tensor == [0.0, 0.0]


def test_the_rest_of_a_group_repeats_the_all_reduce_and_its_result_counts():
    first = attempt(again(OWN, OTHER), fault=LOST)
    second = attempt(Decision(), updates=(torch.ones(2),))
    tensor, report, known = average(first, second, peers=(OWN, OTHER, THIRD))
    assert tensor == [1.0, 1.0] and (report.group_size, report.repeated, report.lost) == (3, 1, (str(THIRD),))
    assert known == [b"firstP", b"again", b"again"]  # tried; announced before it is tried
    assert report.bytes_sent == 2  # of both


def test_a_peer_keeps_its_tensors_if_each_repetition_fails():
    failures = [attempt(again(OWN, OTHER), fault=LOST) for _ in range(REPETITIONS + 1)]
    tensor, report, _ = average(*failures)
    assert tensor == [0.0, 0.0] and report.senders == 1 and report.torn and report.repeated == REPETITIONS


def test_a_peer_that_the_others_repeat_without_looks_for_another_group():
    for fault, said in ((LOST, "lost"), (None, "given this all-reduce up")):
        updates = () if fault else (torch.ones(2),)  # even with all answers: they are not those of the others
        with pytest.raises(AllReduceError, match=said):
            average(attempt(again(OTHER, THIRD), fault=fault, updates=updates), peers=(OWN, OTHER, THIRD))


# -- who has spoiled a round -------------------------------------------------------------------------------------------

FOURTH = PeerID(b"fourth")
ALL = (OWN, OTHER, THIRD, FOURTH)


def spoiled_by(*attempts):
    _, report, _ = average(*attempts, peers=ALL)
    return report.spoiled_by


def test_a_lost_peer_has_spoiled_the_round_if_this_peers_own_exchange_with_it_has_failed():
    rest, done = again(OWN, OTHER, FOURTH), attempt(Decision(), updates=(torch.ones(2),))
    assert spoiled_by(attempt(rest, fault=LOST, troubles=[THIRD]), done) == {str(THIRD): 1.0}
    assert spoiled_by(attempt(rest, fault=LOST), done) == {}  # the referee alone says so
    assert spoiled_by(attempt(rest, fault=LOST, troubles=[THIRD, FOURTH]), done) == {str(THIRD): 1.0}
    assert spoiled_by(attempt(rest, fault=LOST, troubles=[THIRD], absent=[THIRD]), done) == {}


def test_a_peer_that_has_lost_all_others_does_not_blame_them():
    assert spoiled_by(attempt(again(OWN), fault=LOST, troubles=ALL[1:])) == {}


def test_several_lost_peers_have_less_weight_since_some_may_be_left_out_because_of_the_others():
    pair, done = again(OWN, OTHER), attempt(Decision(), updates=(torch.ones(2),))
    assert spoiled_by(attempt(pair, fault=LOST, troubles=[THIRD, FOURTH]), done) == {
        str(THIRD): DOUBT,
        str(FOURTH): DOUBT,
    }


def test_who_withholds_what_the_group_takes_for_whole_is_known_though_the_round_has_failed():
    """It could otherwise shut a peer out of each average, and never be left out itself."""

    def blamed(troubles):
        with pytest.raises(RoundFailedError, match="lost") as failed:
            average(attempt(Decision(), fault=LOST, troubles=troubles), peers=ALL)
        return failed.value.spoiled_by

    assert blamed([THIRD]) == {str(THIRD): DOUBT}
    assert blamed([]) == blamed(ALL[1:]) == {}
