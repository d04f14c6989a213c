"""Serves an application of the project over HTTP, as its own programs do."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

from training.processes.servers.web import serve_in_thread


@contextmanager
def serving(app, **settings):
    """Address at which the app is served in the block."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        others = set(threading.enumerate())
        with serve_in_thread(listener, app, **settings):
            yield "http://{}:{}".format(*listener.getsockname())
        assert "server" not in {thread.name for thread in set(threading.enumerate()) - others}
