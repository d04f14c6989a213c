"""Caddy with the project's Caddyfile in front of a server: TLS, compression, and events that are passed on at once."""

from __future__ import annotations

import http.server
import os
import ssl
import threading

import httpx
import pytest

from tests.deploy.tools import DEPLOY, tool
from tests.support.ports import free_port
from tests.support.programs import run_program, until
from tests.support.serving import serving
from training.trust.keys import MembershipKey
from training.trust.server.app import create_app
from training.trust.server.desk import Desk
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.server.policy import Policy

pytestmark = pytest.mark.programs

CADDYFILE = DEPLOY / "Caddyfile"
TEST_ONLY = "{\n\tskip_install_trust\n\tadmin off\n\tauto_https disable_redirects\n\tlog {\n\t\tlevel ERROR\n\t}\n"
"""Keeps Caddy from adding its own authority to this machine's, and from ports that need root."""


class Monitor(http.server.BaseHTTPRequestHandler):
    """A document and a stream of events, of which the second comes only after the test has read the first."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()

    def do_GET(self):
        self.send_response(200)
        if self.path == "/events":
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: first\n\n")
            self.go_on.wait(20)
            self.wfile.write(b"data: second\n\n")
        else:
            document = b'{"epochs": [' + b"1, " * 5000 + b"1]}"
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

    def log_message(self, *_):
        pass


def caddy_environment(folder, **values):
    return {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder), **values}


def test_caddy_accepts_the_file(tmp_path):
    caddy = tool("caddy", "caddy")
    flags = ["--config", CADDYFILE, "--adapter", "caddyfile"]
    checked = run_program([caddy, "validate", *flags], env=caddy_environment(tmp_path))
    assert checked.returncode == 0, checked.stderr
    formatted = run_program([caddy, "fmt", CADDYFILE], env=caddy_environment(tmp_path))
    assert formatted.stdout == CADDYFILE.read_text()


@pytest.fixture
def members(tmp_path):
    """Address of a membership server."""
    register = Moderation(tmp_path / "members" / REGISTER_FILE, run_id="demo")
    with serving(create_app(Desk(register, MembershipKey.begin(), Policy()), page_token="x" * 20)) as url:
        yield url


@pytest.fixture
def site(programs, tmp_path, members):
    """A client of Caddy's site, which trusts only the authority that Caddy has made for it."""
    caddy = tool("caddy", "caddy")
    monitor = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Monitor)
    threading.Thread(target=monitor.serve_forever, daemon=True).start()
    port = free_port()
    file = tmp_path / "Caddyfile"
    # There is one block of settings for all sites; the test's stand in it before the file's own.
    file.write_text(CADDYFILE.read_text().replace("{\n", TEST_ONLY, 1))
    values = {"SITE_ADDRESS": f"https://localhost:{port}", "MONITOR": f"127.0.0.1:{monitor.server_port}"}
    values["MEMBERSHIP"] = members.removeprefix("http://")
    log = tmp_path / "caddy.log"
    with log.open("w") as printed:
        command = [caddy, "run", "--config", file, "--adapter", "caddyfile"]
        programs.start(command, env=caddy_environment(tmp_path, **values), stdout=printed, stderr=printed)
    authority = tmp_path / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    until(authority.is_file, within=20, said=log.read_text)
    trust = ssl.create_default_context(cafile=str(authority))
    with httpx.Client(base_url=values["SITE_ADDRESS"], verify=trust, timeout=20) as client:
        until(lambda: answers(client), within=20, said=log.read_text)
        yield client
    monitor.shutdown()
    monitor.server_close()


def answers(client) -> bool:
    try:
        return client.get("/live/state.json").status_code == 200
    except httpx.TransportError:
        return False


def test_documents_come_over_tls_and_compressed(site):
    answer = site.get("/live/history.json", headers={"Accept-Encoding": "gzip"})
    assert len(answer.json()["epochs"]) == 5001
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=")


def test_the_membership_server_is_below_the_site(site):
    assert site.get("/membership/bans").text.startswith("training-bans 1\ndemo\n")
    assert site.get("/membership/page.css").headers["Content-Type"].startswith("text/css")
    assert site.get("/membership/page").status_code == 401
    assert site.post("/membership/tickets", content=b"x" * 70_000).status_code >= 400
    assert site.get("/bans").headers["Content-Type"] == "application/json"  # the monitor's


def test_events_are_passed_on_at_once(site):
    Monitor.go_on.clear()
    with site.stream("GET", "/events", headers={"Accept-Encoding": "gzip"}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "data: first"  # times out if Caddy waits for more
        Monitor.go_on.set()
        assert "data: second" in list(lines)
