"""Serves an application of the project over HTTP, as its own programs do."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn


@contextmanager
def serving(app):
    """Address at which the app is served in the block."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield "http://{}:{}".format(*listener.getsockname())
        finally:
            server.should_exit = True
            thread.join(10)
        assert not thread.is_alive()
