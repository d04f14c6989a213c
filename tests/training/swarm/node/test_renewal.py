"""A peer's new record takes the place of its old one, whatever its clock has shown."""

import time
from functools import partial
from types import SimpleNamespace

import pytest
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue

from tests.training.swarm.real_peers.scenarios import (
    come_back_from_a_clock_that_was_ahead,
    run_with,
    store_with_others_only,
)
from tests.training.swarm.real_peers.started_peers import meet
from training.swarm.engine.bounds import MOST_RECORD_SECONDS
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.node.dht import start_dht
from training.swarm.node.identity import Identity
from training.swarm.node.protocol import OwnRecords
from training.swarm.node.run_node import RunNode

KEY, OTHER_KEY = DHTID.generate(source="key"), DHTID.generate(source="another")


def records_of(**expire):
    found = DictionaryDHTValue()
    for subkey, expires in expire.items():
        found.store(subkey.encode(), b"a record", expires)
    return found


def test_a_record_outlasts_those_that_the_others_have_of_this_peer():
    own, now = OwnRecords(b"alan"), time.time()
    own.note_found(KEY, records_of(alan=now + 300, ada=now + 600))
    own.note_found(KEY, None)
    own.note_found(KEY, b"not a dictionary")
    assert now + 300 < own.later_than_the_last(KEY, now + 60) < now + 301
    assert own.later_than_the_last(OTHER_KEY, now + 60) == now + 60
    assert own.later_than_the_last(KEY, now + 600) == now + 600


def test_a_record_that_no_node_takes_is_not_outlasted():
    own, now = OwnRecords(b"alan"), time.time()
    own.note(KEY, now + MOST_RECORD_SECONDS + 60)
    assert own.later_than_the_last(KEY, now + 60) == now + 60
    own.note(KEY, now - 1)
    assert own.later_than_the_last(KEY, now - 10) == now - 10


@pytest.mark.swarm
def test_a_node_has_a_copy_of_what_it_does_not_renew_soon(tmp_path):
    (kept,) = meet(tmp_path, [store_with_others_only])
    assert kept == {name: {"recipe": 1, "site": 0} for name in ("first", "second")}


async def put_what_was_stored_before(key, dht, node):
    """As the other nodes give it to one that comes back."""
    node.keep_copy(DHTID.generate(source=key), dht.public_key, "before", time.time() + 360)


@pytest.mark.swarm
def test_a_record_outlasts_the_one_that_the_own_node_has(tmp_path):
    run = run_with()
    dht = start_dht(run, Identity(tmp_path), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    key = f"{run.run_id}_recipe"
    dht.run_coroutine(partial(put_what_was_stored_before, key))
    assert dht.store(key, subkey=dht.public_key, value="now", expiration_time=time.time() + 60)
    assert [entry.value for entry in dht.get(key, latest=True).value.values()] == ["now"]
    dht.shutdown()


async def store_while_the_earlier_record_comes(key, dht, node):
    """Another node gives this one what it had stored before, while it looks for the nodes that are near to the key."""
    find = node.find_nearest_nodes

    async def find_later(*args, **kwargs):
        node.find_nearest_nodes = find
        await put_what_was_stored_before(key, dht, node)
        return await find(*args, **kwargs)

    node.find_nearest_nodes = find_later
    return await node.store(key, "now", time.time() + 60, subkey=dht.public_key)


@pytest.mark.swarm
def test_a_record_outlasts_the_one_that_comes_while_it_is_stored(tmp_path):
    run = run_with()
    dht = start_dht(run, Identity(tmp_path), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    key = f"{run.run_id}_recipe"
    assert dht.run_coroutine(partial(store_while_the_earlier_record_comes, key))
    assert [entry.value for entry in dht.get(key, latest=True).value.values()] == ["now"]
    dht.shutdown()


def test_a_record_outlasts_one_of_which_a_busy_node_told_only_after_it_had_refused_the_new_one(monkeypatch):
    now, expired = time.time(), []

    async def store(self, key, value, expires, subkey=None):
        expired.append(expires)
        return expires > now + 100

    async def get(key, latest):
        assert latest
        node.protocol.own_records.note_found(KEY, records_of(alan=now + 100))

    monkeypatch.setattr(DHTNode, "store", store)
    node = RunNode(_initialized_with_create=True)
    node.get, node.protocol = get, SimpleNamespace(own_records=OwnRecords(b"alan"), storage={})
    assert wait_for_result(node.store("key", "now", now + 60, subkey=b"alan"))
    assert expired == [now + 60, pytest.approx(now + 100, abs=1)]


@pytest.mark.swarm
def test_a_peer_whose_clock_was_ahead_is_heard_at_once_also_after_a_restart(tmp_path):
    (seen,) = meet(tmp_path, [come_back_from_a_clock_that_was_ahead], ("first", "second", "third"))
    assert seen == {
        "first": ["ahead", "right", "restarted"],
        "second": [],
        "third": ["ahead", "right", "restarted"],
    }
