"""The peers that train, by the records that a peer finds in a real node."""

import os
import signal
import time
from functools import partial

import pytest
from hivemind.dht import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.engine.process import DHT
from training.swarm.peers import progress as progress_module
from training.swarm.peers.pacing import PacedEvent
from training.swarm.peers.progress import Progress
from training.swarm.peers.records import progress_validator
from training.swarm.peers.times import LIVELY_WINDOWS

LIVELY_SECONDS = 5.0


def record(peer_id, epoch=3, samples=40, age=0.0):
    now = get_dht_time()
    value = {"peer_id": peer_id, "epoch": epoch, "samples_accumulated": samples, "samples_per_second": 10.0}
    value |= {"time": now - age, "counted_at": now - age, "step_samples": 0, "client_mode": False}
    return ValueWithExpiration(value=value, expiration_time=now + 30)


@pytest.fixture(scope="module")
def node():
    dht = DHT(start=True)
    yield dht
    dht.shutdown()


@pytest.fixture
def progress(node):
    return Progress(matchmaking_seconds=LIVELY_SECONDS / LIVELY_WINDOWS, dht=node, prefix="run", target_batch_size=64)


def see(progress, *records):
    """What the peer knows after a look that finds these."""
    progress._global = progress._combine(dict(enumerate(records)) or None)
    return progress._global


def samples_of_others(known):
    """Samples in the others' records, without those that they should have computed since."""
    return known.others_bring(0.0)


def met(progress, *peers):
    """These have brought weight to an average, so they have a voice."""
    for peer in peers:
        progress.peers.brought(peer, 1.0)


@pytest.mark.parametrize("length, accepted", [(34, True), (64, True), (65, False), (1024, False)])
def test_a_record_names_a_peer_by_an_id_that_is_read_at_once(length, accepted):
    """All look at all records every few seconds, and to read an id of 1024 bytes takes two milliseconds."""
    key, place = DHTID.generate("run_progress").to_bytes(), b"[owner:ssh-rsa AAAA]"
    packed = [MSGPackSerializer.dumps(one) for one in (place, record(bytes(length)).value)]
    assert progress_validator("run").validate(DHTRecord(key, *packed, get_dht_time() + 30)) == accepted


@pytest.mark.swarm
def test_a_peer_that_finds_one_other_and_not_itself_is_not_alone(progress):
    assert see(progress, record(b"other")).num_peers == 2


@pytest.mark.swarm
def test_an_unanswered_look_is_not_an_empty_network(progress, node):
    met(progress, b"other")
    known = see(progress, record(node.peer_id.to_bytes()), record(b"other"))
    assert known.num_peers == 2 and samples_of_others(known) == 40
    for unanswered in ((), (record(node.peer_id.to_bytes(), epoch=9),)):
        after = see(progress, *unanswered)
        assert (after.num_peers, after.epoch, progress.lively_peers) == (2, 3, 2)


@pytest.mark.swarm
def test_a_peer_whose_others_have_been_silent_for_long_is_alone(progress, node):
    see(progress, record(node.peer_id.to_bytes()), record(b"other"))
    progress._others_seen -= LIVELY_SECONDS
    assert see(progress, record(node.peer_id.to_bytes())).num_peers == 1
    assert see(progress).num_peers == 0


@pytest.mark.swarm
def test_a_peer_whose_others_have_left_is_alone_at_once(progress, node):
    see(progress, record(node.peer_id.to_bytes()), record(b"other"))
    goodbye = ValueWithExpiration(value=None, expiration_time=get_dht_time() + 30)
    assert see(progress, record(node.peer_id.to_bytes()), goodbye).num_peers == 1
    assert progress.lively_peers == 1


@pytest.mark.swarm
def test_a_peer_is_not_behind_those_who_have_just_ended_the_epoch_that_it_began_with_them(progress):
    """Its first look after that comes when they have: it ends the epoch as well, and keeps its gradients."""
    met(progress, b"other")
    assert not progress.is_behind(0)
    assert see(progress, record(b"other", epoch=1)).epoch == 1
    assert not progress.is_behind(0)
    assert progress.ready_to_update_epoch
    see(progress, record(b"other", epoch=2))
    assert progress.is_behind(0)


@pytest.mark.swarm
def test_a_peer_is_behind_if_its_first_look_in_an_epoch_finds_a_newer_one(progress):
    """And not by a look that was begun before the epoch: the others may have ended it together with this peer."""
    with progress.pause():
        progress.begin_epoch(4)
    assert not progress.is_behind(4)
    see(progress, record(b"other", epoch=5))
    assert not progress.is_behind(4)  # as after a look of the last epoch
    progress._has_looked = True
    assert progress.is_behind(4)
    assert not progress.is_behind(4)  # it has asked; now one epoch is what ending this one catches up with


