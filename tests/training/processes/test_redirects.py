"""All that fetches what others name follows redirects, but none from the Internet into this machine's network.

Here "localhost" counts as a site on the Internet, and 127.0.0.1 as a private address. In a network of its own, with a
public address on the loopback interface, `tests/training/checkpoints/test_fetch.py` tries the real rule.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from training.doctor.checks.compute import downloaded
from training.errors import BadInput, TrainingError
from training.recipe import load_recipe, read_recipe
from training.storage import remote
from training.storage.remote import MissingError, RefusedAddress, open_source
from training.swarm.run.servers import ask_site, servers_at

ADDRESS = "/ip4/203.0.113.7/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
FILES = {
    "/live/run.json": json.dumps({"initial_peers": [ADDRESS], "servers": ["QmServer"]}).encode(),
    "/recipe.toml": read_recipe("demo").encode(),
    "/shard": b"content",
}
FETCHED = {
    "shards": (lambda url: open_source(url).read_all("shard", limit=100), b"content", MissingError),
    "servers": (ask_site, (ADDRESS,), TrainingError),
    "trusted peers": (servers_at, {"QmServer"}, None),
    "recipe": (lambda url: load_recipe(f"{url}/recipe.toml").run_id, "demo", BadInput),
    "doctor": (lambda url: downloaded(f"{url}/shard")[0], len(b"content"), RefusedAddress),
}
"""What is fetched -> how, what comes, and what is raised if the site may not be asked."""


class Site(ThreadingHTTPServer):
    """Serves `FILES`, or redirects all requests to another site."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moved_to, self.asked = None, []
        self.tail_bytes = self.sent_bytes = 0
        """Bytes behind a redirect, and those of them that were taken."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200 if self.server.moved_to is None else 302)
        if self.server.moved_to is not None:
            self.send_header("Location", self.server.moved_to + self.path)
        content = FILES[self.path] if self.server.moved_to is None else b""
        self.send_header("Content-Length", str(len(content) + self.server.tail_bytes))
        self.end_headers()
        self.wfile.write(content)
        with suppress(ConnectionError):
            while self.server.sent_bytes < self.server.tail_bytes:
                self.server.sent_bytes += self.wfile.write(bytes(1 << 20))

    def log_message(self, *_):
        pass


@contextmanager
def site():
    with Site() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def sites(monkeypatch):
    """One that redirects to the other."""
    monkeypatch.setattr(remote, "is_public_host", lambda host: host == "localhost")
    monkeypatch.setattr(remote, "pause_seconds", lambda failures: 0.001)
    monkeypatch.setenv("no_proxy", "*")
    with site() as first, site() as second:
        first.moved_to = f"http://127.0.0.1:{second.server_port}"
        yield first, second


@pytest.mark.parametrize("what", FETCHED)
def test_a_site_of_this_network_may_redirect_into_it(sites, what):
    fetched, content, _ = FETCHED[what]
    assert fetched(f"http://127.0.0.1:{sites[0].server_port}") == content and sites[1].asked


@pytest.mark.parametrize("what", FETCHED)
def test_a_site_on_the_internet_may_not(sites, what):
    fetched, _, refused = FETCHED[what]
    url = f"http://localhost:{sites[0].server_port}"
    if refused is None:
        assert fetched(url) == frozenset()
    else:
        with pytest.raises(refused, match="within a private network"):
            fetched(url)
    assert sites[0].asked and not sites[1].asked


def test_a_redirect_without_an_end_is_not_read(sites):
    """A site could otherwise fill the memory of all who ask it, and hold them for as long as it likes."""
    first, _ = sites
    first.tail_bytes = 1 << 28
    fetched, content, _ = FETCHED["shards"]
    assert fetched(f"http://127.0.0.1:{first.server_port}") == content
    assert first.sent_bytes < 1 << 26  # what lies in the buffers of both sides
