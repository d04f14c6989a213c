"""A Hub for tests: answers `whoami-v2` as the Hugging Face Hub does, and notes what it was asked."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADAS, BOS = "hf_" + "a" * 34, "hf_" + "b" * 34
USERS = {
    ADAS: {
        "type": "user",
        "id": "64a0",
        "name": "ada",
        "fullname": "Ada",
        "isPro": False,
        "orgs": [{"type": "org", "id": "64b0", "name": "Shapes", "fullname": "Shapes", "roleInOrg": "read"}],
        "auth": {"type": "access_token", "accessToken": {"displayName": "x", "role": "read"}},
    },
    BOS: {"type": "user", "id": "64a1", "name": "bo", "fullname": "Bo", "orgs": [], "auth": {"type": "access_token"}},
}


class Hub:
    """What it knows, and what it was asked."""

    def __init__(self):
        self.users = json.loads(json.dumps(USERS))
        self.asked: list[tuple[str, str | None]] = []
        """Path and authorization of each request."""
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        """Given to whoever asks; None: as the Hub does."""
        self.url = ""

    def reply(self, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        self.asked.append((path, authorization))
        if self.answer is not None:
            return self.answer
        user = self.users.get((authorization or "").removeprefix("Bearer "))
        if path != "/api/whoami-v2" or user is None:
            message = "Invalid credentials in Authorization header"
            return 401, {"X-Error-Message": message}, json.dumps({"error": message}).encode()
        return 200, {}, json.dumps(user).encode()


@contextmanager
def hub_serving():
    """A Hub at its address."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            status, headers, body = hub.reply(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
