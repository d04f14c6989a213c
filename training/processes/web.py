"""Serves a web application from a thread of a role."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

STOP_SECONDS = 3.0
"""Longest wait for the thread's end."""


@contextmanager
def serve_in_thread(listener: socket.socket, app: object, **settings: object) -> Iterator[None]:
    """Serves the application within the block; at its end, open requests get two seconds to finish.

    Args:
        listener: Bound; requests wait for the server, which takes a moment to start.
        app: The ASGI application.
        settings: Others than usual, of `uvicorn.Config`.
    """
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2, **settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server", daemon=True)
    thread.start()
    # Until then, whoever reads "ready" in the event log and asks at once would be refused.
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
