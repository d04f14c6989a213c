"""What strangers may do to a peer with calls alone: nothing grows without end, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from contextlib import ExitStack, asynccontextmanager, suppress
from types import SimpleNamespace

import msgpack
import pytest
from hivemind.dht.routing import DHTID, RoutingTable
from hivemind.p2p import P2P, P2PHandlerError, PeerID, ServicerBase
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils import MSGPackSerializer, get_dht_time

from tests.training.swarm.engine.test_bounds import RUN, signed
from training.processes.rate import RateLimit
from training.swarm.engine import calls, engine
from training.swarm.engine.bounds import DICTIONARY, unpack
from training.swarm.engine.calls import (
    MOST_MESSAGE_BYTES,
    PREFETCHED,
    Connection,
    _message,
)
from training.swarm.node.dht import full_addresses, post_recipe, start_dht
from training.swarm.node.identity import Identity
from training.swarm.node.protocol import MOST_KEYS, MOST_STORES, DHTProtocol

KEY = DHTID.generate(source="key")
NAME, EARLY, WHOLE = "echo", "early", "whole"
DATA = averaging_pb2.AveragingData
engine.prepare()


def message(length: int, sent: bytes = b"") -> bytes:
    """The beginning of a message that is said to have so many bytes."""
    return P2P.MESSAGE_MARKER + length.to_bytes(P2P.HEADER_LEN, P2P.BYTEORDER) + sent


def test_a_message_that_is_too_long_is_refused_before_it_is_read():
    async def read(length: int, sent: bytes) -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(message(length, sent))
        return (await asyncio.wait_for(_message(reader), 5))[1]

    assert asyncio.run(read(3, b"abc")) == b"abc"
    for length in (MOST_MESSAGE_BYTES + 1, 2**40, 2**64 - 1):
        with pytest.raises(ValueError, match=f"a message has {length} bytes"):
            asyncio.run(read(length, b"abc"))


@asynccontextmanager
async def two_peers():
    """A peer that answers each message of a stream with itself, or only the first one, and one that calls it."""
    server = await Connection.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    addresses = await server.get_visible_maddrs()
    caller = await Connection.create(initial_peers=addresses, host_maddrs=["/ip4/127.0.0.1/tcp/0"])

    async def echo(requests, context):
        async for request in requests:
            yield request

    async def answer_first(requests, context):
        yield await anext(requests)

    async def answer_whole(request, context):
        yield request

    await server.add_protobuf_handler(NAME, echo, DATA, stream_input=True, stream_output=True)
    await server.add_protobuf_handler(EARLY, answer_first, DATA, stream_input=True, stream_output=True)
    await server.add_protobuf_handler(WHOLE, answer_whole, DATA, stream_output=True)
    try:
        yield server, caller
    finally:
        await caller.shutdown()
        await server.shutdown()


async def answered(server, caller, name=NAME, messages=1) -> bytes:
    """What an honest call is answered."""

    async def requests():
        for _ in range(messages):
            yield DATA(group_id=b"group")

    async for answer in await caller.iterate_protobuf_handler(server.peer_id, name, requests(), DATA):
        return answer.group_id


async def seconds_open(reader) -> float:
    """Until the other side closes a stream."""
    began = time.monotonic()
    await asyncio.wait_for(reader.read(), 60)
    return time.monotonic() - began


@pytest.mark.swarm
def test_calls_that_are_answered_before_they_are_read_take_no_place():
    """As those of an all-reduce that has failed: hivemind's handler waits for ever with more messages than it keeps."""

    async def call():
        async with two_peers() as (server, caller):
            return [await answered(server, caller, EARLY, PREFETCHED + 9) for _ in range(35)]

    assert set(asyncio.run(call())) == {b"group"}


