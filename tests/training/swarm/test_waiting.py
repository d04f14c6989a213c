"""How long a peer waits for a group: what it makes of what it sees of the others meanwhile."""

from types import SimpleNamespace

import pytest
from hivemind.averaging.control import AveragingStage
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.groups import AveragedGroup, RoundReport
from training.swarm.matchmaking import PatientMatchmaking
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.waiting import LeftBehindError, NobodyElseError, await_group


class Round:
    """A round that finds its group when it was waited for so many times."""

    stage = AveragingStage.LOOKING_FOR_GROUP
    cancelled = False

    def __init__(self, looks):
        self.looks = looks

    def result(self, timeout):
        self.looks -= 1
        if self.looks >= 0:
            raise TimeoutError
        return "a group"

    def done(self):
        return False

    def cancel(self):
        self.cancelled = True


def wait(round_, *seen):
    """What comes of waiting where each look at the others sees this: an error, or the newest epoch and how many."""
    looks = iter(seen)

    def look_around():
        if isinstance(what := next(looks), Exception):
            raise what
        return what

    return await_group(round_, usual_seconds=0, timeout_seconds=60, newest_epoch=7, look_around=look_around)


def test_a_look_that_is_not_answered_is_no_reason_to_go_on_alone():
    assert wait(Round(3), TimeoutError(), (7, 2), TimeoutError()) == "a group"


@pytest.mark.parametrize("seen, error", [((8, 2), LeftBehindError), ((7, 0), NobodyElseError)])
def test_a_peer_stops_waiting_when_the_others_have_gone_on_or_are_gone(seen, error):
    round_ = Round(3)
    with pytest.raises(error):
        wait(round_, (7, 2), seen)
    assert round_.cancelled


def average_with_the_rest(group, others):
    """What a peer has whose group was this one, while so many others train; with what the next group was told."""
    again, told = Round(0), []
    again.allow_allreduce = lambda: told.append(again.weight)
    peer = SimpleNamespace(
        grad_averager=SimpleNamespace(schedule_step=lambda timeout: again),
        averaging_timeout=60,
        _look_around=lambda: (7, others),
        _expect_peers=lambda: None,
        _await_group=lambda control, ending: averaged(senders=2, bytes_sent=20) if control is again else None,
    )
    found = SwarmOptimizer._average_with_the_rest(peer, SimpleNamespace(weight=32), group, SimpleNamespace(notes=[]))
    return found.report, told


def averaged(**facts):
    unknown = dict.fromkeys(("own_share", "weight", "torn"))
    return AveragedGroup({}, RoundReport(group_size=2, **unknown, **{"bytes_received": 1, "seconds": 1.0} | facts))


def test_a_peer_whose_groupmates_are_all_lost_averages_with_those_who_are_left():
    alone = averaged(senders=1, bytes_sent=3, lost=("one that left",))
    report, told = average_with_the_rest(alone, others=1)
    assert (report.senders, report.bytes_sent, report.bytes_received) == (2, 23, 2)
    assert told == [32]  # the weight of the same gradients
    report, told = average_with_the_rest(alone, others=0)
    assert (report.senders, told) == (1, [])


def gather(told):
    """What a peer's request to join a group carries."""
    return MSGPackSerializer.dumps([None, 0, MSGPackSerializer.dumps(told)])


@pytest.mark.parametrize(
    "told, accepted",
    [(gather([7, True]), True), (gather([6, False]), False), (gather([8, False]), False), (b"?", True)],
)
def test_a_group_is_of_one_epoch(told, accepted, monkeypatch):
    """A newcomer at an epoch that has just ended would make one of the others wait, and leave the third without it."""
    monkeypatch.setattr(Matchmaking, "_check_reasons_to_reject", lambda self, request, context: None)
    leader = object.__new__(PatientMatchmaking)
    leader._arrivals = {}
    leader.step_control = SimpleNamespace(data_for_gather=gather([7, False]))
    answer = leader._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=told), None)
    assert (answer is None) == accepted
