"""Server of a run's checkpoints while the monitor starts, and while the monitor waits for room on its disk.

After a power cut no other peer may have the run's weights. A monitor takes some seconds to load PyTorch and hivemind
and to find the run, or up to a minute on a busy machine; this program needs none of these and answers within a second
or two. Every other address gets 503, as from a proxy whose server is not there yet.

It is a program of its own and not a thread: hivemind forks while the monitor starts, and forked processes would keep
the port and all open connections.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fastapi import FastAPI, Response

from training.checkpoints.serve.offered import checkpoint_routes
from training.processes.servers.web import STOP_SECONDS, listen_at, serve_in_thread

RETRY_SECONDS = 2
"""Seconds after which clients should ask again: this program answers nothing else."""


class CheckpointSite:
    """Handle by which the monitor starts and ends this server.

    Args:
        start: Starts a program that ends with the monitor; see `StopRequest.start`.
        checkpoints: Folder of the run's checkpoints.
        host: Address at which the monitor will serve.
        port: Port at which the monitor will serve.
    """

    def __init__(
        self, start: Callable[[Sequence[object]], subprocess.Popen], checkpoints: Path, *, host: str, port: int
    ):
        self._program = start([sys.executable, "-m", __name__, checkpoints, host, port])

    def end(self) -> None:
        """Ends the server, so that the port is free; clients go on with their downloads from the monitor."""
        self._program.terminate()
        try:
            self._program.wait(2 * STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()


def create_app(checkpoints: Path) -> FastAPI:
    """Makes the web application: the checkpoints' routes, and 503 for all else."""
    app = FastAPI(openapi_url=None)
    app.include_router(checkpoint_routes(checkpoints))

    @app.get("/{path:path}")
    def starting(path: str) -> Response:
        return Response("The monitor of this run is starting.\n", 503, {"Retry-After": str(RETRY_SECONDS)})

    return app


def serve(checkpoints: Path, host: str, port: int) -> None:
    """Serves until SIGTERM. Ends without a message if the port is taken: the monitor says so when it needs it."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the monitor handles Ctrl-C
    with suppress(OSError), socket.socket() as listener:
        listen_at(listener, host, port)
        with serve_in_thread(listener, create_app(checkpoints)):
            stop.wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
