"""Client for documents of web servers, and for files of a folder, a web server or a store.

Each fetch has limits on bytes and on seconds, so no host can fill the memory or block a program by sending a byte now
and then. No redirect leads from the Internet into a private network, and none gives up TLS.

    read_document("https://run.example/recipe.toml", most_bytes=1 << 14, seconds=60)
    open_source("s3://bucket/shards").read("train-00000.parquet", start=4, length=100)
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlsplit

from training.errors import BadInput, TrainingError, reason_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from httpx2 import Client, Headers, Request, Response

TRIES, SILENCE_SECONDS = 4, 30.0
"""Failures in a row after which a file is given up, and the longest silence of its server in seconds."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
"""Pause in seconds after the first failure, which doubles with each further one, and the longest pause."""
PROGRESS_BYTES = 1 << 16
"""Bytes after which a request that then failed counts as a success: a slow link may break off often."""
GRACE_SECONDS, LEAST_BYTES_PER_SECOND = 60.0, 20_000
"""Limits of the time of a file: `GRACE_SECONDS` and its length at this speed, added up. A document of unknown length,
such as a manifest, has `GRACE_SECONDS` alone."""
TRY_AGAIN_CODES = (408, 425, 429)
"""Answers below 500 after which the same request may succeed later."""
LARGEST_DOCUMENT_BYTES, MOST_REDIRECTS = 1 << 20, 5
USER_AGENT = "training-transformers-together"
WITH_IPV4 = tuple(map(ipaddress.ip_network, ("::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""IPv6 networks whose addresses end in an IPv4 address to which machines and gateways pass them on (RFC 4291, 2765,
6052)."""
INSIDE = ipaddress.ip_network("64:ff9b:1::/48")
"""IPv6 network for a local network's own gateway to IPv4 (RFC 8215)."""


class Unanswered(OSError):
    """A server gives no answer, or an answer that is not accepted; `__cause__` is the error of the library."""


class RefusedAddress(Unanswered):
    """A site or a list leads to an address that this client does not ask."""


class Refusal(Unanswered):
    """A server answers with an error, or with a redirect that is not followed."""

    def __init__(self, status: int):
        known = {one.value: one.phrase for one in HTTPStatus}
        super().__init__(f"HTTP {status} {known.get(status, '')}".rstrip())
        self.status = status


class UnreachableError(Exception):
    """The source does not answer now; it may later."""


class MissingError(Exception):
    """The source answers, but does not have the file, or the file is too short."""


# -- documents of the web ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Answer of a web server; read it within the block of `ask`."""

    url: str
    """Address that has answered, after all redirects."""
    status: int
    headers: Headers
    """Headers of the answer by name, in upper or lower case; `get_list` returns all values of a name."""
    pieces: Iterator[bytes]
    """Body of the answer as it arrives, without decompression."""

    def check(self) -> None:
        """Raises Refusal unless the server sends what was asked for."""
        if self.status >= 300:
            raise Refusal(self.status)

    def read(self, most_bytes: int) -> bytes:
        """Returns the whole body.

        Raises:
            Unanswered: If the body is longer than `most_bytes`.
        """
        content = bytearray()
        for piece in self.pieces:
            content += piece
            if len(content) > most_bytes:
                raise Unanswered(f"it has more than {most_bytes} bytes")
        return bytes(content)


def read_document(url: str, *, most_bytes: int = LARGEST_DOCUMENT_BYTES, seconds: float, **how: Any) -> bytes:
    """Reads a whole document of the web.

    Args:
        url: Address of http or https.
        most_bytes: Largest accepted document.
        seconds: Limit of the whole time, in seconds.
        how: Further arguments of `ask`.

    Raises:
        Unanswered, ValueError: As `ask` raises them; also if the server refuses, or the document is longer.
    """
    with ask(url, seconds=seconds, **how) as answer:
        answer.check()
        return answer.read(most_bytes)


@contextmanager
def ask(
    url: str,
    *,
    seconds: float,
    silence_seconds: float | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    follows: bool = True,
    is_allowed: Callable[[str], bool] | None = None,
    uses_proxy: bool = True,
) -> Iterator[Answer]:
    """Asks a web server, whose address may come from a stranger.

    Args:
        url: Address of http or https.
        seconds: Limit of the whole time, from the connection to the last byte.
        silence_seconds: Longest silence of the server; None: `seconds`.
        headers: Headers to add to the request.
        body: Body to send by POST; None: the request is a GET.
        follows: True to follow redirects that `check_redirect` allows.
        is_allowed: Returns True for an IP address to which a connection may be made; None: all are allowed.
        uses_proxy: True to use a proxy that the environment names.

    Raises:
        Unanswered: If there is no answer within the limits.
        RefusedAddress: If the server, or a redirect, is at an address that this client does not ask.
        ValueError: If `url` is not an address of the web.
    """
    import httpx2  # slow to load

    silence = min(seconds if silence_seconds is None else silence_seconds, seconds)
    limits, trusts = httpx2.Limits(max_keepalive_connections=0), uses_proxy and is_allowed is None
    with (
        _in_words(seconds) as deadline,
        httpx2.Client(
            verify=_tls(os.environ.get("SSL_CERT_FILE")), timeout=silence, limits=limits, trust_env=trusts
        ) as client,
    ):
        named = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **(headers or {})}
        method, target = "GET" if body is None else "POST", httpx2.URL(url)
        for _ in range(MOST_REDIRECTS + 1):
            request = client.build_request(method, target, headers=named, content=body)
            response = _sent(client, request, deadline, is_allowed)
            if not (follows and response.has_redirect_location):
                break
            response.close()  # unread: the body of a redirect may have no end
            before, target = target, target.join(response.headers["Location"])
            check_redirect(str(before), str(target))
        else:
            raise Unanswered("it is redirected without an end")
        try:
            pieces = _arriving(response, deadline)
            yield Answer(url=str(target), status=response.status_code, headers=response.headers, pieces=pieces)
        finally:
            response.close()


@lru_cache(maxsize=4)
def _tls(cert_file: str | None) -> ssl.SSLContext:
    """Makes TLS settings that trust the system's certificates, or those of `cert_file`; this takes 20 ms."""
    return ssl.create_default_context()


def _sent(client: Client, request: Request, deadline: _Deadline, is_allowed: Callable[[str], bool] | None) -> Response:
    """Sends a request and returns the answer, whose body is still to come."""
    import httpx2

    request.extensions["trace"] = deadline.trace
    if is_allowed is None:
        return client.send(request, stream=True)
    host = request.url.host
    places = allowed_addresses(host, request.url.port or 443, is_allowed)
    # The checked address is also the one of the connection: a name that is looked up twice could have another address
    # the second time. The certificate must still be that of the name.
    request.extensions["sni_hostname"] = host
    for number, place in enumerate(places, start=1):
        request.url = request.url.copy_with(host=place)
        try:
            return client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if number == len(places):
                raise
    raise AssertionError("there is at least one address")


def _arriving(response: Response, deadline: _Deadline) -> Iterator[bytes]:
    import httpx2

    try:
        yield from response.iter_raw()
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        deadline.check()
        raise Unanswered(_reason(error)) from error
    # A connection that the deadline has cut off looks like the end of a body whose length was not announced.
    deadline.check()


class _Deadline:
    """Deadline of a request: cuts off its connections when its time is over, even if the server trickles its
    headers."""

    def __init__(self, seconds: float):
        self.seconds, self.is_over = seconds, False
        self._streams: list[Any] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def trace(self, event: str, facts: dict[str, Any]) -> None:
        """Notes each connection as soon as it is made; httpx calls this at each step of a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._streams.append(facts["return_value"])
            if self.is_over:
                self._end()

    def check(self) -> None:
        """Raises Unanswered if the time is over."""
        if self.is_over:
            raise Unanswered(f"it has not arrived within {self.seconds:.0f} s")

    def cancel(self) -> None:
        """Ends the deadline's watch."""
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        for stream in self._streams:
            with suppress(OSError):
                # Not the method of `ssl.SSLSocket`, which would take the TLS away from a thread that reads.
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)


