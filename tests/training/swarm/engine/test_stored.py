"""How much a node stores for others, so that a look still finds the run when somebody floods it."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from hivemind.dht.routing import DHTID
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time

from tests.training.swarm.engine.test_bounds import RUN, send, signed
from tests.training.swarm.engine.test_calls import as_stranger
from training.swarm.engine import engine, stored
from training.swarm.engine.bounds import MOST_BYTES, SPARE_ENTRIES, Records, Serializer, unpack
from training.swarm.engine.stored import MOST_KEYS_OF_ONE, PACKING_BYTES, Storage
from training.swarm.node.dht import full_addresses, start_dht
from training.swarm.node.identity import Identity
from training.swarm.round.matchmaking import announced

engine.prepare()

KEY, OTHER = DHTID.generate(source="key"), DHTID.generate(source="other")
SMALL, LARGE = 100, 400
"""Bytes of a record, with its subkey and what packing adds."""


def store(bounded, size, key, *names, seconds=60.0):
    value = b"v" * (size - PACKING_BYTES - 2)
    return [bounded.store_subkey(key, name, value, get_dht_time() + seconds) for name in names]


@pytest.fixture
def storage(monkeypatch):
    monkeypatch.setattr(stored, "MOST_KEY_BYTES", 1000)
    monkeypatch.setattr(stored, "MOST_STORED_BYTES", 1500)
    return Storage()


def names_of(storage, key):
    return {name for name, _ in storage.get(key).value.items()}


def test_larger_records_make_room_for_smaller_ones_of_the_same_key(storage):
    assert store(storage, LARGE, KEY, b"e1", b"e2", b"e3") == [True, True, False]
    assert store(storage, SMALL, KEY, b"a1", b"a2") == [True, True]
    assert names_of(storage, KEY) == {b"e1", b"e2", b"a1", b"a2"}  # 1000 bytes
    assert store(storage, SMALL, KEY, b"a3") == [True] and len(names_of(storage, KEY)) == 4
    names = [b"b%d" % number for number in range(9)]
    assert store(storage, SMALL, KEY, *names) == 7 * [True] + 2 * [False]
    assert not names_of(storage, KEY) & {b"e1", b"e2"}


def test_a_record_is_renewed_also_if_its_key_is_full(storage):
    assert store(storage, SMALL, KEY, *(b"a%d" % number for number in range(10))) == 10 * [True]
    assert store(storage, SMALL, KEY, b"a0", seconds=90.0) == [True]


def test_a_record_that_grows_beyond_its_key_is_refused_though_it_is_alone(storage):
    assert store(storage, SMALL, KEY, b"a") == [True]
    assert store(storage, 2000, KEY, b"a", seconds=90.0) == [False] and names_of(storage, KEY) == {b"a"}


def test_records_under_new_keys_are_refused_when_the_store_is_full(storage):
    assert store(storage, LARGE, KEY, b"e1", b"e2") == [True, True]
    assert store(storage, LARGE, OTHER, b"e1") == [True]
    assert store(storage, LARGE, DHTID.generate(source="third"), b"e2") == [False]
    assert store(storage, SMALL, KEY, b"a1") == [True]


def new_keys(count, of="new"):
    return [DHTID.generate(source=f"{of} {number}") for number in range(count)]


def test_who_has_more_than_any_peer_of_a_run_makes_room_for_others(storage, monkeypatch):
    monkeypatch.setattr(stored, "USUAL_BYTES_OF_ONE", 2 * LARGE)
    for key in new_keys(3):
        assert store(storage, LARGE, key, b"e1") == [True]
    (own,) = new_keys(1, "own")
    assert store(storage, SMALL, own, b"a1", b"a2", b"a3", b"a4", b"a5") == 5 * [True]
    assert names_of(storage, own) == {b"a1", b"a2", b"a3", b"a4", b"a5"}
    assert not any(names_of(storage, key) for key in new_keys(3))


def test_many_with_little_each_do_not_crowd_out_a_peer_of_the_run(storage, monkeypatch):
    """The store is full before; who comes late is refused, and who was there stays, though it has more than each."""
    monkeypatch.setattr(stored, "USUAL_BYTES_OF_ONE", 3 * LARGE)
    for key in new_keys(2, "own"):
        assert store(storage, LARGE, key, b"a1") == [True]
    answers = [store(storage, SMALL, key, b"e%d" % number)[0] for number, key in enumerate(new_keys(20))]
    assert answers == 7 * [True] + 13 * [False]  # 800 and 700 of 1500 bytes
    assert all(names_of(storage, key) == {b"a1"} for key in new_keys(2, "own"))


def test_renewals_that_are_longer_count(storage):
    """Neither a key nor the whole store grows beyond its bound by them."""
    names = [b"e%d" % number for number in range(9)]
    assert store(storage, SMALL, KEY, *names) == 9 * [True]
    assert store(storage, LARGE, KEY, *names, seconds=90.0) == [False] * 9
    assert store(storage, SMALL, OTHER, b"f0", b"f1", b"f2", b"f3") == 4 * [True]
    assert store(storage, LARGE, OTHER, b"f0", b"f1", seconds=90.0) == [False, False]  # 1300 bytes, and 300 more
    assert store(storage, SMALL, OTHER, b"f0", seconds=90.0) == [True]


def test_room_that_is_free_again_is_used(storage, monkeypatch):
    monkeypatch.setattr(stored, "RECOUNT_SECONDS", 0.0)
    for key in new_keys(3):
        assert store(storage, LARGE, key, b"e1", seconds=0.3) == [True]
    (late,) = new_keys(1, "late")
    assert store(storage, LARGE, late, b"a1") == [False]
    time.sleep(0.4)
    assert store(storage, LARGE, late, b"a1") == [True]


def test_one_signer_has_records_under_so_many_keys_at_most(storage, monkeypatch):
    monkeypatch.setattr(stored, "MOST_STORED_BYTES", 10**6)
    keys = [DHTID.generate(source=number) for number in range(MOST_KEYS_OF_ONE + 1)]
    answers = [store(storage, SMALL, key, b"e1")[0] for key in keys]
    assert answers == MOST_KEYS_OF_ONE * [True] + [False]
    assert store(storage, SMALL, keys[-1], b"a1") == [True]
    assert store(storage, SMALL, keys[0], b"e1", seconds=90.0) == [True]


def test_a_full_key_can_be_read(monkeypatch):
    storage = Storage()
    for number in range(40_000):
        if not store(storage, 500, KEY, b"%d" % number)[0]:
            break
    assert 0.8 * MOST_BYTES < len(Serializer.dumps(storage.get(KEY).value)) < MOST_BYTES


@pytest.mark.swarm
def test_a_newcomer_finds_the_others_beside_a_flood_of_large_announcements(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "MOST_KEY_BYTES", 40_000)
    name = "demo_grad_averager"
    (tmp_path / "ada").mkdir()
    ada = Identity(tmp_path / "ada")
    dht = start_dht(RUN, ada, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    try:
        node, ghosts = SimpleNamespace(dht=dht), []
        for number in range(8):
            (folder := tmp_path / f"eve{number}").mkdir()
            ghosts.append(signed(Identity(folder), f"{name}.0b", {"x": "y" * 7000}))
        answers = send(node, ghosts)
        assert answers.count([True]) == 5 and answers.count([False]) == 3
        assert send(node, [signed(ada, f"{name}.0b", True)]) == [[True]]
        assert ada.peer_id in [peer for _, peer in asyncio.run(announced(dht, f"{name}.0b"))]
    finally:
        dht.shutdown()


def records_at(dht, key):
    """With which a node answers a look for a key, packed, and by their subkeys."""
    request = dht_pb2.FindRequest(keys=[DHTID.generate(source=key).to_bytes()])
    (found,) = as_stranger(dht, lambda stub: stub.rpc_find(request, timeout=10)).results
    return found.value, dict(unpack(found.value).items()) if found.value else {}


@pytest.mark.swarm
def test_what_a_look_brings_neither_hides_nor_crowds_what_a_node_stores(tmp_path, monkeypatch):
    """hivemind's node answers others with what it has found elsewhere, however much that is."""
    monkeypatch.setattr(stored, "MOST_KEY_BYTES", 30_000)
    ada, bob, *ghosts = (Identity(tmp_path / name) for name in ("ada", "bob", *"abcdefgh"))
    with ExitStack() as stack:

        def start(identity, initial_peers=()):
            dht = start_dht(RUN, identity, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=initial_peers)
            stack.callback(dht.shutdown)
            return SimpleNamespace(dht=dht)

        first = start(ada)
        second = start(bob, full_addresses(first.dht)[:1])
        lasting = [
            signed(one, key, {"x": "y" * 6000}, expiration_time=get_dht_time() + 600) for one in ghosts for key in "kl"
        ]
        assert send(second, lasting[:8]) == 8 * [[True]] and send(first, lasting[8::2]) == 4 * [[True]]
        for key in "kl":
            deadline = time.monotonic() + 20
            while not first.dht.get(key, latest=True):
                assert time.monotonic() < deadline
        assert len(records_at(first.dht, "k")[0]) < 31_000
        assert send(first, [signed(bob, "l", 1)]) == [[True]]
        assert bob.signer().local_public_key in records_at(first.dht, "l")[1]


