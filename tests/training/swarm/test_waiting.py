"""How long a peer waits for a group: what it makes of what it sees of the others meanwhile."""

import asyncio
import logging
import queue
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import AveragingStage
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.dht import DHT
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.agreement import Decision
from training.swarm.averaging import SwarmStateAverager
from training.swarm.coroutine import wait_for_result
from training.swarm.epochs import Ending
from training.swarm.groups import Attempt, AveragedGroup, RoundReport
from training.swarm.matchmaking import PatientMatchmaking
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.rounds import ReportingAverager
from training.swarm.tracker import LivelyTracker
from training.swarm.waiting import LeftBehindError, NobodyElseError, await_group


@pytest.fixture(scope="module")
def node():
    dht = DHT(start=True)
    yield dht
    dht.shutdown()


class Round:
    """A round that finds its group when it was waited for so many times."""

    stage = AveragingStage.LOOKING_FOR_GROUP
    cancelled = False

    def __init__(self, looks, group="a group"):
        self.looks, self.group = looks, group

    def result(self, timeout):
        self.looks -= 1
        if self.looks >= 0:
            raise TimeoutError
        return self.group

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


def average_with_the_rest(group, others, tracker=None):
    """What a peer has whose group was this one, while so many others train; with what the next group was told."""
    first, again, told = Round(0, group), Round(0, averaged(senders=2, bytes_sent=20)), []
    again.allow_allreduce = lambda: told.append(again.weight)
    first.weight = 32
    peer = SimpleNamespace(
        _run=SimpleNamespace(swarm=SimpleNamespace(matchmaking_seconds=0, request_timeout_seconds=0)),
        tracker=tracker or SimpleNamespace(give_up=lambda peers: None),
        grad_averager=SimpleNamespace(schedule_step=lambda timeout, epoch: told.append(epoch) or again),
        averaging_timeout=60,
        delay_grad_averaging=True,
        _look_around=lambda: (8, others()),
        _prepare_to_average=lambda: None,
    )
    peer._await_group = partial(SwarmOptimizer._await_group, peer)
    ending = Ending(epoch=7, samples=32, others=1, began=0.0)
    found = SwarmOptimizer._average_with_the_rest(peer, first, peer._await_group(first, ending), ending)
    return found.report, told


def test_a_peer_that_learns_at_the_end_of_an_epoch_that_it_is_behind_does_not_average_it():
    """What shows it is the last average, for which the next one waits where gradients are delayed.

    It would look for a group that the others look for an epoch later, and be nobody's groupmate until then.
    """
    peer = object.__new__(SwarmOptimizer)
    gradients = SimpleNamespace(local_samples_accumulated=20, reports=queue.SimpleQueue())
    peer.state_averager = SimpleNamespace(local_epoch=3, reports=queue.SimpleQueue())
    peer.state_averager.step = lambda wait_for_delayed_updates: setattr(peer, "_out_of_step", True)
    peer.tracker = SimpleNamespace(global_progress=SimpleNamespace(num_peers=2), pause_updates=nullcontext)
    peer.grad_averager, peer._out_of_step, peer.delay_optimizer_step = gradients, False, True
    peer._schema_hash, peer._compute_schema_hash, peer.status_loglevel = 0, lambda: 0, logging.DEBUG
    peer._reports, peer._state_rounds, caught_up = queue.SimpleQueue(), queue.SimpleQueue(), []
    peer._prepare_to_average = lambda: None
    peer._catch_up = lambda: caught_up.append(peer._out_of_step)
    peer._update_global_epoch(None)
    (report,) = peer.take_epoch_reports()
    assert report.missed and report.samples == 0 and "others were faster" in report.fault
    assert caught_up == [True] and peer.local_epoch == 3


def test_a_peer_asks_for_the_weights_of_the_others_once():
    """And for no more when a round of parameters has brought them, before it tells another group where it stands."""
    peer = object.__new__(SwarmOptimizer)
    peer._run = SimpleNamespace(swarm=SimpleNamespace(max_group_size=64))
    peer.tracker, peer.grad_averager = SimpleNamespace(lively_peers=2), SimpleNamespace()
    peer.state_averager = SimpleNamespace(local_epoch=7, reports=queue.SimpleQueue())
    peer._state_rounds, peer._state_round_epoch = queue.SimpleQueue(), 0
    peer._want_weights(True)

    def asks(epoch):
        peer.state_averager.local_epoch = epoch
        peer._prepare_to_average()
        return peer.grad_averager.wants_weights

    assert asks(7)
    peer._state_round_epoch = 9  # gradients are delayed: the group of epoch 7 has heard it in epoch 8
    assert not asks(8) and peer.state_averager.wants_weights
    assert asks(9)  # the round came to nothing
    peer.state_averager.reports.put(averaged(senders=2, torn=False).report)
    assert not asks(9) and not peer.state_averager.wants_weights
    assert peer._state_rounds.qsize() == 1  # its bytes are told with the epoch's


def averaged(**facts):
    unknown = dict.fromkeys(("own_share", "weight", "torn"))
    known = {"group_size": 2, "bytes_sent": 1, "bytes_received": 1, "seconds": 1.0}
    return AveragedGroup({}, RoundReport(**unknown | known | facts))


