"""Streams that arrive whole: the writer keeps a stream open until its reader has everything and closes it.

hivemind's handlers end a stream when they have written it. Its network daemon then drops the bytes that it has not
passed on: on busy machines about one in a hundred streams of an all-reduce lacks the end of its last part, and the
group has to repeat the all-reduce.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

Message = TypeVar("Message")

HANG_UP_SECONDS = 15.0
"""A writer waits so long for its reader to close the stream. A slow link holds back some seconds' worth of bytes."""


async def until_hung_up(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """A handler's messages. After the last one the handler waits; the reader cancels it by closing the stream."""
    async for message in messages:
        yield message
    await asyncio.sleep(HANG_UP_SECONDS)


async def first_of(stream: AsyncIterator[Message], count: int) -> AsyncIterator[Message]:
    """The first messages of a stream, as many as told or as there are; then closes the stream."""
    async with aclosing(stream):
        while count > 0:
            try:
                message = await anext(stream)
            except StopAsyncIteration:
                return
            count -= 1
            yield message
