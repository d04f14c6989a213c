"""Fetches pictures from the addresses of a list: many at a time, few from one host, and none from inside the network.

A list of addresses comes from strangers. A connection is made only to public addresses of the Internet, checked when it
is made, so that no name and no redirection leads to this machine or its neighbours. A host that says in `X-Robots-Tag`
that its pictures are not for training is obeyed (`noai`, `noimageai`, `noindex`, `noimageindex`, as for img2dataset).
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import logging
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from urllib.parse import quote, urlsplit, urlunsplit

from training.data.store.source import TRY_AGAIN_CODES, pause_seconds
from training.processes.redirects import UnreadRedirects

logger = logging.getLogger(__name__)

CONNECTIONS, CONNECTIONS_PER_HOST = 64, 4
FETCH_TRIES, SILENT_SECONDS, PICTURE_SECONDS = 3, 10.0, 30.0
"""How often a picture is asked for, how long a host may be silent, and how long an answer may take."""
LINK_SECONDS = 600.0
"""If this machine's link is down, a picture waits for it for so long; else all that are asked for in a minute without a
link would be left out for ever."""
LARGEST_PICTURE_BYTES = 1 << 25
OPTED_OUT = ("noai", "noimageai", "noindex", "noimageindex")
USER_AGENT = "training-transformers-together (obeys X-Robots-Tag: noai)"
REDIRECTIONS = 5
WITH_IPV4 = tuple(map(ipaddress.ip_network, ("::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""Addresses of IPv6 that end with one of IPv4, to which machines and gateways take them (RFC 4291, 2765 and 6052)."""
INSIDE = ipaddress.ip_network("64:ff9b:1::/48")
"""Of a network's own gateway to IPv4 (RFC 8215)."""
PLAIN_SIGNS = "%/:=&?~+!$,;'@()*[]"
"""Signs that stay as they are in an address; lists have spaces and letters of all scripts in others, as browsers take
them."""


class LeftOutError(Exception):
    """A picture that is left out; the text is the reason."""


