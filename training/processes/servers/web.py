"""Serves a web application from a thread of a role, and drops connections whose other ends do nothing.

uvicorn waits for ever for the rest of a request, and for a reader that reads nothing of an answer. Without this module,
anybody could exhaust a program's open files in this way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

STOP_SECONDS = 3.0
"""Longest wait for the end of the server's thread."""
WAIT_SECONDS = 20.0
"""Seconds after which a connection is dropped if its other end neither sends the rest of a request nor reads the
answer. A reader of a large file reads a piece at a time; 3 kB/s are enough."""
MOST_CONNECTIONS = 1500
"""Most connections. Beyond these, the server drops the connections whose other ends have done nothing for the longest
time. They are more than the streams of `training.publish.live.stream`; each may hold a file as well."""
_NO_LINGER = struct.pack("ii", 1, 0)
_TICKS = 10
"""Number of uvicorn's ticks, of a tenth of a second each, between two looks at all connections."""


class _Connection(AutoHTTPProtocol):
    """A connection that knows since when the server has waited for its other end."""

    most: int = MOST_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.waits_since, self._unsent = time.monotonic(), 0
        if len(self.connections) > self.most:
            min(self.connections, key=lambda one: one.waits_since).drop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.waits_since = time.monotonic()

    def resume_writing(self) -> None:
        """Notes that the other end has read most of what was to be sent."""
        super().resume_writing()
        self.waits_since = time.monotonic()

    def look(self) -> None:
        """Drops the connection if the other end has done nothing for too long. Call it once a second."""
        unsent, now = self.transport.get_write_buffer_size(), time.monotonic()
        if unsent < self._unsent or (self._is_answering and not unsent):
            self.waits_since = now
        self._unsent = unsent
        if now - self.waits_since >= WAIT_SECONDS:
            self.drop()

    def drop(self) -> None:
        """Ends the connection at once. A normal close would wait until the other end has read the rest."""
        # Otherwise the system keeps the unsent bytes for minutes.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        """True if a request with its body has come, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body


class _Server(uvicorn.Server):
    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            for connection in list(self.server_state.connections):
                connection.look()
        return await super().on_tick(counter)


def listen_at(listener: socket.socket, host: str, port: int) -> None:
    """Binds a socket, also if a program that has just ended used the port.

    Raises:
        OSError: If the socket cannot be bound.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))


@contextmanager
def serve_in_thread(
    listener: socket.socket, app: object, *, most_connections: int = MOST_CONNECTIONS, **settings: object
) -> Iterator[None]:
    """Context that serves the application in a thread; at its end, open requests get two seconds to finish.

    Args:
        listener: Bound socket; requests wait for the server, which takes a moment to start.
        app: ASGI application to serve.
        most_connections: Most connections at a time; see `MOST_CONNECTIONS`.
        settings: Further arguments of `uvicorn.Config`.
    """
    listener.listen()
    connection = type("Connection", (_Connection,), {"most": most_connections})
    usual = {"log_level": "warning", "timeout_graceful_shutdown": 2, "http": connection, "ws": "none"}
    server = _Server(uvicorn.Config(app, **usual, **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server", daemon=True)
    thread.start()
    # Until then, a client that reads "ready" in the event log and sends a request at once would be refused.
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
