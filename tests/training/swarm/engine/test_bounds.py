"""What strangers may send to a node: nothing ends it, and it stores nothing that is not a record of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.swarm.played import nested as lists_in_lists
from training.recipe import load_recipe
from training.swarm.engine import engine
from training.swarm.engine.bounds import MOST_BYTES, MOST_RECORD_BYTES, MOST_RECORD_SECONDS, unpack
from training.swarm.engine.ids import named_peer, peer_id_of
from training.swarm.node.dht import (
    check_node,
    full_addresses,
    post_recipe,
    posted_messages,
    record_validators,
    start_dht,
)
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import read_records
from training.swarm.peers.progress import Progress
from training.swarm.round.matchmaking import announced
from training.swarm.run.lineage import run_prefix
from training.swarm.run.server_lineage import ServerLineage
from training.swarm.run.servers import Servers
from training.swarm.state.download import find_donors

RUN = load_recipe("demo")
engine.prepare()
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()
PACKABLE = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.binary(), inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int, kind: int = 0x40) -> bytes:
    """Tuples within tuples, as hivemind packs them."""
    packed = msgpack.packb([])
    for _ in range(depth):
        packed = msgpack.packb(msgpack.ExtType(kind, packed))
    return packed


# -- unpacking ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(PACKABLE | st.tuples(PACKABLE, st.tuples(PACKABLE)))
def test_what_hivemind_packs_is_unpacked(value):
    assert unpack(MSGPackSerializer.dumps(value)) == value


def test_the_records_of_a_key_are_unpacked():
    records = DictionaryDHTValue()
    expires = get_dht_time() + 60
    records.store(b"ada", MSGPackSerializer.dumps((1, "two")), expires)
    (found,) = unpack(MSGPackSerializer.dumps(records)).items()
    assert found == (b"ada", (MSGPackSerializer.dumps((1, "two")), expires))


@settings(deadline=None, max_examples=1000)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_value_error(packed):
    for message in (packed, msgpack.packb(msgpack.ExtType(0x40, packed)), msgpack.packb(msgpack.ExtType(0x50, packed))):
        with contextlib.suppress(ValueError):
            unpack(message)


@pytest.mark.parametrize(
    "packed, said",
    [
        (nested(7), "nested more than 6 deep"),
        (nested(10_000), "nested more than 6 deep"),
        (msgpack.packb(msgpack.ExtType(0x50, nested(200))), "nested more than 6 deep"),
        (b"\x91" * 10_000 + b"\xc0", "StackError"),
        (b"\xc0" * (MOST_BYTES + 1), "more than"),
        (msgpack.packb(msgpack.ExtType(0x51, b"\xc0")), "unknown type 0x51"),
        (msgpack.packb(msgpack.ExtType(0x40, b"\x01")), "malformed"),
        (b"\x81\x90\xc0", ""),
        (
            msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([None, 0.0, [["ada", b"1", 1e12]]]))),
            "malformed.*by bytes",
        ),
    ],
    ids=[
        "7 deep",
        "10 000 deep",
        "in a dictionary",
        "lists",
        "too large",
        "unknown",
        "no list",
        "a list as key",
        "a text as subkey",
    ],
)
def test_what_is_malformed_too_large_or_too_deep_is_refused(packed, said):
    with pytest.raises(ValueError, match=said):
        unpack(packed)
    assert unpack(nested(5)) == ()  # the depth counts anew


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ada(tmp_path_factory):
    return Identity(tmp_path_factory.mktemp("ada"))


def signed(identity, key="demo_recipe", value=RUN.digest, packed=None, **changes):
    """A record as a peer's node stores it."""
    record = DHTRecord(
        key=DHTID.generate(source=key).to_bytes(),
        subkey=MSGPackSerializer.dumps(identity.signer().local_public_key),
        value=MSGPackSerializer.dumps(value) if packed is None else packed,
        expiration_time=get_dht_time() + 60,
    )
    record = replace(record, **changes)
    return replace(record, value=identity.signer().sign_value(record))


