"""A process's connection to the network daemon: calls within bounds, and streams that arrive completely.

hivemind 1.1.12 reads a message of any length into memory, and waits for ever for a caller that sends nothing. If a call
is answered before all of its messages were read, the rest of them stays in memory, even after the caller has hung up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing, suppress
from typing import TypeVar

from google.protobuf.message import Message
from hivemind.p2p import P2P, P2PContext, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.proto.p2pd_pb2 import RPCError
from hivemind.utils.asyncio import as_aiter

from training.processes.rate import RateLimit
from training.swarm.engine.bounds import MOST_BYTES

MOST_MESSAGE_BYTES = MOST_BYTES + (1 << 16)
"""Largest message of a stream, in bytes. The largest of this program describes a state's tensors; parts have 512
KiB."""
MESSAGE_SECONDS = 360.0
"""Longest time that a message takes once it has begun: the largest message over a link of 0.1 Mbit/s."""
LATE_ANSWER_SECONDS = 30.0
"""Time after which no answer comes any more to a call that was given up."""
OPENING_SECONDS = 30.0
"""Longest wait for a caller's first message."""
HANG_UP_SECONDS = 15.0
"""Longest wait of a writer until its reader closes the stream. A slow link holds back some seconds' worth of bytes."""
PREFETCHED = 5
"""Messages of a call that are kept until its handler reads them, as in hivemind."""

WIRE_SHARE, WIRE_BYTES = 1.08, 450
"""Bytes that go up for a message, as a multiple of its own, and in addition. Measured by `ss -ti` on the daemon's
sockets: 1.003 times a part of 512 KiB, and 4 % for the headers of its packets and 2 % to acknowledge as large a part;
630 bytes for a call with 200 bytes, which opens a stream."""

AnyMessage = TypeVar("AnyMessage")

logger = logging.getLogger(__name__)