@pytest.mark.swarm
def test_one_of_several_peers_leads_nobody_to_an_epoch_that_the_others_have_not_reached(progress):
    with progress.pause():
        progress.begin_epoch(3)
    met(progress, b"other", b"third", b"liar")
    liar = record(b"liar", epoch=10**9, samples=10**12)
    known = see(progress, record(b"other"), liar)
    assert (known.epoch, samples_of_others(known), progress.is_behind(3)) == (3, 40, False)
    assert progress.look_around()[0] == 3
    assert not progress.ready_to_update_epoch
    assert see(progress, record(b"other", epoch=5), record(b"third", epoch=5), liar).epoch == 5
    assert progress.is_behind(3)


@pytest.mark.swarm
def test_the_samples_of_a_peer_that_has_ended_the_epoch_still_count(progress, node, monkeypatch):
    """Else the others would compute its samples again before they end the epoch."""
    met(progress, b"ada", b"bob")
    with progress.pause():
        progress.begin_epoch(3)
    began = get_dht_time()
    monkeypatch.setattr(progress_module, "get_dht_time", lambda: began + 4.0)
    peers = [record(b"bob", samples=20, age=-4.0), record(node.peer_id.to_bytes(), samples=0, age=-4.0)]
    known = see(progress, record(b"ada", epoch=4, samples=10, age=-4.0), *peers)
    assert known.epoch == 3 and known.others_bring(began + 4.0) == pytest.approx(20 + (4.0 * 10.0 - 10), abs=0.5)
    assert progress.reports_of(3)[b"ada"] == pytest.approx(30.0, abs=0.5)


@pytest.mark.swarm
def test_a_few_that_have_averaged_by_themselves_leave_the_others_not_behind(progress, monkeypatch):
    """Chaos, seed 78: two of five peers had averaged; the other three dropped their samples, for no group of theirs."""
    with progress.pause():
        progress.begin_epoch(47)
    peers = {few: [record(b"%d" % number, epoch=48 if number < few else 47) for number in range(4)] for few in (2, 3)}
    for few, epoch in ((2, 47), (3, 48)):
        monkeypatch.setattr(progress, "_look", lambda few=few: dict(enumerate(peers[few])))
        assert progress.look_around() == (48, 4)
        assert progress.look_who_stays() == (epoch, 4)


@pytest.mark.swarm
def test_newcomers_and_the_dead_have_no_say_in_how_far_the_run_is(progress):
    new, dead = record(b"new", epoch=0, samples=0), record(b"dead", epoch=4, age=2 * LIVELY_SECONDS)
    assert see(progress, record(b"other", epoch=9), new, dead).reported == 9


@pytest.mark.swarm
def test_a_peer_cannot_claim_more_samples_than_an_epoch_has(progress, node):
    met(progress, b"liar")
    known = see(progress, record(node.peer_id.to_bytes()), record(b"liar", samples=10**12))
    assert samples_of_others(known) == 64


@pytest.mark.swarm
def test_records_of_the_dead_count_but_are_not_waited_for(progress, node):
    known = see(progress, record(node.peer_id.to_bytes()), record(b"other", age=2 * LIVELY_SECONDS))
    assert known.num_peers == 2 and progress.lively_peers == 1


@pytest.mark.swarm
def test_a_peer_that_was_lost_in_an_average_is_not_waited_for_until_it_reports_again(progress, node):
    own = record(node.peer_id.to_bytes())
    see(progress, own, record(b"other", age=0.5))
    progress.give_up([str(PeerID(b"other"))])
    assert see(progress, own, record(b"other", age=0.5)).num_peers == 2 and progress.lively_peers == 1
    see(progress, own, record(b"other", age=-0.1))
    assert progress.lively_peers == 2


@pytest.mark.swarm
def test_a_peer_whose_clock_is_ahead_does_not_count(progress, node):
    """The DHT keeps its record for minutes: the others would wait for it, or follow it to an epoch of its own."""
    own, other = record(node.peer_id.to_bytes()), record(b"other")
    met(progress, b"other")
    known = see(progress, own, other, record(b"ahead", epoch=9, age=-300.0))
    assert (known.epoch, known.num_peers, samples_of_others(known), progress.lively_peers) == (3, 2, 40, 2)


@pytest.mark.swarm
def test_a_clock_that_was_ahead_hides_nobody(progress, node, monkeypatch):
    """Five minutes ahead, this peer looks, and loses a groupmate; then its clock is right again."""
    with monkeypatch.context() as ahead:
        ahead.setattr(progress_module, "get_dht_time", lambda: get_dht_time() + 300)
        ahead.setattr(progress.peers, "_clock", lambda: get_dht_time() + 300)
        see(progress, record(node.peer_id.to_bytes(), age=-300), record(b"other", age=-300))
        progress.give_up([PeerID(b"other").to_base58()])
        assert progress.lively_peers == 1
    see(progress, record(node.peer_id.to_bytes()), record(b"other"))
    assert progress.lively_peers == 2