def test_a_peer_whose_groupmates_are_all_lost_averages_with_those_who_are_left():
    alone = averaged(senders=1, bytes_sent=3, lost=("one that left",))
    report, told = average_with_the_rest(alone, others=lambda: 1)
    assert (report.senders, report.bytes_sent, report.bytes_received) == (2, 23, 2)
    assert told == [7, 32]  # the gradients' epoch, though the peer is in the next one, and their weight
    report, told = average_with_the_rest(alone, others=lambda: 0)
    assert (report.senders, told) == (1, [])


def test_an_average_with_those_who_have_no_weight_is_one():
    """Of three one died; the two that were left have averaged again, one of them without weight."""
    report, told = average_with_the_rest(averaged(senders=1, group_size=3, lost=("dead",)), others=lambda: 1)
    assert (report.senders, told) == (1, [])


@pytest.mark.swarm
@pytest.mark.parametrize("lives", [True, False])
def test_a_groupmate_that_knew_nothing_of_the_group_is_not_taken_for_dead(lives, node):
    """It lives, and looks for a group: the next one is with it. Without an answer it is not waited for."""
    other = PeerID(b"other")
    tracker = LivelyTracker(lively_seconds=60, dht=node, prefix="run", target_batch_size=64, start=False)
    facts = {"epoch": 7, "samples_accumulated": 32, "samples_per_second": 10.0, "client_mode": False}
    told = {"peer_id": other.to_bytes(), "time": get_dht_time() - 1, **facts}
    records = {"other": ValueWithExpiration(value=told, expiration_time=get_dht_time() + 30)}

    def others():
        tracker._parse_swarm_progress_data(records)
        return tracker.lively_peers - 1

    alone = averaged(senders=1, lost=(str(other),), absent=(str(other),) if lives else ())
    report, _ = average_with_the_rest(alone, others, tracker)
    assert report.senders == (2 if lives else 1)


def test_those_who_were_lost_are_known_also_where_nobody_is_left():
    own, other = PeerID(b"own"), PeerID(b"other")
    alone = Decision(group_id=b"again", members=(own,), solitary=True)

    async def all_reduce(tensors, group):
        facts = {"report": averaged(senders=2).report, "decision": alone, "fault": AllreduceException("lost")}
        return Attempt(**facts, updates=(), weight=32.0, absent=frozenset([other]))

    async def run():
        registered = asyncio.Event()
        peer = SimpleNamespace(peer_id=own, _all_reduce=all_reduce, _pending_groups_registered=registered)
        group = GroupInfo(b"first", (own, other), (b"", b""))
        await ReportingAverager._run_allreduce_inplace_(peer, [], group, peer_fractions=(0.5, 0.5))
        return peer._last_report

    report = wait_for_result(run())
    assert (report.senders, report.own_share, report.lost, report.absent) == (1, 1.0, (str(other),), (str(other),))


@pytest.mark.parametrize("looked", [1.5, 0.3])
def test_a_round_of_parameters_without_a_group_ends_before_the_next_gradients(looked):
    """After the usual time of looking for one, of which a part may be left."""
    round_, began = Round(0), time.monotonic() - looked
    round_.triggered = True
    peer = SimpleNamespace(
        matchmaking_kwargs={"min_matchmaking_time": 0.4, "request_timeout": 0.2}, last_round=(round_, began)
    )
    round_.stage = AveragingStage.RUNNING_ALLREDUCE
    SwarmStateAverager._end_search(peer)
    assert not round_.cancelled
    round_.stage = AveragingStage.LOOKING_FOR_GROUP
    SwarmStateAverager._end_search(peer)
    assert round_.cancelled and time.monotonic() - began > 0.6


def gather(told):
    """What a peer's request to join a group carries."""
    return MSGPackSerializer.dumps([None, 0, MSGPackSerializer.dumps(told)])


def leader_of_two(monkeypatch, most=64):
    """One that knows of one other, at epoch 7; hivemind would take whoever asks."""
    monkeypatch.setattr(Matchmaking, "_check_reasons_to_reject", lambda self, request, context: None)
    leader = object.__new__(PatientMatchmaking)
    leader.request_timeout, leader._arrivals = 60, {}
    leader._expected, leader._most = 2, most
    leader.step_control = SimpleNamespace(data_for_gather=gather([7, False, 2]))
    return leader


@pytest.mark.parametrize(
    "told, accepted",
    [(gather([7, True, 2]), True), (gather([6, False, 2]), False), (gather([8, False, 2]), False), (b"?", True)],
)
def test_a_group_is_of_one_epoch(told, accepted, monkeypatch):
    """A newcomer at an epoch that has just ended would make one of the others wait, and leave the third without it."""
    answer = leader_of_two(monkeypatch)._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=told), None)
    assert (answer is None) == accepted


@pytest.mark.parametrize("told, most, expected", [(2, 64, 2), (3, 64, 3), (9, 64, 3), (3, 2, 2), (0, 64, 2)])
def test_a_group_waits_for_one_more_if_a_newcomer_knows_of_more(told, most, expected, monkeypatch):
    """Else it would make the group whole in the place of one of the others."""
    leader, context = leader_of_two(monkeypatch, most), object()
    leader._arrivals[id(context)] = time.monotonic()
    assert leader._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=gather([7, True, told])), context) is None
    assert leader._expected == expected


def test_who_has_waited_long_for_an_answer_may_have_given_up(monkeypatch):
    leader, context = leader_of_two(monkeypatch), object()
    leader._arrivals[id(context)] = time.monotonic() - leader.request_timeout
    answer = leader._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=gather([7, False, 2])), context)
    assert answer.code == averaging_pb2.NOT_LOOKING_FOR_GROUP