def on_a_stream(sent, look, name=NAME):
    """What a look at the other side's bytes finds after these were sent; honest calls are answered afterwards."""

    async def send():
        async with two_peers() as (server, caller):
            _, reader, writer = await caller.call_binary_stream_handler(server.peer_id, name)
            writer.write(sent)
            found = await look(reader)
            assert await answered(server, caller) == b"group"
            return found

    return asyncio.run(send())


@pytest.mark.swarm
@pytest.mark.parametrize("sent", [message(100), message(100, b"x" * 50)[:3]], ids=["no content", "half a length"])
def test_a_stream_that_stops_in_a_message_is_closed(sent, monkeypatch):
    monkeypatch.setattr(calls, "MESSAGE_SECONDS", 1.0)
    assert on_a_stream(sent, seconds_open) < 30


@pytest.mark.swarm
def test_a_call_with_one_message_is_answered_without_waiting_for_its_end():
    content = DATA(group_id=b"group").SerializeToString()
    first = on_a_stream(
        message(len(content), content), lambda reader: asyncio.wait_for(reader.readexactly(1), 30), WHOLE
    )
    assert first == P2P.MESSAGE_MARKER


@pytest.mark.swarm
def test_a_stream_of_a_message_without_end_is_closed():
    assert on_a_stream(message(2**40, b"x" * 1000), seconds_open) < 30


@pytest.mark.swarm
def test_a_stream_that_says_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(calls, "OPENING_SECONDS", 1.0)
    assert on_a_stream(b"", seconds_open) < 30