class Connection(P2P):
    """hivemind's `P2P` for the calls of this program: make it by `create` or `replicate`."""

    upload: RateLimit | None = None
    """Limit of what all connections of this process and its forks send; set it before any of them is made."""

    FORCE_REACHABILITY_MAPPING = P2P.FORCE_REACHABILITY_MAPPING | {
        "private": {"forceReachabilityPrivate": 1, "relayDiscovery": 0}
    }
    """Flags of the network daemon by the `force_reachability` of `create`. A private node uses the relays that it is
    given; without `relayDiscovery=0` it would first look for others, for three minutes."""

    async def add_protobuf_handler(
        self,
        name: str,
        handler: Callable,
        input_protobuf_type: type[Message],
        *,
        stream_input: bool = False,
        stream_output: bool = False,
        balanced: bool = False,
    ) -> None:
        """Adds a handler of calls, as hivemind does. All handlers are added through this method."""

        async def answer(request: Message, context: P2PContext) -> Message:
            try:
                answer = await handler(request, context)
                _seconds_until_sent(answer)  # it is small and awaited: it goes at once, and streams wait for it
                return answer
            except asyncio.CancelledError:  # hivemind forgets a request only if its handler answers or fails
                raise TimeoutError("the caller has given up") from None

        async def handle(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            context = P2PContext(handle_name=name, local_id=self.peer_id, remote_id=info.peer_id)
            with closing(writer):
                requests = _Requests(reader, input_protobuf_type)
                answers = _answers(handler, requests, context, stream_input=stream_input)
                await _serve(requests, _answer(answers, writer))

        if stream_input or stream_output:
            await self.add_binary_stream_handler(name, handle, balanced=balanced)
        else:
            await super().add_protobuf_handler(name, answer, input_protobuf_type, balanced=balanced)

    async def call_protobuf_handler(
        self, peer_id: PeerID, name: str, input: Message, output_protobuf_type: type[Message]
    ) -> Message:
        """Calls a peer with one message, as hivemind does.

        If an answer comes at the moment when its call is given up, hivemind's reader of answers ends, and with it all
        calls of the process. So this method cancels a call later, when no answer comes any more.
        """
        _seconds_until_sent(input)  # as for an answer
        call = asyncio.ensure_future(super().call_protobuf_handler(peer_id, name, input, output_protobuf_type))
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # perhaps nobody else reads it
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(LATE_ANSWER_SECONDS, call.cancel)
            raise

    async def iterate_protobuf_handler(
        self,
        peer_id: PeerID,
        name: str,
        input: Message | AsyncIterable[Message],
        output_protobuf_type: type[Message],
    ) -> AsyncIterator[Message]:
        """Yields the answers of a peer as they come, as hivemind does."""
        _, reader, writer = await self.call_binary_stream_handler(peer_id, name)
        sending = asyncio.create_task(_send(input if isinstance(input, AsyncIterable) else as_aiter(input), writer))
        return _read_answers(reader, writer, output_protobuf_type, sending)


def _seconds_until_sent(message: Message) -> float:
    """Counts a message that is about to be sent. Returns the seconds to wait before it is, by `Connection.upload`."""
    limit = Connection.upload
    return 0.0 if limit is None else limit.take(WIRE_SHARE * message.ByteSize() + WIRE_BYTES)


async def _write(message: Message, writer: asyncio.StreamWriter) -> None:
    """Writes a message of a stream, when the limit of the upload lets it."""
    await asyncio.sleep(_seconds_until_sent(message))
    await P2P.send_protobuf(message, writer)


async def _send(requests: AsyncIterable[Message], writer: asyncio.StreamWriter) -> None:
    async for request in requests:
        await _write(request, writer)
    await P2P.send_protobuf(P2P.END_OF_STREAM, writer)


async def _read_answers(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: type[Message], sending: asyncio.Task
) -> AsyncIterator[Message]:
    try:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # the other side has closed the stream
            while True:
                marker, content = await _message(reader)
                if marker != P2P.MESSAGE_MARKER:
                    raise P2PHandlerError(f"the peer's handler has failed: {RPCError.FromString(content).message}")
                yield kind.FromString(content)
        await sending
    finally:
        sending.cancel()


class _Requests:
    """The messages of a call as they come. `drop` discards those that the handler has not read.

    Args:
        reader: The call's stream.
        kind: Class of the messages.
    """

    def __init__(self, reader: asyncio.StreamReader, kind: type[Message]):
        self._reader, self._kind = reader, kind
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue(PREFETCHED)
        self._wanted = True
        self.ended = asyncio.Event()
        """Set when the caller has sent all messages."""

    async def read(self) -> None:
        """Reads until the caller hangs up or breaks a bound."""
        try:
            marker, content = await _message(self._reader, patience=OPENING_SECONDS)
            while True:
                message = self._kind.FromString(content) if marker == P2P.MESSAGE_MARKER else None
                if message is None:
                    self.ended.set()
                if self._wanted:
                    await self._waiting.put(message)
                marker, content = await _message(self._reader)
        except asyncio.IncompleteReadError:
            pass
        except Exception as error:
            logger.debug("A call is ended: %r", error)

    async def next(self) -> Message | None:
        """Returns the next message; None after the last one."""
        return await self._waiting.get()

    def drop(self) -> None:
        """Discards the rest of the stream."""
        self._wanted = False
        while not self._waiting.empty():
            self._waiting.get_nowait()


async def _serve(requests: _Requests, answer: Awaitable[None]) -> None:
    """Runs a call until its caller hangs up, or until it is answered and the caller has sent all messages.

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


async def _message(reader: asyncio.StreamReader, patience: float | None = None) -> tuple[bytes, bytes]:
    """Reads the next message of a stream. Returns its marker and its content.

    Args:
        reader: The stream.
        patience: Longest wait in seconds until the message begins; None: no limit.

    Raises:
        ValueError: If the message is too long.
        TimeoutError: If it begins or ends too late.
    """
    marker = await asyncio.wait_for(reader.readexactly(len(P2P.MESSAGE_MARKER)), patience)
    async with asyncio.timeout(MESSAGE_SECONDS):
        length = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
        if length > MOST_MESSAGE_BYTES:
            raise ValueError(f"a message has {length} bytes, more than {MOST_MESSAGE_BYTES}")
        return marker, await reader.readexactly(length)


async def _answers(
    handler: Callable, requests: _Requests, context: P2PContext, *, stream_input: bool
) -> AsyncGenerator[Message, None]:
    """Yields the answers of a handler, which returns one message or a stream of them."""

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
        async with aclosing(answers):  # at once, also if this task is cancelled: handlers hold places that others need
            async for message in answers:
                await _write(message, writer)
    except Exception as error:
        logger.debug("A call has failed: %r", error)
        with suppress(Exception):  # the caller may be gone
            await P2P.send_protobuf(RPCError(message=str(error)), writer)


async def until_hung_up(messages: AsyncIterator[AnyMessage]) -> AsyncIterator[AnyMessage]:
    """Yields a handler's messages, then waits until the reader closes the stream, at most `HANG_UP_SECONDS`.

    hivemind's handlers end a stream when they have written it. Its network daemon then drops the bytes that it has not
    passed on: on busy machines about one in a hundred streams of an all-reduce lacks the end of its last part, and the
    group has to repeat the all-reduce.
    """
    async for message in messages:
        yield message
    await asyncio.sleep(HANG_UP_SECONDS)


async def first_of(stream: AsyncIterator[AnyMessage], count: int) -> AsyncIterator[AnyMessage]:
    """Yields the first `count` messages of a stream, or all if it has fewer; then closes the stream."""
    async with aclosing(stream):
        while count > 0:
            try:
                message = await anext(stream)
            except StopAsyncIteration:
                return
            count -= 1
            yield message
