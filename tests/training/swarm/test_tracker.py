"""Who trains, by the records that a peer finds; a real node, and records as hivemind's peers store them."""

import time
from types import SimpleNamespace

import pytest
from hivemind import DHT
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from training.swarm.catching_up import CatchingUpOptimizer
from training.swarm.tracker import LivelyTracker, _PacedEvent

LIVELY_SECONDS = 5.0


def record(peer_id, epoch=3, samples=40, age=0.0):
    now = get_dht_time()
    value = {"peer_id": peer_id, "epoch": epoch, "samples_accumulated": samples, "samples_per_second": 10.0}
    return ValueWithExpiration(value={**value, "time": now - age, "client_mode": False}, expiration_time=now + 30)


@pytest.fixture(scope="module")
def node():
    dht = DHT(start=True)
    yield dht
    dht.shutdown()


@pytest.fixture
def tracker(node):
    return LivelyTracker(lively_seconds=LIVELY_SECONDS, dht=node, prefix="run", target_batch_size=64, start=False)


def see(tracker, *records):
    tracker.global_progress = tracker._parse_swarm_progress_data(dict(enumerate(records)) or None)
    return tracker.global_progress


@pytest.mark.swarm
def test_a_peer_that_finds_one_other_and_not_itself_is_not_alone(tracker):
    assert see(tracker, record(b"other")).num_peers == 2


@pytest.mark.swarm
def test_an_unanswered_look_is_not_an_empty_network(tracker, node):
    known = see(tracker, record(node.peer_id.to_bytes()), record(b"other"))
    assert known.num_peers == 2 and known.samples_accumulated == 80
    for unanswered in ((), (record(node.peer_id.to_bytes(), epoch=9),)):
        after = see(tracker, *unanswered)
        assert (after.num_peers, after.epoch, tracker.lively_peers) == (2, 3, 2)


@pytest.mark.swarm
def test_a_peer_whose_others_have_been_silent_for_long_is_alone(tracker, node):
    see(tracker, record(node.peer_id.to_bytes()), record(b"other"))
    tracker._others_seen -= LIVELY_SECONDS
    assert see(tracker, record(node.peer_id.to_bytes())).num_peers == 1
    assert see(tracker).num_peers == 0


@pytest.mark.swarm
def test_a_peer_whose_others_have_left_is_alone_at_once(tracker, node):
    see(tracker, record(node.peer_id.to_bytes()), record(b"other"))
    goodbye = ValueWithExpiration(value=None, expiration_time=get_dht_time() + 30)
    assert see(tracker, record(node.peer_id.to_bytes()), goodbye).num_peers == 1
    assert tracker.lively_peers == 1


@pytest.mark.swarm
def test_a_peer_is_not_behind_those_who_have_just_ended_the_epoch_that_it_began_with_them(tracker):
    """Its first look after that comes when they have: it ends the epoch as well, and keeps its gradients."""
    peer = object.__new__(CatchingUpOptimizer)
    peer._out_of_step, peer._should_check_synchronization_on_update = False, True
    peer.tracker, peer.state_averager = tracker, SimpleNamespace(local_epoch=0)
    assert not peer._should_load_state_from_peers()
    assert see(tracker, record(b"other", epoch=1)).epoch == 1
    tracker.fetched_global_progress_this_epoch.set()
    assert not peer._should_load_state_from_peers()
    assert tracker.ready_to_update_epoch
    see(tracker, record(b"other", epoch=2))
    assert peer._should_load_state_from_peers()


@pytest.mark.swarm
def test_records_of_the_dead_count_but_are_not_waited_for(tracker, node):
    progress = see(tracker, record(node.peer_id.to_bytes()), record(b"other", age=2 * LIVELY_SECONDS))
    assert progress.num_peers == 2 and tracker.lively_peers == 1


@pytest.mark.swarm
def test_a_peer_that_was_lost_in_an_average_is_not_waited_for_until_it_reports_again(tracker, node):
    own = record(node.peer_id.to_bytes())
    see(tracker, own, record(b"other", age=0.5))
    tracker.give_up([str(PeerID(b"other"))])
    assert see(tracker, own, record(b"other", age=0.5)).num_peers == 2 and tracker.lively_peers == 1
    see(tracker, own, record(b"other", age=-0.1))
    assert tracker.lively_peers == 2


# -- how often a peer tells its samples --------------------------------------------------------------------------------


@pytest.fixture
def telling(node):
    tracker = LivelyTracker(lively_seconds=300.0, dht=node, prefix="telling", target_batch_size=10**6, start=True)
    yield tracker
    tracker.shutdown()


def told(tracker, node, wanted, patience=10.0):
    """The samples that this peer has told, as soon as they are as wanted."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = node.get(tracker.training_progress_key, latest=True)
        last = [entry.value for entry in (found.value if found else {}).values() if entry.value is not None]
        if [(one["epoch"], one["samples_accumulated"]) for one in last] == [wanted]:
            return wanted
        time.sleep(0.05)
    return last


@pytest.mark.swarm
def test_an_epochs_beginning_is_told_at_once_and_each_micro_batch_is_not(telling, node):
    telling.report_local_progress(0, 4)
    assert told(telling, node, (0, 4)) == (0, 4)
    for samples in (8, 12, 16):
        time.sleep(0.05)
        telling.report_local_progress(0, samples)
    assert told(telling, node, (0, 16), patience=1.0) != (0, 16)  # hours are left of this epoch
    with telling.pause_updates():
        telling.update_epoch(1)
    assert told(telling, node, (1, 0)) == (1, 0)


def test_reports_come_after_a_pause_but_for_a_hurry():
    event, waits = _PacedEvent(lambda: 0.8), []
    for hurried in (False, False, True):
        event.hurry() if hurried else event.set()
        began = time.monotonic()
        assert event.wait(5.0)
        waits.append(time.monotonic() - began >= 0.6)
        event.clear()
    assert waits == [False, True, False]
    assert not event.wait(0.01)
