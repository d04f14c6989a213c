"""A server for the built site, with the types that browsers insist on and a live API that a test writes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit


class SiteServer:
    """Serves `folder` at `url`, and `live["NAME"]` at /live/NAME.json in place of the recorded run.

    Sitemap and canonical links are shown as if the site had been built for this address: the theme swaps pages without
    reloading only where they agree.
    """

    def __init__(self, folder: Path):
        self.live: dict[str, object] = {}
        self.files: dict[str, bytes | None] = {}
        """Address -> content, in place of the folder's; None: it is missing."""
        self.silent = False
        """While true, the live API answers 503."""
        self.headers: dict[str, str] = {}
        """Further headers of the live API."""
        self.requests: list[str] = []
        handler = partial(_Handler, directory=str(folder))
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.site = self
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address) -> None:
        """Browsers that end in the middle of an answer are no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012  (as the base class has it)
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def do_GET(self) -> None:
        site: SiteServer = self.server.site
        address = urlsplit(self.path)
        site.requests.append(self.path)
        name = address.path.removeprefix("/live/").removesuffix(".json")
        if address.path == f"/live/{name}.json" and site.live:
            self._answer_live(site, name, parse_qs(address.query))
        elif address.path in site.files:
            content = site.files[address.path]
            if content is None:
                self.send_error(404)
            else:
                self._answer(content, self.guess_type(address.path))
        elif address.path == "/sitemap.xml":
            text = Path(self.directory, "sitemap.xml").read_text()
            self._answer(text.replace("http://127.0.0.1:8000/", site.url).encode(), "application/xml")
        else:
            super().do_GET()

    def _answer_live(self, site: SiteServer, name: str, query: dict[str, list[str]]) -> None:
        if site.silent:
            self.send_error(503)
            return
        if name not in site.live:
            self.send_error(404)
            return
        document = site.live[name]
        if name == "history" and "since" in query:
            since = int(query["since"][0])
            document = {**document, "epochs": [row for row in document["epochs"] if row["epoch"] > since]}
        if name == "state":  # made when it is asked for, as a monitor's
            document = {**document, "time": time.time()}
        self._answer(json.dumps(document).encode(), "application/json", site.headers)

    def _answer(self, content: bytes, kind: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        page = Path(self.directory, "404.html")
        if code != 404 or not page.is_file():
            super().send_error(code, message, explain)
            return
        content = page.read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Tests read `requests` instead."""