@contextmanager
def _in_words(seconds: float) -> Iterator[_Deadline]:
    """Context that starts the deadline of a request, and replaces the library's errors by those that `ask` raises."""
    import httpx2

    deadline = _Deadline(seconds)
    try:
        yield deadline
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise ValueError(str(error)) from None
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        deadline.check()
        raise Unanswered(_reason(error)) from error
    finally:
        deadline.cancel()


def _reason(error: BaseException) -> str:
    """Text of the system's error that caused a fault; if there is none, the text of the library's error."""
    text = str(error) or type(error).__name__
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return reason_of(error) if isinstance(error, OSError) and str(error) else text


def check_redirect(source: str, target: str) -> None:
    """Refuses a redirect from the Internet into the volunteer's own network, and one from https to http.

    A site could otherwise make volunteers send requests to their routers and other machines behind their firewalls.
    This function looks the target's name up, and the connection does so again, so a name server may still lie the
    second time.

    Raises:
        RefusedAddress: If the redirect leads from the Internet into the own network, or from https to http.
    """
    before, after = urlsplit(source), urlsplit(target)
    if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
        raise RefusedAddress(f"it is redirected to {target}, which is less safe than the address that was given")
    if is_public_host(before.hostname) and not is_public_host(after.hostname):
        raise RefusedAddress(f"it is redirected to {target}, an address within a private network")