def written_otherwise(identity, **changes):
    """A record whose key or subkey is written in another way than by hivemind, signed as it is."""
    record = replace(signed(identity), value=MSGPackSerializer.dumps(RUN.digest), **changes)
    return replace(record, value=identity.signer().sign_value(record))


def by_a_peer_id(identity, value=True, **changes):
    """As hivemind's averagers announce themselves: nobody signs it, so anybody could announce anybody."""
    key = DHTID.generate(source="demo_grad_averager.0b").to_bytes()
    subkey = MSGPackSerializer.dumps(identity.peer_id.to_bytes())
    record = DHTRecord(key, subkey, MSGPackSerializer.dumps(value), get_dht_time() + 60)
    return replace(record, **changes)


def owner_of(public):
    """A signer's subkey as hivemind writes it."""
    owner = b"[owner:" + public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"]"
    assert peer_id_of(owner) is not None
    return owner


def owner_of_a_short_key():
    """Owner of a key of 1024 bits: a hundred such keys are made in a second."""
    return owner_of(rsa.generate_private_key(65537, 1024).public_key())


def owner_of_a_large_exponent():
    """A signature takes a hundred times as long to verify as one with the usual exponent."""
    modulus = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n
    return owner_of(rsa.RSAPublicNumbers(2**2000 + 1, modulus).public_key())


ATTACKS = {
    "no subkey": lambda ada: replace(signed(ada), subkey=DHTProtocol.IS_REGULAR_VALUE),
    "junk as subkey": lambda ada: by_a_peer_id(ada, subkey=MSGPackSerializer.dumps(b"123456")),
    "number as subkey": lambda ada: by_a_peer_id(ada, subkey=MSGPackSerializer.dumps(7)),
    "nested subkey": lambda ada: by_a_peer_id(ada, subkey=nested(200)),
    "second subkey": lambda ada: signed(ada, subkey=MSGPackSerializer.dumps(b"2" + ada.signer().local_public_key)),
    "subkey with a longer head": lambda ada: written_otherwise(
        ada, subkey=b"\xc6" + len(own := ada.signer().local_public_key).to_bytes(4, "big") + own
    ),
    "place with zeros before it": lambda ada: written_otherwise(ada, key=bytes(1) + signed(ada).key),
    "place without its zeros": lambda ada: written_otherwise(ada, key=b"key"),
    "a key that is none": lambda ada: replace(
        signed(ada), subkey=MSGPackSerializer.dumps(b"[owner:ssh-rsa " + b"A" * 372 + b"]")
    ),
    "a large exponent": lambda ada: replace(signed(ada), subkey=MSGPackSerializer.dumps(owner_of_a_large_exponent())),
    "a short key": lambda ada: replace(signed(ada), subkey=MSGPackSerializer.dumps(owner_of_a_short_key())),
    "unsigned": lambda ada: replace(signed(ada), value=MSGPackSerializer.dumps(RUN.digest)),
    "averager of a peer id": lambda ada: by_a_peer_id(ada),
    "offer of a peer id": lambda ada: by_a_peer_id(ada, 0.5),
    "word of a peer id": lambda ada: by_a_peer_id(ada, "word"),
    "junk": lambda ada: signed(ada, packed=b"\xc1\xc1\xc1"),
    "nested": lambda ada: signed(ada, packed=nested(200)),
    "lists in lists": lambda ada: signed(ada, "demo_state_averager.all_averagers", lists_in_lists(505)),
    "five lists": lambda ada: signed(ada, "demo_grad_averager.0b", lists_in_lists(4)),
    "records of a key": lambda ada: signed(ada, "demo_grad_averager.0b", DictionaryDHTValue(1)),
    "three years": lambda ada: signed(ada, expiration_time=get_dht_time() + 10**8),
    "for ever": lambda ada: signed(ada, expiration_time=float("inf")),
    "no time": lambda ada: signed(ada, expiration_time=float("nan")),
    "large": lambda ada: signed(ada, "something", "x" * MOST_RECORD_BYTES),
    "long word": lambda ada: signed(ada, "demo_tokens", "x" * 65),
    "long lineage": lambda ada: signed(ada, "demo_lineage", "x" * 257),
    "number as word": lambda ada: signed(ada, "demo_site", 7),
}