@pytest.mark.swarm
def test_an_answer_without_end_is_refused():
    async def call():
        async with two_peers() as (server, caller):

            async def lie(info, reader, writer):
                writer.write(message(2**40, b"x" * 1000))

            await server.add_binary_stream_handler("liar", lie)
            with pytest.raises(ValueError):
                await asyncio.wait_for(answered(server, caller, "liar"), 30)

    asyncio.run(call())


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    dht = start_dht(RUN, Identity(tmp_path_factory.mktemp("ada")), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    yield dht
    dht.shutdown()


def as_stranger(dht, ask):
    """What somebody without any ticket gets: `ask` is called with the node's stub."""

    async def run():
        p2p = await P2P.create(initial_peers=full_addresses(dht))
        try:
            return await ask(ServicerBase.get_stub.__func__(DHTProtocol, p2p, dht.peer_id))
        finally:
            await p2p.shutdown()

    return asyncio.run(run())


@pytest.mark.swarm
def test_a_search_is_for_few_keys(node):
    keys = [DHTID.generate(source=number).to_bytes() for number in range(MOST_KEYS + 1)]

    async def find(stub):
        found = await stub.rpc_find(dht_pb2.FindRequest(keys=keys[:MOST_KEYS]), timeout=10)
        for refused in (keys, 2 * keys[:1]):
            with pytest.raises(Exception, match=f"a search is for at most {MOST_KEYS} different keys"):
                await stub.rpc_find(dht_pb2.FindRequest(keys=refused), timeout=10)
        return found

    assert len(as_stranger(node, find).results) == MOST_KEYS


@pytest.mark.swarm
def test_a_store_is_of_few_records(node):
    def stores(keys):
        values = {"values": [b""] * len(keys), "subkeys": [DHTProtocol.IS_REGULAR_VALUE] * len(keys)}
        times = {"expiration_time": [0.0] * len(keys), "in_cache": [False] * len(keys)}
        return dht_pb2.StoreRequest(keys=keys, **values, **times)

    async def store(stub):
        keys = [DHTID.generate(source=number).to_bytes() for number in range(MOST_STORES + 1)]
        for refused in (keys, 2 * keys[:1]):
            with pytest.raises(Exception, match=f"a store is of at most {MOST_STORES} records"):
                await stub.rpc_store(stores(refused), timeout=10)
        return await stub.rpc_store(stores(keys[:MOST_STORES]), timeout=30)

    assert list(as_stranger(node, store).store_ok) == [False] * MOST_STORES


@pytest.mark.swarm
def test_nobody_puts_a_record_in_front_of_those_that_a_node_stores(node, tmp_path):
    """hivemind's node answers with what is in its cache alone, if that expires later, and lets anybody store there."""
    now, names = get_dht_time(), {"bob": 600.0, "eve": 1200.0}
    bob, eve = (
        signed(Identity(tmp_path / name), "demo_site", expiration_time=now + lasts) for name, lasts in names.items()
    )

    def store(record, in_cache):
        named = {"keys": [record.key], "subkeys": [record.subkey], "values": [record.value]}
        return dht_pb2.StoreRequest(expiration_time=[record.expiration_time], in_cache=[in_cache], **named)

    async def hide(stub):
        assert list((await stub.rpc_store(store(bob, False), timeout=10)).store_ok) == [True]
        with suppress(P2PHandlerError):
            await stub.rpc_store(store(eve, True), timeout=10)
        (found,) = (await stub.rpc_find(dht_pb2.FindRequest(keys=[bob.key]), timeout=10)).results
        return dict(unpack(found.value).items())

    assert unpack(bob.subkey) in as_stranger(node, hide)


@pytest.mark.parametrize("ids", [[b"x" * 65], [b"x" * 34] * 65])
def test_an_answer_that_names_many_peers_or_long_ids_is_refused(ids):
    """Before any of them is written in base 58."""
    found = {"results": [dht_pb2.FindResult(nearest_peer_ids=ids, nearest_node_ids=[bytes(20)] * len(ids))]}

    class Answering(DHTProtocol):
        def get_stub(self, peer):
            async def rpc_find(request, timeout):
                return dht_pb2.FindResponse(**found)

            return SimpleNamespace(rpc_find=rpc_find)

    async def ask():
        protocol = Answering(_initialized_with_create=True)
        protocol.routing_table, protocol.node_info = RoutingTable(DHTID.generate(), 20, 5), dht_pb2.NodeInfo()
        protocol.rpc_semaphore, protocol.wait_timeout = asyncio.Semaphore(1), 1.0
        return await protocol.call_find(PeerID(b"y" * 34), [KEY])

    assert asyncio.run(ask()) is None
    found["results"] = [dht_pb2.FindResult(nearest_peer_ids=[b"x" * 34], nearest_node_ids=[bytes(20)])]
    assert asyncio.run(ask()) == {KEY: (None, {DHTID.from_bytes(bytes(20)): PeerID(b"x" * 34)})}
    found["results"] *= 2
    assert asyncio.run(ask()) is None


def dictionary_of(record, *, most=None, latest=0.0):
    """A dictionary of one record as a node packs it; hivemind reads more of it than its records."""
    packed = MSGPackSerializer.dumps([most, latest, [[unpack(record.subkey), record.value, record.expiration_time]]])
    return msgpack.packb(msgpack.ExtType(DICTIONARY, packed))


LIES = {
    "an answer that holds for ever": {"expires": math.inf},
    "a text as the largest number of records": {"most": "many"},
    "a text as the time of the last record": {"latest": "later"},
}


@pytest.mark.swarm
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_answer_that_lies_hides_no_answers_of_others(lie, tmp_path, monkeypatch):
    """hivemind's search ends with the first, and waits for ever after the second and the third."""
    honest, eve, newcomer = (Identity(tmp_path / name) for name in ("honest", "eve", "newcomer"))
    packed = dictionary_of(signed(eve), **{name: value for name, value in lie.items() if name != "expires"})
    expires = lie.get("expires", get_dht_time() + 60)

    search = DHTProtocol.rpc_find

    @functools.wraps(search)
    async def answer_late(self, request, context):
        await asyncio.sleep(0.3)
        return await search(self, request, context)

    @functools.wraps(search)
    async def lie_at_once(self, request, context):
        found = {"type": dht_pb2.FOUND_DICTIONARY, "value": packed, "expiration_time": expires}
        results = [dht_pb2.FindResult(**found) for _ in request.keys]
        return dht_pb2.FindResponse(results=results, peer=self.node_info)

    with ExitStack() as stack:

        def start(identity, initial_peers, find=search, **settings):
            monkeypatch.setattr(DHTProtocol, "rpc_find", find)
            where = {"host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "initial_peers": initial_peers}
            dht = start_dht(RUN, identity, **where, **settings)
            stack.callback(dht.shutdown)
            return dht

        server = start(honest, [], answer_late)
        post_recipe(server, RUN, honest)
        liar = start(eve, full_addresses(server)[:1], lie_at_once)
        addresses = [full_addresses(dht)[0] for dht in (server, liar)]
        seeker = start(newcomer, addresses, client_mode=True)
        found = seeker.get("demo_recipe", latest=True, return_future=True).result(timeout=10)
        assert found.value[honest.signer().local_public_key].value == RUN.digest


# -- calls of one message ----------------------------------------------------------------------------------------------


def test_a_call_that_is_given_up_is_cancelled_later(monkeypatch):
    """hivemind's reader of answers ends if an answer comes for a call that was just cancelled; no call works then."""
    monkeypatch.setattr(calls, "LATE_ANSWER_SECONDS", 0.2)
    ended = []

    async def wait(*_):
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def give_up() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Connection().call_protobuf_handler(None, "wait", DATA(), DATA), 0.05)
        given_up = asyncio.get_running_loop().time()
        assert not ended
        while not ended:
            await asyncio.sleep(0.01)
        return ended[0] - given_up

    monkeypatch.setattr(P2P, "call_protobuf_handler", wait)
    assert asyncio.run(give_up()) > 0.1


@asynccontextmanager
async def one_that_waits():
    """A peer that never answers a call of one message, one that calls it, and its requests that have not ended."""
    async with two_peers() as (server, caller):

        async def wait(request, context):
            await asyncio.sleep(600)

        await server.add_protobuf_handler("wait", wait, DATA)
        yield server, caller, server._client.control._handler_tasks


def call_often(server, caller, count):
    """So many calls that are not answered."""
    return [
        asyncio.create_task(caller.call_protobuf_handler(server.peer_id, "wait", DATA(), DATA)) for _ in range(count)
    ]


@pytest.mark.swarm
def test_requests_that_their_caller_gives_up_take_no_memory(monkeypatch):
    monkeypatch.setattr(calls, "LATE_ANSWER_SECONDS", 0.1)

    async def give_up() -> int:
        async with one_that_waits() as (server, caller, requests):
            made = call_often(server, caller, 9)
            while len(requests) < len(made):
                await asyncio.sleep(0.05)
            for call in made:
                call.cancel()
            deadline = time.monotonic() + 10
            while requests and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
            return len(requests)

    assert asyncio.run(give_up()) == 0


@pytest.mark.swarm
def test_what_two_peers_send_together_keeps_to_the_limit(monkeypatch):
    """Requests and answers of 32 KiB, counted where they are written; a busy machine makes it only slower."""
    rate, written, write = 1e6, [], P2P.send_raw_data
    monkeypatch.setattr(Connection, "upload", RateLimit(rate))

    async def counted(data, writer, **options):
        written.append((time.monotonic(), len(data)))
        await write(data, writer, **options)

    monkeypatch.setattr(P2P, "send_raw_data", staticmethod(counted))

    async def requests():
        for _ in range(16):
            yield DATA(group_id=bytes(1 << 15))

    async def call():
        async with two_peers() as (server, caller):
            answers = await caller.iterate_protobuf_handler(server.peer_id, NAME, requests(), DATA)
            return [len(answer.group_id) async for answer in answers]

    assert asyncio.run(call()) == [1 << 15] * 16
    assert sum(size for _, size in written) > 2 * 16 << 15
    (begin, first), (end, _) = written[0], written[-1]
    assert sum(size for _, size in written) - first <= rate * (end - begin) + (1 << 15)
