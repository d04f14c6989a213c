"""Streams that arrive whole: who writes one waits until its reader has everything and hangs up.

hivemind's handlers end a stream when they have written it, and its daemon then throws away what it has not passed on:
on busy machines one in some hundred streams of an all-reduce lacks the end of its last part, and the group has to
repeat all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

Message = TypeVar("Message")

HANG_UP_SECONDS = 15.0
"""A reader that has not hung up by then is waited for no longer; what a slow link holds back is some seconds' worth."""


async def until_hung_up(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """A handler's messages; after the last one it is held until the reader hangs up, which cancels it."""
    async for message in messages:
        yield message
    await asyncio.sleep(HANG_UP_SECONDS)


async def first_of(stream: AsyncIterator[Message], count: int) -> AsyncIterator[Message]:
    """So many messages of a stream, or all of them if it ends before; then hangs up."""
    async with aclosing(stream):
        while count > 0:
            try:
                message = await anext(stream)
            except StopAsyncIteration:
                return
            count -= 1
            yield message