@pytest.mark.swarm
def test_if_all_others_are_ahead_this_peers_own_clock_is_behind(progress, node):
    own = record(node.peer_id.to_bytes())
    assert see(progress, own, record(b"other", epoch=4, age=-300.0)).num_peers == 1  # it may be long dead
    known = see(progress, own, record(b"other", epoch=4, age=-301.0))
    assert (known.reported, known.num_peers) == (4, 2)


@pytest.mark.swarm
def test_nobody_follows_what_a_clock_that_was_ahead_has_left_behind(progress, node):
    """All have come back from a checkpoint; the first finds nothing but a record of the epoch after it, for minutes."""
    progress.report(3, 4)
    own, left_behind = record(node.peer_id.to_bytes(), samples=4), record(b"ahead", epoch=4, age=-300.0)
    for _ in range(3):
        assert see(progress, own, left_behind).reported == 3
        assert not progress.ready_to_update_epoch and progress.lively_peers == 1
    assert see(progress, own, left_behind, record(b"other")).num_peers == 2


# -- how often a peer tells its samples --------------------------------------------------------------------------------


@pytest.fixture
def telling(node):
    progress = Progress(matchmaking_seconds=50.0, dht=node, prefix="telling", target_batch_size=10**6)
    progress.start()
    yield progress
    progress.shutdown()


def told(progress, node, wanted, patience=10.0):
    """The samples that this peer has told, as soon as they are as wanted."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = node.get(progress.key, latest=True)
        last = [entry.value for entry in (found.value if found else {}).values() if entry.value is not None]
        if [(one["epoch"], one["samples_accumulated"]) for one in last] == [wanted]:
            return wanted
        time.sleep(0.05)
    return last


@pytest.mark.swarm
def test_an_epochs_beginning_is_told_at_once_and_each_micro_batch_is_not(telling, node):
    telling.report(0, 4)
    assert told(telling, node, (0, 4)) == (0, 4)
    for samples in (8, 12, 16):
        time.sleep(0.05)
        telling.report(0, samples)
    assert told(telling, node, (0, 16), patience=1.0) != (0, 16)  # hours are left of this epoch
    with telling.pause():
        telling.begin_epoch(1)
    assert told(telling, node, (1, 0)) == (1, 0)


def test_reports_come_after_a_pause_but_for_a_hurry():
    event, waits = PacedEvent(lambda: 0.8), []
    for hurried in (False, False, True):
        event.hurry() if hurried else event.set()
        began = time.monotonic()
        assert event.wait(5.0)
        waits.append(time.monotonic() - began >= 0.6)
        event.clear()
    assert waits == [False, True, False]
    assert not event.wait(0.01)


@pytest.fixture
def neighbour(node):
    dht = DHT(start=True, initial_peers=node.get_visible_maddrs())
    yield dht
    os.kill(dht.pid, signal.SIGCONT)
    dht.shutdown()


@pytest.mark.swarm
def test_a_peer_that_computes_long_answers_a_ping_and_one_whose_machine_sleeps_does_not(progress, node, neighbour):
    long_ago = record(neighbour.peer_id.to_bytes(), age=LIVELY_SECONDS / 3)
    ask = partial(progress.give_up_the_silent, silent_seconds=1.0, answer_seconds=1.0)

    def long_silent():
        progress.peers._peers[neighbour.peer_id.to_bytes()].heard_at -= 1.5

    see(progress, record(node.peer_id.to_bytes()), long_ago, record(b"nobody has this id", age=-5))
    ask()
    assert progress.lively_peers == 3  # the last one has told something lately, so it is not asked
    os.kill(neighbour.pid, signal.SIGSTOP)
    ask()
    assert progress.lively_peers == 3  # it has just answered
    long_silent()
    ask()
    assert progress.lively_peers == 2
    ask()
    assert progress.lively_peers == 2
    os.kill(neighbour.pid, signal.SIGCONT)
    ask()
    assert progress.lively_peers == 3  # it answers again
    os.kill(neighbour.pid, signal.SIGSTOP)
    long_silent()
    ask()
    assert progress.lively_peers == 2
    see(progress, record(node.peer_id.to_bytes()), record(neighbour.peer_id.to_bytes(), age=-0.1))
    assert progress.lively_peers == 2  # it reports again


@pytest.mark.swarm
def test_a_peer_that_accepts_no_connections_is_not_asked(progress):
    behind_nat = record(b"behind a router", age=LIVELY_SECONDS - 2)
    behind_nat.value["client_mode"] = True
    see(progress, behind_nat)
    progress.give_up_the_silent(1.0, 1.0)
    assert progress.lively_peers == 2
