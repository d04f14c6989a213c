"""Server-sent events: `/live/events` sends the run's state to each open page as soon as it changes.

One task computes the state for all streams. A stream holds no queue: when its reader has taken one state, it gets the
newest, however many it has missed, so that a slow reader costs no memory. The stream ends when the monitor does, after
the last state, and after `LONGEST_SECONDS`; browsers then ask again by themselves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

MOST_STREAMS = 1000
"""Further ones are refused with 503; their pages ask every few seconds instead."""
LOOK_SECONDS = 0.05
"""How often the broadcast looks whether there is news."""
COMPUTED_SECONDS = 0.5
"""The state is computed so often without news too: time alone makes a run slow."""
HEARTBEAT_SECONDS = 4.0
"""A state is sent at least so often, so that a page notices within a few seconds that nobody answers any more."""
SEND_SECONDS = 20.0
"""A reader that takes nothing for so long is dropped."""
LONGEST_SECONDS = 900.0
"""So long a stream lasts, in case that its reader has gone without a word; readers open another."""
AGAIN_MS = 2000
"""Browsers wait so long before they ask again after a stream has ended."""


class Broadcast:
    """The newest state, for any number of streams.

    Args:
        state: Computes the rendered `state.json`; called in a thread.
        is_over: Whether the monitor ends: then the streams get one more state and end.
        news: A number that changes when there is news.
    """

    def __init__(self, state: Callable[[], bytes], is_over: Callable[[], bool], news: Callable[[], int] = lambda: 0):
        self._state, self._is_over, self._news_of = state, is_over, news
        self.streams = 0
        self.version, self.newest, self.ended = 0, b"", False
        self._news = asyncio.Event()
        self._task: asyncio.Task | None = None

    def join(self) -> None:
        """Another stream listens."""
        self.streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def leave(self) -> None:
        """A stream has ended."""
        self.streams -= 1

    async def next(self, seen: int) -> int:
        """Waits for a newer version than `seen`, and returns its number."""
        while self.version == seen and not self.ended:
            await self._news.wait()
        return self.version

    async def _work(self) -> None:
        told, told_at = None, 0.0
        while self.streams and not self.ended:
            is_over, news = self._is_over(), self._news_of()  # asked first: the state that follows has what they tell
            content = self.newest
            with suppress(Exception):  # such as a history on a failing disk: the next look may succeed
                content = await asyncio.to_thread(self._state)
            state = {**json.loads(content or b"{}"), "time": None}
            self.ended = is_over
            if state != told or time.monotonic() - told_at >= HEARTBEAT_SECONDS or is_over:
                told, told_at = state, time.monotonic()
                self._publish(content)
            until = time.monotonic() + COMPUTED_SECONDS
            while time.monotonic() < until and self._news_of() == news and not self.ended:
                await asyncio.sleep(LOOK_SECONDS)
        if not self.ended:  # at the end the streams still have to send it
            self.newest = b""  # a stream that begins much later waits for a new one

    def _publish(self, content: bytes) -> None:
        self.newest, self.version = content, self.version + 1
        news, self._news = self._news, asyncio.Event()
        news.set()


class _Stream(Response):
    """One reader's stream."""

    def __init__(self, broadcast: Broadcast):
        super().__init__()
        self._broadcast = broadcast

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._broadcast.join()
        sending = asyncio.create_task(self._send_all(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, timeout=LONGEST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._broadcast.leave()
            for task in (sending, gone):
                task.cancel()
        # A reader that has gone, or takes nothing, is not waited for.
        with suppress(Exception):
            async with asyncio.timeout(1):
                await send({"type": "http.response.body", "body": b""})

    async def _send_all(self, send: Send) -> None:
        seen = -1 if self._broadcast.newest else self._broadcast.version
        text = b"retry: %d\n\n" % AGAIN_MS
        while True:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": text, "more_body": True})
            if self._broadcast.ended and seen == self._broadcast.version:
                return
            seen = await self._broadcast.next(seen)
            # While no state can be computed, as on a failing disk, there is nothing to send: pages read it as JSON.
            text = b"event: state\ndata: " + self._broadcast.newest + b"\n\n" if self._broadcast.newest else b""


async def _gone(receive: Receive) -> None:
    """Waits until the reader has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def stream_routes(broadcast: Broadcast) -> list[Route]:
    """The route of the streams."""

    async def events(request: Request) -> Response:
        if broadcast.streams >= MOST_STREAMS or broadcast.ended:
            return Response(status_code=503, headers={"retry-after": "60"})
        return _Stream(broadcast)

    return [Route("/live/events", events)]
