"""How long a peer waits for a group: what it makes of what it sees of the others meanwhile."""

from types import SimpleNamespace

import pytest
from hivemind.averaging.control import AveragingStage
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer

from training.errors import TrainingError
from training.swarm.matchmaking import PatientMatchmaking
from training.swarm.optimizer import SwarmOptimizer


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

    peer = SimpleNamespace(
        _run=SimpleNamespace(swarm=SimpleNamespace(matchmaking_seconds=0, request_timeout_seconds=0)),
        averaging_timeout=60,
        delay_grad_averaging=False,
        _look_around=look_around,
    )
    return SwarmOptimizer._await_group(peer, round_, SimpleNamespace(epoch=7, others=2))


def test_a_look_that_is_not_answered_is_no_reason_to_go_on_alone():
    assert wait(Round(3), TimeoutError(), (7, 2), TimeoutError()) == "a group"


@pytest.mark.parametrize("seen", [(8, 2), (7, 0)])
def test_a_peer_stops_waiting_when_the_others_have_gone_on_or_are_gone(seen):
    round_ = Round(3)
    with pytest.raises(TrainingError if seen == (7, 0) else Exception, match="nobody else" if seen == (7, 0) else ""):
        wait(round_, (7, 2), seen)
    assert round_.cancelled


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
    leader.step_control = SimpleNamespace(data_for_gather=gather([7, False]))
    answer = leader._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=told), None)
    assert (answer is None) == accepted
