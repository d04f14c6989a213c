"""Server-sent events: `/live/events` sends the run's state to each open page as soon as it changes.

One task computes the state for all streams. A stream has no queue: when its reader has taken a state, it gets the
newest state, however many it has missed, so a slow reader costs no memory. The stream ends after the last state when
the monitor ends, and after `LONGEST_SECONDS`; browsers then open another by themselves.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MOST_STREAMS = 1000
"""Most open streams. Further streams are refused with 503; their pages ask every few seconds instead."""
LOOK_SECONDS = 0.05
"""Interval at which the broadcast looks for a new state."""
HEARTBEAT_SECONDS = 4.0
"""Longest time between two sent states, so that a page notices within a few seconds that the server is gone."""
LONGEST_SECONDS = 900.0
"""Longest life of a stream, in case its reader has gone without closing it; other readers open another stream."""
AGAIN_MS = 2000
"""Pause of browsers before they open a new stream, in milliseconds."""


class Broadcast:
    """The newest state, for any number of streams.

    Args:
        state: Returns the rendered `state.json`.
        is_over: Returns True when the monitor ends; then the streams get one more state and end.
    """

    def __init__(self, state: Callable[[], Awaitable[bytes]], is_over: Callable[[], bool]):
        self._state, self._is_over = state, is_over
        self.streams = 0
        self.sent, self.ended = 0, False
        self._newest = b""
        self._news = asyncio.Event()
        self._task: asyncio.Task | None = None

    async def events(self) -> AsyncIterator[bytes]:
        """Yields the events of one stream."""
        seen, until = 0, time.monotonic() + LONGEST_SECONDS
        self.streams += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._work())
            yield ServerSentEvent(retry=AGAIN_MS, sep="\n").encode()
            while time.monotonic() < until:
                while self.sent == seen and not self.ended:
                    await self._news.wait()
                if self.sent == seen:
                    return
                seen = self.sent
                yield self._newest
        finally:
            self.streams -= 1

    async def _work(self) -> None:
        """Computes the state at intervals until no stream is open, or the monitor has ended."""
        last, last_at = None, -math.inf
        while self.streams and not self.ended:
            is_over = self._is_over()  # before the state, which must be a last one
            with suppress(Exception):  # if the history's disk fails, for example, the next look may succeed
                content = await self._state()
                state = {**json.loads(content), "time": None}
                if state != last or time.monotonic() - last_at >= HEARTBEAT_SECONDS or is_over:
                    last, last_at, self.ended = state, time.monotonic(), is_over
                    self._send(content)
            await asyncio.sleep(LOOK_SECONDS)
        if not self.ended:
            self.sent = 0  # a later stream waits for a new state

    def _send(self, content: bytes) -> None:
        self.sent += 1
        self._newest = ServerSentEvent(content.decode(), event="state", sep="\n").encode()
        news, self._news = self._news, asyncio.Event()
        news.set()


def stream_routes(broadcast: Broadcast) -> list[Route]:
    """Makes the route of the streams."""

    async def events(request: Request) -> Response:
        if broadcast.streams >= MOST_STREAMS or broadcast.ended:
            return Response(status_code=503, headers={"retry-after": "60"})
        return EventSourceResponse(broadcast.events(), ping=0)  # the states are the heartbeat

    return [Route("/live/events", events)]
