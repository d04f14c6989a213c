"""Peer records between real DHT nodes: only sound ones, signed by the peer that they name, are read."""

import time

import pytest
from hivemind.utils import get_dht_time

from training.recipe import load_recipe
from training.swarm.engine.ids import peer_id_of
from training.swarm.node.dht import full_addresses, start_dht
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import (
    TAIL,
    MetricsBoard,
    MissedEpoch,
    PeerRecord,
    RecentEpoch,
    Seen,
    Voucher,
    believable,
)
from training.trust.proof import voucher_statement

pytestmark = pytest.mark.swarm


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes of the demo run, each with its identity: [(identity, board), ...]."""
    run = load_recipe("demo")
    nodes, address = [], []
    for name in ("ada", "grace"):
        identity = Identity(tmp_path_factory.mktemp(name))
        dht = start_dht(run, identity, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        address = address or full_addresses(dht)
        nodes.append((identity, MetricsBoard(dht=dht, run_id=run.run_id, expiration_seconds=30)))
    yield nodes
    for _, board in nodes:
        board.dht.shutdown()


def record(identity, **changes):
    fields = dict(
        name="ada",
        peer_id=str(identity.peer_id),
        status="training",
        epoch=3,
        loss=2.5,
        samples=96,
        samples_per_second=8.0,
        seconds=12.0,
        group_size=3,
        averaged_epochs=3,
        alone_epochs=0,
        micro_batch_size=4,
        bytes_sent=1,
        bytes_received=1,
        version="0.1.0",
        time=time.time(),
    )
    return PeerRecord.construct(**{**fields, **changes})


def test_a_record_is_read_on_another_node_until_it_is_replaced(nodes):
    (ada, first), (_, second) = nodes
    assert first.post(record(ada), ada).result(10)
    assert [(r.name, r.samples) for r in second.read() if r.peer_id == str(ada.peer_id)] == [("ada", 96)]
    time.sleep(0.01)
    assert first.post(record(ada, samples=128, status="leaving", loss=None), ada).result(10)
    latest = next(r for r in second.read() if r.peer_id == str(ada.peer_id))
    assert (latest.samples, latest.status, latest.loss) == (128, "leaving", None)


def test_recent_epochs_are_read_as_they_were_posted(nodes):
    (ada, first), (_, second) = nodes
    """The record is the largest in all other fields, too."""
    recent = [RecentEpoch(epoch, 2.5, 10**12, time.time(), 123.4) for epoch in range(10**9 - 63, 10**9 + 1)]
    seen = [Seen(epoch, str(ada.peer_id)[-TAIL:], 10**12) for epoch in range(10**9 - 63, 10**9)]
    seen.append(Seen(10**9, str(ada.peer_id)[-TAIL:], None))
    missed = [MissedEpoch(epoch, "catching up") for epoch in range(10**9 - 63, 10**9 + 1)]
    signature = ada.sign(voucher_statement("demo", str(ada.peer_id))).decode()
    facts = {"seen": seen, "missed": missed, "voucher": Voucher(ada.public_key.decode(), signature)}
    largest = record(ada, recent=recent, epoch=10**9, time=time.time(), name="\U0001f600" * 40, **facts)
    assert first.post(largest, ada).result(10)
    read = next(r for r in second.read() if r.peer_id == str(ada.peer_id))
    assert read.recent == recent and {name: getattr(read, name) for name in facts} == facts


def claims(*epochs, **changes):
    return [PeerRecord.construct(epoch=epoch, status="training", **changes) for epoch in epochs]


@pytest.mark.parametrize(
    "epochs, believed",
    [
        ([5, 6, 10**6], [5, 6]),
        ([5, 6, 400], [5, 6]),
        ([5, 6, 26], [5, 6, 26]),
        ([5, 401], [5]),
        ([5, 400], [5, 400]),
        ([5, 5, 5, 400, 400], [5, 5, 5]),
        ([60, 60, 0], [60, 60, 0]),
        ([], []),
    ],
)
def test_a_minority_that_claims_to_be_far_ahead_is_not_believed(epochs, believed):
    assert [record.epoch for record in believable(claims(*epochs), 400)] == believed
    newcomers = [record.copy(update={"status": "joining"}) for record in claims(0, 0, 0)]
    assert [record.epoch for record in believable([*claims(*epochs), *newcomers], 400)] == [*believed, 0, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": -1},
        {"samples": 10**13},
        {"samples": 96.0},
        {"loss": float("nan")},
        {"loss": 1},
        {"samples_per_second": float("inf")},
        {"epoch": 10**10},
        {"name": ""},
        {"name": "x" * 41},
        {"name": "a\nb"},
        {"name": "a\n"},
        {"name": "a\x9b31m"},
        {"name": "\u202eeve"},
        {"version": "\x1b[2J"},
        {"lineage": "a" * 16 + "\n"},
        {"status": "owner"},
        {"invented": 1},
        {"micro_batch_size": 0},
        {"group_size": True},
        {"recent": [(1, 2.0, 8, 1.0)] * 2},
        {"recent": [(2, 2.0, 8, 1.0), (1, 2.0, 8, 1.0)]},
        {"recent": [(4, 2.0, 8, 1.0)]},
        {"recent": [(3, 2.0, -8, 1.0)]},
        {"recent": [(3, 2.0, 8)]},
        {"recent": [(3, 2.0, 8, float("nan"))]},
        {"time": float("nan")},
        {"time": -float("inf")},
        {"recent": [[3, 2.0, 8, 1.0]]},
        {"recent": [(epoch, 2.0, 8, 1.0) for epoch in range(65)], "epoch": 100},
    ],
    ids=str,
)
def test_a_record_out_of_range_is_refused(nodes, changes):
    (_, first), (grace, second) = nodes
    bad = record(grace).dict() | changes
    key = grace.signer().local_public_key
    assert not second.dht.store("demo_metrics", bad, get_dht_time() + 30, subkey=key)
    assert str(grace.peer_id) not in {r.peer_id for r in first.read()}


def test_a_record_under_a_key_that_did_not_sign_it_is_refused(nodes):
    (ada, first), (grace, second) = nodes
    stolen = ada.signer().local_public_key
    assert not second.dht.store("demo_metrics", record(ada, samples=10**9).dict(), get_dht_time() + 60, subkey=stolen)
    assert all(r.samples < 10**9 for r in first.read())
    assert not second.dht.store("demo_metrics", record(grace).dict(), get_dht_time() + 30, subkey=b"no key at all")


def test_a_record_that_names_another_peer_is_left_out(nodes):
    (ada, first), (grace, second) = nodes
    second.post(record(ada, samples=777), grace).result(10)
    assert all(r.samples != 777 for r in first.read())


def test_the_peer_id_follows_from_the_signing_key(tmp_path):
    identity = Identity(tmp_path)
    assert peer_id_of(identity.signer().local_public_key) == identity.peer_id
    assert peer_id_of(b"[owner:ssh-rsa AAAA]") is None
    assert Identity.__doc__ and identity.path.stat().st_mode & 0o077 == 0
