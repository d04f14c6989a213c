"""Who trains, by the records that a peer finds; a real node, and records as hivemind's peers store them."""

import pytest
from hivemind import DHT
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from training.swarm.tracker import LivelyTracker

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
