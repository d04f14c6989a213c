"""Bounds of every call that another peer makes: its messages, how many are open, and what one asks of a node.

They hold before anybody looks at a ticket, for strangers and members alike. hivemind 1.1.12 reads a message of any
length into memory, waits for ever for a caller that says nothing, and answers a request for the records of one key a
thousand times with a thousand copies of them.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from hivemind.dht import DHT, DHTID
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.auth import AuthRPCWrapper

from training.swarm.bounds import MOST_BYTES
from training.swarm.gathering import MOST_ID_BYTES
from training.swarm.quota import Quota

MOST_MESSAGE_BYTES = MOST_BYTES + (1 << 16)
"""Of one message of a stream: the largest describes the tensors of a state; parts of an average have 512 KiB."""
MESSAGE_SECONDS = 300.0
"""A message that has begun arrives within this: the largest over a link of 0.1 Mbit/s."""
OPENING_SECONDS = 30.0
"""A caller says something within this."""
MOST_OPEN_CALLS = 32
"""Of one peer to one process of this peer, whose groupmates have a few open at a time."""
MOST_KEYS = 16
"""Of one search; ours are for one key, and those for neighbours for three."""
MOST_NEIGHBOURS = 64
"""Of an answer to a search for one key: a node tells 20."""
NEW_IDS_IN_A_ROW, NEW_ID_SECONDS = 3, 30.0
"""A peer introduces itself under a new node id, as it does after a restart, so many times in a row, and then once in so
many seconds. To each id a node sends all records that should lie there."""

_FIRST_BYTES = 1
"""What hivemind reads of a message first (P2P.receive_protobuf)."""


async def receive(reader: asyncio.StreamReader) -> bytes:
    """In place of `P2P.receive_raw_data`: one message of a stream.

    Raises:
        ValueError: If it is too long.
        TimeoutError: If it is too slow.
    """
    length = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
    if length > MOST_MESSAGE_BYTES:
        raise ValueError(f"a message has {length} bytes, more than {MOST_MESSAGE_BYTES}")
    async with asyncio.timeout(MESSAGE_SECONDS):
        return await reader.readexactly(length)


class _Spoken:
    """A stream of which the first bytes were read."""

    def __init__(self, reader: asyncio.StreamReader, first: bytes):
        self._reader, self._first = reader, first

    async def readexactly(self, count: int) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._reader.readexactly(count)


def bounded_calls(add: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """In place of `P2P.add_binary_stream_handler`, through which all handlers of streams are added."""
    quota = Quota(at_once=math.inf, of_one=MOST_OPEN_CALLS, seconds=0.0)

    @functools.wraps(add)
    async def add_bounded(self: P2P, name: str, handler: Callable[..., Awaitable[None]], balanced: bool = False):
        async def handle(info, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with quota.request((self.peer_id, info.peer_id)) as allowed:
                if allowed and (first := await _first_of(reader)):
                    await handler(info, _Spoken(reader, first), writer)
                else:
                    writer.close()

        await add(self, name, handle, balanced)

    return add_bounded


async def _first_of(reader: asyncio.StreamReader) -> bytes:
    """The first bytes that a caller sends; empty if it hangs up, or sends none in time."""
    with suppress(TimeoutError, asyncio.IncompleteReadError):
        return await asyncio.wait_for(reader.readexactly(_FIRST_BYTES), OPENING_SECONDS)
    return b""


def bounded_search(find: Callable) -> Callable:
    """In place of `DHTProtocol.rpc_find`: refuses a search for many keys."""

    @functools.wraps(find)
    async def find_few(self: DHTProtocol, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        if len(request.keys) > MOST_KEYS or len(set(request.keys)) < len(request.keys):
            raise ValueError(f"a search is for at most {MOST_KEYS} different keys")
        return await find(self, request, context)

    return find_few


class _Stub:
    """Calls of another node, whose answers to searches name few neighbours by short ids.

    hivemind writes each id that an answer names in base 58: thousands of long ones would take seconds.
    """

    def __init__(self, stub: AuthRPCWrapper):
        self._stub = stub

    def __getattr__(self, name: str) -> object:
        return getattr(self._stub, name)

    async def rpc_find(self, *args, **kwargs) -> dht_pb2.FindResponse:
        found = await self._stub.rpc_find(*args, **kwargs)
        for result in found.results:
            if len(result.nearest_peer_ids) > MOST_NEIGHBOURS:
                raise ValueError(f"an answer names more than {MOST_NEIGHBOURS} neighbours")
            if any(len(peer) > MOST_ID_BYTES for peer in result.nearest_peer_ids):
                raise ValueError(f"an answer names a peer by more than {MOST_ID_BYTES} bytes")
        return found


def bounded_answers(get_stub: Callable) -> Callable:
    """In place of `DHTProtocol.get_stub`."""

    @functools.wraps(get_stub)
    def get_bounded(self: DHTProtocol, peer: PeerID) -> _Stub:
        return _Stub(get_stub(self, peer))

    return get_bounded


async def bound_introductions(_dht: DHT, node: DHTNode) -> None:
    """In the node's process: nobody makes it send its records again and again by coming under new ids."""
    update, table = node.protocol.update_routing_table, node.protocol.routing_table
    quota = Quota(at_once=math.inf, of_one=NEW_IDS_IN_A_ROW, seconds=NEW_ID_SECONDS)

    async def update_unless_new_again(node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        if node_id is None or node_id in table or not responded:
            await update(node_id, peer_id, responded)
            return
        with quota.request(peer_id) as allowed:
            if allowed:
                await update(node_id, peer_id)

    # hivemind's DHT makes the node itself and lets nobody choose its class.
    node.protocol.update_routing_table = update_unless_new_again