def is_public_host(host: str | None) -> bool:
    """Returns True if all addresses of a host are on the Internet; False for a host without addresses."""
    found = []
    with suppress(OSError, ValueError):
        found = [place[0] for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    return bool(found) and all(map(is_public, found))


def allowed_addresses(host: str, port: int, is_allowed: Callable[[str], bool]) -> list[str]:
    """Returns the IP addresses of a host to which a connection may be made.

    Raises:
        RefusedAddress: If no address is allowed.
        Unanswered, ValueError: If the name is unknown, or not a host's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        raise Unanswered(reason_of(error)) from None
    allowed = list(dict.fromkeys(place[0] for *_, place in found if is_allowed(place[0])))
    if not allowed:
        raise RefusedAddress(f"{host} is no public address")
    return allowed


def is_public(address: str) -> bool:
    """Returns True if an IP address belongs to the Internet, and not to this machine, its network, or a group of
    machines.

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


# -- files -------------------------------------------------------------------------------------------------------------


class Source(Protocol):
    """A place with files, from which they can be read."""

    is_remote: bool
    """True if the source is not on this machine, so that a cache saves time."""

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        """Reads `length` bytes of a file.

        Raises:
            UnreachableError: If nothing comes, after several tries.
            MissingError: If the file is missing or shorter.
        """

    def read_all(self, name: str, *, limit: int) -> bytes:
        """Reads a whole file, at most `limit` + 1 bytes of it; raises the errors of `read`."""

    def download(self, name: str, path: Path, *, length: int) -> None:
        """Writes a file of a known length to a path; raises the errors of `read`."""


def open_source(address: str) -> Source:
    """Opens the source at an address: `http(s)://`, `hf://`, `s3://`, or a folder.

    Raises:
        BadInput: If the address is of another kind, or the library for it is missing.
    """
    scheme, separator, _ = address.partition("://")
    if not separator:
        return Folder(Path(address))
    if scheme in ("http", "https"):
        return Web(address)
    return Store(address)


def data_set_address(address: str) -> str:
    """Address at which a data set of the hub is read. An `hf://` address gets `datasets/`, without which it names a
    model.

    >>> data_set_address("hf://OWNER/NAME"), data_set_address("https://example.org/shards")
    ('hf://datasets/OWNER/NAME', 'https://example.org/shards')
    """
    if address.startswith("hf://") and not address.startswith("hf://datasets/"):
        return address.replace("hf://", "hf://datasets/", 1)
    return address


def pause_seconds(failures: int) -> float:
    """Random pause after this many failures in a row, so that peers that failed together do not try again together."""
    return min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.5)


