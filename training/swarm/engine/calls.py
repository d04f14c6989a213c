"""Bounds of the calls that other peers make: their messages, how many are open, and what one asks of a node.

They hold before anybody looks at a ticket, for strangers and members alike. hivemind 1.1.12 reads a message of any
length into memory, waits for ever for a caller that says nothing, and answers a request for the records of one key a
thousand times with a thousand copies of them. If a call is answered before all of its messages were read, the rest of
them stays in memory, also after the caller has hung up.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing, suppress
from typing import TypeVar
from uuid import UUID

from google.protobuf.message import Message
from hivemind.p2p import P2P, P2PContext
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.proto.p2pd_pb2 import RPCError

from training.swarm.engine.bounds import MOST_BYTES
from training.swarm.engine.quota import Quota

MOST_MESSAGE_BYTES = MOST_BYTES + (1 << 16)
"""Of one message of a stream: the largest describes the tensors of a state; parts of an average have 512 KiB."""
MESSAGE_SECONDS = 360.0
"""A message that has begun arrives within this: the largest over a link of 0.1 Mbit/s."""
OPENING_SECONDS = 30.0
"""A caller says something within this."""
HANG_UP_SECONDS = 15.0
"""A writer waits so long for its reader to close the stream. A slow link holds back some seconds' worth of bytes."""
MOST_OPEN_CALLS = 32
"""Streams of one peer to one process of this peer, whose groupmates have a few open at a time."""
MOST_OPEN_REQUESTS = 128
"""Calls of one message, which is answered by one, of one peer to one process of this peer; honest peers have some."""
PREFETCHED = 5
"""Messages of a call that wait to be read, as in hivemind."""

AnyMessage = TypeVar("AnyMessage")

logger = logging.getLogger(__name__)


# -- streams -----------------------------------------------------------------------------------------------------------


async def receive(reader: asyncio.StreamReader) -> bytes:
    """In place of `P2P.receive_raw_data`: one message of a stream, from its length on.

    Raises:
        ValueError: If it is too long.
        TimeoutError: If it is too slow.
    """
    async with asyncio.timeout(MESSAGE_SECONDS):
        length = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
        if length > MOST_MESSAGE_BYTES:
            raise ValueError(f"a message has {length} bytes, more than {MOST_MESSAGE_BYTES}")
        return await reader.readexactly(length)


