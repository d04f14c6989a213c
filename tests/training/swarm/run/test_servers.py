"""Where the run's servers are: addresses, and a site that names them."""

import http.server
import json
import threading
import time

import pytest

from training.errors import BadInput, TrainingError
from training.storage.remote import LARGEST_DOCUMENT_BYTES
from training.swarm.run import servers
from training.swarm.run.servers import Servers, ask_site, servers_at

ADDRESS = "/ip4/203.0.113.7/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
OTHER = "/dns4/run.example/tcp/31338/p2p/12D3KooWKKMWeHvg67RxPjomexUnzhB3MRcVUYhWEJvx7fHLNTB1"


@pytest.fixture
def site():
    """A site; what it answers at /live/run.json can be set."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/live/run.json" or server.content is None:
                time.sleep(server.seconds)
                return self.send_error(404)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(server.content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.content, server.seconds = None, 0.0
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_site_names_the_servers_and_may_name_others_later(site):
    site.content = json.dumps({"run_id": "demo", "initial_peers": [ADDRESS]}).encode()
    known = Servers([f"{site.url}/", OTHER])
    assert known.addresses == (OTHER,)
    assert known.ask_sites() == []
    assert known.addresses == (OTHER, ADDRESS)
    assert known.ids == {OTHER.split("/")[-1], ADDRESS.split("/")[-1]}
    site.content = json.dumps({"initial_peers": [OTHER]}).encode()
    assert known.ask_sites() == [] and known.addresses == (OTHER,)
    site.content = None
    (fault,) = known.ask_sites()
    assert "404" in str(fault) and known.addresses == (OTHER,)  # what it named last still counts


@pytest.mark.parametrize(
    "content, words",
    [
        (b"<html>", "cannot be read"),
        (b"{}", "no field 'initial_peers'"),
        (b'{"initial_peers": 7}', "cannot be read"),
        (b'{"initial_peers": ["somewhere"]}', "is not a network address"),
        (json.dumps({"initial_peers": [ADDRESS + "a" * 200_000]}).encode(), "is not a network address"),
        (b'{"initial_peers": []}', "the run is over, or its monitor is not running"),
        (b" " * (LARGEST_DOCUMENT_BYTES + 10), "more than"),
        (None, "404"),
    ],
)
def test_a_site_that_names_no_servers_is_one_sentence(site, content, words):
    site.content, began = content, time.process_time()
    with pytest.raises(TrainingError, match=words) as caught:
        ask_site(site.url)
    assert time.process_time() - began < 2  # to read a peer's id of 200 kB takes longer
    assert len(caught.value.sentence) < 1000
    assert "\n" not in caught.value.sentence and f"{site.url}/live/run.json" in caught.value.sentence


def test_a_document_within_documents_names_nobody(site):
    site.content = b"[" * 200_000
    assert servers_at(site.url) == frozenset()
    with pytest.raises(TrainingError, match="cannot be read"):
        ask_site(site.url)


def test_a_site_that_keeps_silent_is_not_waited_for(site, monkeypatch):
    monkeypatch.setattr(servers, "SITE_SECONDS", 0.2)
    site.seconds = 5.0
    began = time.monotonic()
    with pytest.raises(TrainingError, match=r"timed out|has not arrived"):
        ask_site(site.url)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("given", ["http://", "https:///live", "ftp://run.example", "run.example"])
def test_what_is_neither_an_address_nor_a_site_is_refused(given):
    with pytest.raises(BadInput):
        Servers([given])