class Folder(Source):
    """A folder on this machine."""

    is_remote = False

    def __init__(self, folder: Path):
        self._folder = folder

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        content = self._read(name, start, length)
        if len(content) < length:
            raise MissingError(f"{self._folder / name} ends after {start + len(content)} bytes")
        return content

    def read_all(self, name: str, *, limit: int) -> bytes:
        return self._read(name, 0, limit + 1)

    def download(self, name: str, path: Path, *, length: int) -> None:
        path.write_bytes(self.read(name, length=length))

    def _read(self, name: str, start: int, most_bytes: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(most_bytes)
        except OSError as error:
            raise MissingError(f"{self._folder / name} cannot be read: {reason_of(error)}") from None


class _Remote(Source):
    """Source that repeats failed requests, each from the byte where the last one broke off."""

    is_remote = True

    def __init__(self, address: str):
        self._address = address.rstrip("/")

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        return b"".join(self.pieces(name, start=start, length=length))

    def read_all(self, name: str, *, limit: int) -> bytes:
        return b"".join(self.pieces(name, length=limit + 1, is_length_known=False))

    def download(self, name: str, path: Path, *, length: int) -> None:
        with path.open("wb") as file:
            for piece in self.pieces(name, length=length):
                file.write(piece)

    def pieces(
        self,
        name: str,
        *,
        start: int = 0,
        length: int,
        is_length_known: bool = True,
        wait: Callable[[float], None] = time.sleep,
    ) -> Iterator[bytes]:
        """Yields `length` bytes of a file as they arrive; raises the errors of `Source.read`.

        Args:
            name: Name of the file.
            start: Position of the first byte.
            length: Number of bytes.
            is_length_known: True if a file that ends earlier is an error; False if it may end earlier.
            wait: Sleeps for some seconds between two tries.
        """
        done = failures = 0
        seconds = GRACE_SECONDS + (length / LEAST_BYTES_PER_SECOND if is_length_known else 0.0)
        gives_up_at = time.monotonic() + seconds
        while done < length:
            before = done
            try:
                for piece in self._pieces(name, start + done, length - done, gives_up_at - time.monotonic()):
                    done += len(piece)
                    yield piece
                if not is_length_known:
                    return
                if done == before:
                    raise MissingError(f"{self._address}/{name} ends after {start + done} bytes")
            except (MissingError, BadInput):
                raise
            except RefusedAddress as error:
                raise MissingError(f"{self._address}/{name} cannot be fetched: {error}") from None
            except Exception as error:  # fsspec's stores raise many kinds
                failures = 1 if done - before >= PROGRESS_BYTES else failures + 1
                if failures >= TRIES or time.monotonic() > gives_up_at:
                    raise UnreachableError(f"{self._address}/{name} cannot be fetched: {reason_of(error)}") from None
                wait(pause_seconds(failures))

    def _pieces(self, name: str, start: int, length: int, seconds: float) -> Iterator[bytes]:
        """Yields at most `length` bytes of a file from one request; nothing if the file ends before `start`."""
        raise NotImplementedError


class Web(_Remote):
    """Files of a web server. If the server cannot send parts of a file, the unwanted bytes are skipped."""

    def _pieces(self, name: str, start: int, length: int, seconds: float) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        address = f"{self._address}/{quote(name)}"
        with ask(address, seconds=max(seconds, 1.0), silence_seconds=SILENCE_SECONDS, headers=headers) as answer:
            # Below 500 the address is wrong or refused (404, 403), and asking again does not help.
            if 300 <= answer.status < 500 and answer.status not in TRY_AGAIN_CODES:
                raise MissingError(f"{address} cannot be fetched: {Refusal(answer.status)}")
            answer.check()
            skipped = start if answer.status != HTTPStatus.PARTIAL_CONTENT else 0
            for piece in answer.pieces:
                wanted = piece[skipped : skipped + length]
                skipped = max(skipped - len(piece), 0)
                length -= len(wanted)
                yield wanted
                if not length:
                    return


class Store(_Remote):
    """Files of a store that fsspec knows, such as `s3://`, and `hf://` of Hugging Face."""

    def __init__(self, address: str):
        super().__init__(address)
        self._files, self._root = file_system(self._address)

    def _pieces(self, name: str, start: int, length: int, seconds: float) -> Iterator[bytes]:
        found: Future[bytes] = Future()

        def read() -> None:
            try:
                found.set_result(self._files.cat_file(f"{self._root}/{name}", start=start, end=start + length))
            except BaseException as error:
                found.set_exception(error)

        # No library bounds the whole time of a read. A thread that is given up must not keep the program from ending.
        threading.Thread(target=read, daemon=True, name="store").start()
        try:
            yield found.result(max(seconds, 1.0))
        except FileNotFoundError:
            raise MissingError(f"{self._address}/{name} is not there") from None
        except TimeoutError:
            raise Unanswered(f"it has not arrived within {max(seconds, 1.0):.0f} s") from None


def file_system(address: str) -> tuple[AbstractFileSystem, str]:
    """Opens the file system of an address, and returns it with the path in it.

    `s3://` takes s3fs, or else the S3 client in pyarrow.

    Raises:
        BadInput: If the address has no path, or a library for it is not installed. Nothing is sent yet.
    """
    import fsspec  # seldom needed, and slow to load

    try:
        return fsspec.core.url_to_fs(address)
    except ImportError as error:
        if address.startswith("s3://"):
            return _arrows_s3(address)
        fault, cure = error, f"Install the library that reads {address.partition('://')[0]}://."
    except ValueError as error:
        fault, cure = error, "Give a folder, or an address with https://, hf:// or s3://."
    raise BadInput(f"{address} cannot be used: {fault}.", cure=cure)


def _arrows_s3(address: str) -> tuple[AbstractFileSystem, str]:
    """Makes a client for `s3://BUCKET/PATH`, and returns it with the path. The client reads keys and region from the
    environment.

    AWS_ENDPOINT_URL names another server than Amazon's, as it does for Amazon's own tools.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    class Files(ArrowFSWrapper):
        def cat_file(self, path, start=None, end=None, **settings):
            # fsspec opens a file that cannot be sought if it reads from the beginning, and seeks the end in it.
            return super().cat_file(path, start=start, end=end, **{"seekable": True, **settings})

    server = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    elsewhere = {"endpoint_override": server.netloc, "scheme": server.scheme} if server.netloc else {}
    return Files(S3FileSystem(**elsewhere)), address.removeprefix("s3://").rstrip("/")


def tried(name: str, address: str, act: Callable[[], Any]) -> Any:
    """Calls `act`, again if it fails, and returns its result.

    Args:
        name: Name of the file that `act` reads or writes, for messages.
        address: Place of the file, for messages.
        act: Function that may raise any error; it is not called again after `BadInput`.

    Raises:
        TrainingError: If `act` fails several times.
    """
    for failures in range(1, TRIES + 1):
        try:
            return act()
        except BadInput:
            raise
        except Exception as error:  # errors of any library of a store
            reason = " ".join((reason_of(error) or type(error).__name__).split())[:300]
        if failures < TRIES:
            time.sleep(pause_seconds(failures))
    raise TrainingError(
        f"{name} cannot be read or written at {address}: {reason}.",
        cure="Give the same command again; it continues where it broke off.",
    )