def bounded_calls(add: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """In place of `P2P.add_protobuf_handler`, through which all handlers of calls are added."""
    quota = Quota(at_once=math.inf, of_one=MOST_OPEN_CALLS, seconds=0.0)
    requests_quota = Quota(at_once=math.inf, of_one=MOST_OPEN_REQUESTS, seconds=0.0)

    @functools.wraps(add)
    async def add_bounded(
        self: P2P,
        name: str,
        handler: Callable,
        input_protobuf_type: type[Message],
        *,
        stream_input: bool = False,
        stream_output: bool = False,
        balanced: bool = False,
    ) -> None:
        if not (stream_input or stream_output):

            async def answer(request: Message, context: P2PContext) -> Message:
                with requests_quota.request((self.peer_id, context.remote_id)) as allowed:
                    if not allowed:
                        raise ValueError(f"more than {MOST_OPEN_REQUESTS} calls of one peer are open")
                    return await handler(request, context)

            await add(self, name, answer, input_protobuf_type, balanced=balanced)
            return

        async def handle(info, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            context = P2PContext(handle_name=name, local_id=self.peer_id, remote_id=info.peer_id)
            with closing(writer), quota.request((self.peer_id, info.peer_id)) as allowed:
                if allowed:
                    requests = _Requests(reader, input_protobuf_type)
                    answers = _answers(handler, requests, context, stream_input=stream_input)
                    await _serve(requests, _answer(answers, writer))

        await self.add_binary_stream_handler(name, handle, balanced=balanced)

    return add_bounded


class _Requests:
    """The messages of a call as they come; those that nobody wants any more are dropped.

    Args:
        reader: Of the stream.
        kind: Of a message.
    """

    def __init__(self, reader: asyncio.StreamReader, kind: type[Message]):
        self._reader, self._kind = reader, kind
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue(PREFETCHED)
        self._wanted = True
        self.ended = asyncio.Event()
        """The caller has sent all."""

    async def read(self) -> None:
        """Reads until the caller hangs up or breaks a bound."""
        try:
            message = await _message(self._reader, self._kind, patience=OPENING_SECONDS)
            while True:
                if message is None:
                    self.ended.set()
                if self._wanted:
                    await self._waiting.put(message)
                message = await _message(self._reader, self._kind)
        except asyncio.IncompleteReadError:
            pass
        except Exception as error:
            logger.debug("A call is ended: %r", error)

    async def next(self) -> Message | None:
        """The next message; None: there are no more."""
        return await self._waiting.get()

    def drop(self) -> None:
        """Nobody wants the rest."""
        self._wanted = False
        while not self._waiting.empty():
            self._waiting.get_nowait()


async def _serve(requests: _Requests, answer: Awaitable[None]) -> None:
    """Ends a call when its caller hangs up, or when it is answered and the caller has sent all.

    The network daemon drops an answer if the stream ends while the caller still sends.
    """
    reading, answering, ended = map(asyncio.ensure_future, (requests.read(), answer, requests.ended.wait()))
    try:
        await asyncio.wait((reading, answering), return_when=asyncio.FIRST_COMPLETED)
        requests.drop()
        if not reading.done():
            await asyncio.wait((reading, ended), timeout=HANG_UP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reading, answering, ended):
            task.cancel()


async def _message(reader: asyncio.StreamReader, kind: type[Message], patience: float | None = None) -> Message | None:
    """The next message, as `P2P.receive_protobuf` reads it; None: there are no more. `patience` ends when it begins."""
    marker = await asyncio.wait_for(reader.readexactly(len(P2P.MESSAGE_MARKER)), patience)
    content = await receive(reader)
    return kind.FromString(content) if marker == P2P.MESSAGE_MARKER else None


async def _answers(
    handler: Callable, requests: _Requests, context: P2PContext, *, stream_input: bool
) -> AsyncGenerator[Message, None]:
    """What a handler answers, be it one message or several."""

    async def each() -> AsyncIterator[Message]:
        while (request := await requests.next()) is not None:
            yield request

    answer = handler(each() if stream_input else await requests.next(), context)
    if isinstance(answer, AsyncGenerator):
        async with aclosing(answer):
            async for message in answer:
                yield message
    else:
        yield await answer


async def _answer(answers: AsyncGenerator[Message, None], writer: asyncio.StreamWriter) -> None:
    try:
        async with aclosing(answers):  # at once, also if this task is cancelled: they hold places of others
            async for message in answers:
                await P2P.send_protobuf(message, writer)
    except Exception as error:
        logger.debug("A call has failed: %r", error)
        with suppress(Exception):  # the caller may be gone
            await P2P.send_protobuf(RPCError(message=str(error)), writer)


async def until_hung_up(messages: AsyncIterator[AnyMessage]) -> AsyncIterator[AnyMessage]:
    """A handler's messages. After the last one the handler waits; the reader cancels it by closing the stream.

    hivemind's handlers end a stream when they have written it. Its network daemon then drops the bytes that it has not
    passed on: on busy machines about one in a hundred streams of an all-reduce lacks the end of its last part, and the
    group has to repeat the all-reduce.
    """
    async for message in messages:
        yield message
    await asyncio.sleep(HANG_UP_SECONDS)


async def first_of(stream: AsyncIterator[AnyMessage], count: int) -> AsyncIterator[AnyMessage]:
    """The first messages of a stream, as many as told or as there are; then closes the stream."""
    async with aclosing(stream):
        while count > 0:
            try:
                message = await anext(stream)
            except StopAsyncIteration:
                return
            count -= 1
            yield message


# -- calls of one message ----------------------------------------------------------------------------------------------


def surviving_reader(read: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """In place of `ControlClient._read_from_persistent_conn`, which reads what all such calls of a process get.

    A call that is given up just before its answer is read has a cancelled future. To set its result is an error, which
    would end the reader, and with it all calls of the process, for good and without a word.
    """

    @functools.wraps(read)
    async def read_on(self: ControlClient, reader: asyncio.StreamReader) -> None:
        while True:
            with suppress(asyncio.InvalidStateError):  # that answer has been read; the next ones are wanted
                await read(self, reader)
                return

    return read_on


def forgetting_handler(handle: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """In place of `ControlClient._handle_persistent_request`, which keeps for ever what a caller has given up."""

    @functools.wraps(handle)
    async def handle_and_forget(self: ControlClient, call_id: UUID, request: Message) -> None:
        try:
            await handle(self, call_id, request)
        finally:
            self._handler_tasks.pop(call_id, None)

    return handle_and_forget