class Fetcher:
    """Fetches pictures, from as many threads as ask.

    Args:
        is_allowed: Whether a connection to an IP address may be made; None: only to public ones.
    """

    def __init__(self, is_allowed: Callable[[str], bool] | None = None):
        self._is_allowed = is_allowed or is_public
        self._opener = urllib.request.OpenerDirector()  # without its handlers for files, FTP and proxies
        redirections = UnreadRedirects()
        redirections.max_redirections = REDIRECTIONS
        for handler in (
            _Guarded(self._is_allowed),
            redirections,
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.UnknownHandler(),  # refuses what is neither http:// nor https://
        ):
            self._opener.add_handler(handler)
        self._hosts: dict[str, _Host] = {}
        """Those that are asked now: a list may name millions."""
        self._lock = threading.Lock()
        self._answerer: tuple[str, int] | None = None
        """The host that has answered last: if not even it can be reached, this machine's link is down."""
        self._is_link_down = False

    def fetch(self, url: str) -> bytes:
        """A picture's bytes.

        Raises:
            LeftOutError: If it is not to be had, too large, or not for training.
        """
        gives_up_at = time.monotonic() + LINK_SECONDS
        failures = 0
        while True:
            try:
                parts = urlsplit(url)
                path, query = (quote(part, safe=PLAIN_SIGNS) for part in (parts.path, parts.query))
                with self._turn(parts.hostname or ""):
                    return self._read(urlunsplit(parts._replace(path=path, query=query)))
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code not in TRY_AGAIN_CODES:
                    raise LeftOutError("not found at its address") from None
            except _PrivateAddressError:
                raise LeftOutError("private address") from None
            except (ValueError, http.client.InvalidURL):  # of this address, or of one to which it leads
                raise LeftOutError("no web address") from None
            except (OSError, http.client.HTTPException) as error:
                if isinstance(getattr(error, "reason", None), _PrivateAddressError):
                    raise LeftOutError("private address") from None
            failures += 1
            if failures >= FETCH_TRIES:
                if not self._has_waited_for_link(gives_up_at):
                    raise LeftOutError("host does not answer")
                failures = 0
            else:
                time.sleep(pause_seconds(failures))

    def _has_waited_for_link(self, gives_up_at: float) -> bool:
        """Waits while this machine's link is down; whether it was, and is no longer."""
        failures = 0
        while self._answerer is not None and time.monotonic() < gives_up_at:
            try:
                _connect(self._is_allowed, self._answerer, SILENT_SECONDS).close()
            except OSError:
                failures += 1
                self._note_link(is_down=True)
                time.sleep(pause_seconds(failures))
            else:
                self._note_link(is_down=False)
                return bool(failures)
        return False

    def _note_link(self, *, is_down: bool) -> None:
        """Says once, for all threads, that the link is down, and that it is back."""
        with self._lock:
            is_news, self._is_link_down = is_down != self._is_link_down, is_down
        if is_news and is_down:
            logger.warning(
                "This machine's link is down: %s, which has answered before, cannot be reached. `prepare` waits for "
                "up to %d minutes.",
                self._answerer[0],
                LINK_SECONDS // 60,
            )
        elif is_news:
            logger.warning("This machine's link is back.")

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Waits until a host is asked by fewer than `CONNECTIONS_PER_HOST`."""
        with self._lock:
            host = self._hosts.setdefault(name, _Host())
            host.asking += 1
        try:
            with host.turns:
                yield
        finally:
            with self._lock:
                host.asking -= 1
                if not host.asking:
                    del self._hosts[name]

    def _read(self, url: str) -> bytes:
        request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
        with self._opener.open(request, timeout=SILENT_SECONDS) as response:
            parts = urlsplit(response.url)
            self._answerer = (parts.hostname, parts.port or {"https": 443}.get(parts.scheme, 80))
            if is_opted_out(response.headers.get_all("X-Robots-Tag") or []):
                raise LeftOutError("opted out of training")
            content = bytearray()
            while chunk := response.read1(1 << 16):
                content += chunk
                if len(content) > LARGEST_PICTURE_BYTES:
                    raise LeftOutError("huge file")
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return bytes(content)


def is_opted_out(tags: list[str]) -> bool:
    """Whether values of `X-Robots-Tag` forbid training; `noai` for one named agent counts for that agent alone.

    >>> is_opted_out(["noarchive, NoAI"]), is_opted_out(["otherbot: noai"]), is_opted_out([])
    (True, False, False)
    """
    for tag in tags:
        agent, separator, rest = tag.partition(":")
        directives = rest if separator and "," not in agent else tag
        if separator and "," not in agent and agent.strip().lower() != USER_AGENT.split()[0]:
            continue
        if any(directive.strip().lower() in OPTED_OUT for directive in directives.split(",")):
            return True
    return False


def is_public(address: str) -> bool:
    """Whether an IP address is one of the Internet's, and not of this machine, its network, or a group.

    >>> is_public("93.184.216.34"), is_public("10.0.0.1"), is_public("::ffff:127.0.0.1"), is_public("169.254.169.254")
    (True, False, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 4:
        return ip.is_global and not ip.is_multicast
    inner = ip.sixtofour
    if any(ip in network for network in WITH_IPV4):
        inner = ipaddress.IPv4Address(ip.packed[-4:])
    if inner is not None and not is_public(str(inner)):
        return False
    return (inner is not None or ip.is_global) and not (ip.is_multicast or ip.is_site_local or ip in INSIDE)


class _Host:
    """A host that is asked."""

    def __init__(self):
        self.turns = threading.Semaphore(CONNECTIONS_PER_HOST)
        self.asking = 0
        """Threads that have a turn, or wait for one."""


class _PrivateAddressError(OSError):
    """A name or redirection leads to an address that is not the Internet's."""


class _Guarded(urllib.request.AbstractHTTPHandler):
    """Opens connections to allowed addresses only."""

    def __init__(self, is_allowed: Callable[[str], bool]):
        super().__init__()
        self._is_allowed, self._context = is_allowed, ssl.create_default_context()

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """For `urllib.request`."""
        return self.do_open(lambda host, **settings: self._guard(http.client.HTTPConnection(host, **settings)), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """For `urllib.request`."""
        return self.do_open(
            lambda host, **settings: self._guard(http.client.HTTPSConnection(host, context=self._context, **settings)),
            request,
        )

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _guard(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        # `http.client` connects through this attribute. The address that is checked is the one that is connected to:
        # a name that is resolved twice could have another address the second time.
        connection._create_connection = partial(_connect, self._is_allowed)
        connection.response_class = _Response
        return connection


class _Response(http.client.HTTPResponse):
    """An answer that has to come within `PICTURE_SECONDS`, its headers included."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.fp = io.BufferedReader(_Timed(self.fp.detach()))


class _Timed(io.RawIOBase):
    """What a connection brings until a deadline. A host that sends a byte now and then is never silent."""

    def __init__(self, connection: io.RawIOBase):
        self._connection, self._deadline = connection, time.monotonic() + PICTURE_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int | None:
        if time.monotonic() > self._deadline:
            raise TimeoutError("it comes too slowly")
        return self._connection.readinto(buffer)

    def close(self) -> None:
        self._connection.close()
        super().close()


def _connect(
    is_allowed: Callable[[str], bool], address: tuple[str, int], timeout: float, source_address: object = None
) -> socket.socket:
    """As `socket.create_connection`, to allowed addresses only."""
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    allowed = [place for *_, place in found if is_allowed(place[0])]
    if not allowed:
        raise _PrivateAddressError(f"{address[0]} is no public address")
    for place in allowed[:-1]:
        with suppress(OSError):  # such as the first of two families, on a machine that has only the other one
            return socket.create_connection(place[:2], timeout)
    return socket.create_connection(allowed[-1][:2], timeout)
