"""A web server for shards that does what tests ask for: parts of files or whole ones, faults, silence."""

from __future__ import annotations

import http.server
import re
import threading
import time
import urllib.parse
from contextlib import contextmanager

PIECE_BYTES = 1 << 14
"""A link is shared by answers in pieces of this size."""


class ShardServer(http.server.ThreadingHTTPServer):
    """Serves a folder; `url` is its address."""

    daemon_threads = True

    def __init__(self, folder, *, ranged=True, bytes_per_second=None, latency_seconds=0.0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.ranged = folder, ranged
        self.bytes_per_second, self.latency_seconds = bytes_per_second, latency_seconds
        self._free_at, self._link = 0.0, threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests = []
        """(file, first byte or None) of each request that was answered."""
        self.fault = lambda handler, name, first: None
        """Called before an answer; it answers by itself if it returns something that is true."""
        self.sent_bytes = 0

    def handle_error(self, request, client_address):
        """A client that has gone is no fault."""

    def content_of(self, name):
        """What is sent under a name."""
        return (self.folder / name).read_bytes()

    def pace(self, size):
        """Waits until the link, which all answers share, has carried so many bytes."""
        if self.bytes_per_second:
            with self._link:
                self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_second
                left = self._free_at - time.monotonic()
            time.sleep(max(left, 0))

    def files(self):
        """Names of the files that were asked for."""
        return [name for name, _ in self.requests]


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = urllib.parse.unquote(self.path.rsplit("/", 1)[-1])
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), int(asked[2])) if asked and self.server.ranged else (None, None)
        if self.server.fault(self, name, first):
            return
        try:
            content = memoryview(self.server.content_of(name))
        except OSError:
            return self.send_error(404)
        self.server.requests.append((name, first))
        if first is not None and first >= len(content):
            return self.send_error(416)
        time.sleep(self.server.latency_seconds)
        self.send(content if first is None else content[first : last + 1], first)

    do_HEAD = do_GET

    def send(self, content, first=None):
        """An answer, of a part of a file if `first` is a number."""
        self.send_response(200 if first is None else 206)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Accept-Ranges", "bytes" if self.server.ranged else "none")
        self.end_headers()
        for at in range(0, 0 if self.command == "HEAD" else len(content), PIECE_BYTES):
            piece = content[at : at + PIECE_BYTES]
            self.server.pace(len(piece))
            self.wfile.write(piece)
            self.server.sent_bytes += len(piece)

    def log_message(self, *args):
        pass


@contextmanager
def shard_server(folder, *, kind=None, **settings):
    """A running server, with the settings of `ShardServer` or of another kind of it."""
    with (kind or ShardServer)(folder, **settings) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