def test_records_of_peers_are_accepted(ada):
    validator = CompositeValidator(record_validators("demo", ada))
    for record in (
        signed(ada),
        signed(ada, "demo_lineage", "x" * 256),
        signed(ada, "another key", [1, {"a": 2.0}]),
        signed(ada, "another key", lists_in_lists(3)),
        signed(ada, expiration_time=get_dht_time() + MOST_RECORD_SECONDS - 1),
        signed(ada, "demo_grad_averager.0b", True),
        signed(ada, "demo_state_averager.all_averagers", None),
    ):
        assert validator.validate(record), record


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_other_records_are_refused(ada, attack):
    assert not CompositeValidator(record_validators("demo", ada)).validate(attack(ada))


# -- a node ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(ada, tmp_path_factory):
    """A server's node, which announces the recipe."""
    dht = start_dht(RUN, ada, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    post_recipe(dht, RUN, ada)
    folder = tmp_path_factory.mktemp("server")
    lineage = ServerLineage(dht, RUN, ada, folder, servers=Servers([]), tell=print).lineage
    yield SimpleNamespace(dht=dht, lineage=lineage)
    dht.shutdown()


def send(node, records, *, in_dictionary=False):
    """What a stranger's store request is answered, one after another; an exception if the node answers with one."""

    async def ask():
        p2p = await P2P.create(initial_peers=full_addresses(node.dht))
        stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, node.dht.peer_id)
        answers = []
        try:
            for record in records:
                value, subkey = record.value, record.subkey
                if in_dictionary:
                    dictionary = DictionaryDHTValue()
                    dictionary.store(msgpack.unpackb(subkey), value, record.expiration_time)
                    value, subkey = MSGPackSerializer.dumps(dictionary), DHTProtocol.IS_DICTIONARY
                request = dht_pb2.StoreRequest(
                    keys=[record.key],
                    subkeys=[subkey],
                    values=[value],
                    expiration_time=[record.expiration_time],
                    in_cache=[False],
                )
                try:
                    answers.append(list((await stub.rpc_store(request, timeout=10)).store_ok))
                except Exception as error:
                    answers.append(error)
        finally:
            await p2p.shutdown()
        return answers

    with ThreadPoolExecutor(1) as thread:  # Playwright's tests leave an event loop in the main one
        return thread.submit(asyncio.run, ask()).result()


def is_well(node):
    check_node(node.dht)
    assert RUN.digest in posted_messages(node.dht, "demo_recipe").values()
    assert read_records(node.dht, "demo") == []


@pytest.mark.swarm
def test_a_stranger_neither_ends_a_node_nor_stores_anything(node, tmp_path):
    eve = Identity(tmp_path)
    ghost = signed(eve, f"{run_prefix('demo', node.lineage)}_progress", {"epoch": 10**6})
    records = [*(attack(eve) for attack in ATTACKS.values()), ghost]
    assert send(node, [signed(eve, "demo_grad_averager.0b", True), signed(eve, "demo_tokens")]) == [[True], [True]]
    for answer in send(node, records):
        assert answer == [False]
    is_well(node)
    dictionaries = [record for name, record in zip(ATTACKS, records, strict=False) if "subkey" not in name]
    for answer in send(node, dictionaries, in_dictionary=True):
        assert answer == [False]
    raw = replace(signed(eve), subkey=DHTProtocol.IS_DICTIONARY)
    for packed in (nested(200), nested(10_000), nested(1, 0x50), os.urandom(100), nested(3)):
        (answer,) = send(node, [replace(raw, value=packed)])
        assert isinstance(answer, Exception)
    is_well(node)