# -- the newest record of a peer ---------------------------------------------------------------------------------------


def test_an_older_record_that_comes_after_a_newer_one_ends_nothing():
    """So it comes to whoever looks, from one node after the other."""
    records, now = Records(), get_dht_time()
    assert records.store(b"ada", b"new", now + 30)
    assert not records.store(b"ada", b"old", now + 0.2)
    time.sleep(0.3)
    assert [value for _, (value, _) in records.items()] == [b"new"]
    assert records.store(b"ada", b"newer", now + 40)


def test_a_record_that_is_renewed_again_and_again_leaves_no_notes(storage):
    for number in range(5000):
        assert store(storage, SMALL, KEY, b"ada", seconds=60 + number / 10) == [True]
    for held in (storage, storage.get(KEY).value):
        assert len(held.expiration_heap) <= SPARE_ENTRIES + 2
    assert storage.top()[0] == KEY


@pytest.mark.swarm
def test_who_repeats_an_older_record_of_a_peer_does_not_delete_its_newest(tmp_path):
    ada = Identity(tmp_path)
    dht = start_dht(RUN, ada, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    try:
        ends = get_dht_time() + 4
        older, newer = signed(ada, expiration_time=ends), signed(ada)
        assert send(SimpleNamespace(dht=dht), [older, newer, older]) == [[True], [True], [False]]
        time.sleep(max(0.0, ends - get_dht_time()) + 0.5)
        assert list(dht.get("demo_recipe", latest=True).value) == [ada.signer().local_public_key]
    finally:
        dht.shutdown()