@pytest.mark.swarm
def test_nobody_hides_those_that_offer_their_state_behind_a_record_that_cannot_be_pickled(node, tmp_path):
    """A node unpacks it, and could not hand on what it found; whoever asked waited in vain."""
    eve, ivy = Identity(tmp_path / "eve"), Identity(tmp_path / "ivy")
    key = "another_state_averager.all_averagers"
    send(node, [signed(eve, key, lists_in_lists(505)), signed(ivy, key, 0.5)])
    assert find_donors(node.dht, "another") == [ivy.peer_id]


@pytest.mark.swarm
def test_nobody_announces_another_peer(node, ada, tmp_path):
    """Neither as one that looks for a group, nor as one that offers its state."""
    eve = Identity(tmp_path)
    for key in ("demo_state_averager.0b", "demo_state_averager.all_averagers"):
        forged = replace(signed(ada, key, True), value=signed(eve, key, True).value)
        assert send(node, [forged, by_a_peer_id(ada, True), signed(eve, key, True)]) == [[False], [False], [True]]
    assert [peer for _, peer in asyncio.run(announced(node.dht, "demo_state_averager.0b"))] == [eve.peer_id]
    assert find_donors(node.dht, "demo") == [eve.peer_id]


@pytest.mark.swarm
def test_nobody_speaks_for_another_peer_of_a_lineage(node, ada, tmp_path):
    """A ghost that somebody signs does not count as a peer."""
    eve, key = Identity(tmp_path), f"{run_prefix('demo', node.lineage)}_progress"
    record = {"peer_id": ada.peer_id.to_bytes(), "epoch": 70, "samples_accumulated": 1, "samples_per_second": 1.0}
    record |= {"time": get_dht_time(), "counted_at": get_dht_time(), "step_samples": 1, "client_mode": False}
    settings = {"prefix": run_prefix("demo", node.lineage), "target_batch_size": 64, "matchmaking_seconds": 5.0 / 6}
    assert send(node, [signed(eve, key, record)]) == [[True]]
    progress = Progress(dht=node.dht, private_key=ada.private_key, **settings)
    assert (progress.global_epoch, progress.num_peers) == (0, 0)
    assert send(node, [signed(eve, key, record | {"peer_id": eve.peer_id.to_bytes()})]) == [[True]]
    deadline = time.monotonic() + 10
    while progress.look_around() != (70, 1):
        assert time.monotonic() < deadline


@pytest.mark.swarm
@pytest.mark.parametrize("own", [True, False], ids=["of its own node", "of another node"])
def test_a_record_that_a_node_took_before_it_knew_better_hides_no_other(node, ada, tmp_path, own):
    """A node does not know what is progress of a lineage before its peer, or its server, has gone over to it."""
    bob, eve, carol = (Identity(tmp_path / name) for name in ("bob", "eve", "carol"))
    prefix = run_prefix("demo", None) + f"_{own}"
    record = {"peer_id": bob.peer_id.to_bytes(), "epoch": 70, "samples_accumulated": 1, "samples_per_second": 1.0}
    record |= {"time": get_dht_time(), "counted_at": get_dht_time(), "step_samples": 1, "client_mode": False}
    told = [signed(eve, f"{prefix}_progress", "nonsense"), signed(bob, f"{prefix}_progress", record)]
    assert send(node, told) == [[True], [True]]
    dht, identity = node.dht, ada
    if not own:
        where = {"host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "initial_peers": full_addresses(node.dht)[:1]}
        dht, identity = start_dht(RUN, carol, client_mode=True, **where), carol
    try:
        settings = {"prefix": prefix, "target_batch_size": 64, "matchmaking_seconds": 10.0}
        assert Progress(dht=dht, private_key=identity.private_key, **settings).look_around() == (70, 1)
    finally:
        if not own:
            dht.shutdown()


def test_a_long_peer_id_is_refused_before_it_is_written_in_base_58():
    """Writing 400 kB in base 58 takes more than a minute."""
    with pytest.raises(ValueError):
        named_peer(b"x" * 400_000)
    known = PeerID.from_base58("QmPqT4SHB2nWSZZ9hWuQfSZMaYDGfY5ygVLRx3SYicjwoF")
    assert named_peer(known.to_bytes()) == known
