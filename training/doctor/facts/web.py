"""Fetches a file of the run's site as `join` does, and says what stands in the way: name, proxy, certificate."""

from __future__ import annotations

import email.utils
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from training.doctor.finding import Fault, Finding, Unusable
from training.storage.remote import Answer, Refusal, RefusedAddress, ask

NAME = Fault(
    name="name-unknown",
    why="This machine cannot find the address of that name, so it cannot reach the run.",
    remedy="Check the spelling and that this machine is online. If other names fail too, set another DNS server, such "
    "as 1.1.1.1.",
)
BAD_ADDRESS = Fault(
    name="address-invalid",
    why="Recipe and shards come from there, and `join` cannot ask it either.",
    remedy="Copy the address from the join page again.",
)
PROXY_DOWN = Fault(
    name="proxy-unreachable",
    why="The environment says that web addresses are fetched through this proxy, so recipe and shards do not arrive.",
    remedy="Correct or unset {variable}, or add the site's name to no_proxy.",
)
PROXY_REFUSES = Fault(
    name="proxy-refuses",
    why="Recipe and shards are fetched through this proxy, and it does not let them pass.",
    remedy="Put user and password into {variable} (http://USER:PASSWORD@HOST:PORT), or ask whoever runs the proxy.",
)
SITE_REFUSES = Fault(
    name="site-refuses",
    why="Recipe and shards come from there.",
    remedy="Check the port in the address. If it is right, the run's monitor is off: ask the run's maintainer.",
)
SITE_SILENT = Fault(
    name="site-silent",
    why="Recipe and shards come from there. No answer at all is what a firewall or a machine that is off looks like.",
    remedy="Open the address in a browser of this machine. If it opens there, a proxy may be needed: set https_proxy.",
)
SITE_SLOW = Fault(
    name="site-slow",
    level="warning",
    why="Recipe and shards come from there. Over such a link it takes long until training begins.",
    remedy="Use a wired connection, and stop other traffic. If others wait as well, tell the run's maintainer.",
)
SITE_FAILS = Fault(
    name="site-answers-error",
    why="Recipe and shards come from there.",
    remedy="Copy the address from the join page again. If it is right, tell the run's maintainer.",
)
OTHER_PAGE = Fault(
    name="page-instead-of-file",
    why="A network that asks its guests to log in first answers so, and so does a wrong address.",
    remedy="Open any web page in a browser and log in to the network; or copy the address from the join page again.",
)
CERTIFICATE_DATE = Fault(
    name="certificate-date",
    why="The connection is refused. With a right clock on this machine, the site has not renewed its certificate.",
    remedy="Set this machine's clock (`timedatectl set-ntp true`). If it is right, tell the run's maintainer.",
)
CERTIFICATE_NAME = Fault(
    name="certificate-of-another-site",
    why="The connection is refused, since another server may be answering in this one's name.",
    remedy="Use the name in the address that the join page shows; do not use a number in its place.",
)
CERTIFICATE_UNKNOWN = Fault(
    name="certificate-not-trusted",
    why="The connection is refused. A firewall or virus scanner that reads encrypted traffic shows such a certificate.",
    remedy="If that is so, set SSL_CERT_FILE to a file with its certificate; otherwise install `ca-certificates`.",
)
FAULTS = (
    NAME,
    BAD_ADDRESS,
    PROXY_DOWN,
    PROXY_REFUSES,
    SITE_REFUSES,
    SITE_SILENT,
    SITE_SLOW,
    SITE_FAILS,
    OTHER_PAGE,
    CERTIFICATE_DATE,
    CERTIFICATE_NAME,
    CERTIFICATE_UNKNOWN,
)

ANSWER_SECONDS = 4.0
"""Longest wait for a name, for a connection, and for each part of an answer."""
WHOLE_SECONDS = 8.0
"""Longest wait for a file that is needed whole."""
DATE_CODES, NAME_CODE = (9, 10), 62
"""OpenSSL's codes for certificates that are not yet or no longer valid, and for one of another host (x509_vfy.h)."""
REFUSALS = (401, 403, 407)


class Unfetched(Unusable):
    """A file could not be fetched; `finding` says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A file's beginning and what was measured meanwhile."""

    body: bytes
    complete: bool
    """Whether the body is the whole file."""
    seconds: float
    """From the first byte of the body to the last."""
    clock_ahead: float | None
    """Seconds by which this machine's clock is ahead of the server's; None if the server does not say its time. The
    server says whole seconds, so this is right to about half a second and half of the answer's time."""


def is_url(source: str) -> bool:
    """Whether a recipe or shards come from the web."""
    return source.startswith(("http://", "https://"))


def fetch(url: str, *, limit: int, seconds: float = ANSWER_SECONDS) -> Fetched:
    """The first `limit` bytes of a file, at most as many as come within `seconds`.

    Raises:
        Unfetched: If nothing comes.
    """
    proxy, variable = _check_way(url)
    began = time.time()
    try:
        # Beyond `seconds` for the body, the beginning of an answer may take as long as each part of it.
        with ask(url, seconds=2 * ANSWER_SECONDS + seconds, silence_seconds=ANSWER_SECONDS) as answer:
            answer.check()
            ahead = _clock_ahead(answer.headers, (began + time.time()) / 2)
            if "text/html" in answer.headers.get("Content-Type", ""):
                raise Unfetched(OTHER_PAGE.found(f"{url} is a web page, not a file of a run."))
            return _beginning(answer, limit, seconds, ahead)
    except Refusal as error:
        if proxy and error.status in REFUSALS:
            said = f"The proxy {_without_password(proxy)} answers {error}."
            raise Unfetched(PROXY_REFUSES.found(said, variable=variable)) from None
        raise Unfetched(SITE_FAILS.found(f"{url} answers {error}.")) from None
    except OSError as error:
        raise Unfetched(_finding_of(error, url, proxy, variable)) from None
    except ValueError as error:  # such as a letter that is not ASCII
        raise _bad_address(url, error) from None


def _beginning(answer: Answer, limit: int, seconds: float, clock_ahead: float | None) -> Fetched:
    """The first `limit` bytes of an answer, at most as many as come within `seconds`."""
    first, body, complete = time.monotonic(), bytearray(), False
    with suppress(OSError):  # the connection broke off: what has come is the beginning
        for piece in answer.pieces:
            body += piece
            if len(body) >= limit or time.monotonic() - first >= seconds:
                break
        else:
            complete = True
    took = time.monotonic() - first
    whole = bytes(body[:limit])
    complete = (complete and len(body) <= limit) or str(len(whole)) == answer.headers.get("Content-Length")
    return Fetched(body=whole, complete=complete, seconds=took, clock_ahead=clock_ahead)


def fetch_whole(url: str, *, limit: int) -> Fetched:
    """A file whole, or its first `limit` bytes.

    Raises:
        Unfetched: If nothing comes, or not all of it within `WHOLE_SECONDS`.
    """
    fetched = fetch(url, limit=limit, seconds=WHOLE_SECONDS)
    if fetched.complete or len(fetched.body) >= limit:
        return fetched
    if fetched.seconds < WHOLE_SECONDS:
        raise Unfetched(SITE_FAILS.found(f"{url} breaks the connection off after {len(fetched.body)} bytes."))
    raise Unfetched(SITE_SLOW.found(f"Of {url}, {len(fetched.body)} bytes have come within {WHOLE_SECONDS:g} s."))


def proxy_of(parts: SplitResult) -> tuple[str, str]:
    """The proxy through which an address is fetched, and the variable that says so; empty if there is none."""
    found = urllib.request.getproxies().get(parts.scheme, "")
    if not found or urllib.request.proxy_bypass(parts.netloc):
        return "", ""
    return found if "//" in found else f"http://{found}", f"{parts.scheme}_proxy"


def resolve(host: str, seconds: float = ANSWER_SECONDS) -> list[tuple]:
    """What `getaddrinfo` says of a name, within a time, which the system's own time-out may exceed by far.

    Raises:
        OSError: If the name is not known, or nobody answers in time.
    """
    found: list = []

    def ask() -> None:
        try:
            found.append(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise TimeoutError(f"the name {host} was not resolved within {seconds:g} s")
    if isinstance(found[0], Exception):
        raise OSError(f"the name {host} is not known: {getattr(found[0], 'strerror', None) or found[0]}")
    return found[0]


def _check_way(url: str) -> tuple[str, str]:
    """Whether the site, or the proxy in front of it, accepts a connection; what `proxy_of` says."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # computed here, and refused if it is none
    except ValueError as error:
        raise _bad_address(url, error) from None
    proxy, variable = proxy_of(parts)
    try:
        first = urlsplit(proxy) if proxy else parts
        _ = first.port
    except ValueError as error:
        said = f"The proxy {_without_password(proxy)} is no address: {error}."
        raise Unfetched(PROXY_DOWN.found(said, variable=variable)) from None
    _check_connection(first, variable, url)
    return proxy, variable


def _bad_address(url: str, error: Exception) -> Unfetched:
    return Unfetched(BAD_ADDRESS.found(f"{url} is no address: {error}."))


def _without_password(proxy: str) -> str:
    """A proxy's address without what is secret in it: volunteers show others what the doctor says.

    >>> _without_password("http://me:secret@proxy.example:3128")
    'http://proxy.example:3128'
    """
    scheme, _, place = proxy.partition("//")
    return f"{scheme}//{place.rpartition('@')[2]}"


def _check_connection(parts: SplitResult, variable: str, url: str) -> None:
    """Whether the site, or the proxy in front of it, accepts a connection."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        resolve(host)
    except OSError as error:
        text = f"{error}.".replace("the name", "The name", 1)
        raise Unfetched(PROXY_DOWN.found(text, variable=variable) if variable else NAME.found(text)) from None
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        said = error.strerror or str(error)
        if variable:
            finding = PROXY_DOWN.found(f"The proxy {host}:{port} does not answer: {said}.", variable=variable)
        elif isinstance(error, ConnectionRefusedError):
            finding = SITE_REFUSES.found(f"Nothing accepts connections at {host}:{port}, where {url} is.")
        else:
            finding = SITE_SILENT.found(f"{host}:{port} does not answer: {said}.")
        raise Unfetched(finding) from None


def _finding_of(error: Exception, url: str, proxy: str, variable: str) -> Finding:
    causes = list(_causes(error))
    for cause in causes:
        if not isinstance(cause, ssl.SSLCertVerificationError):
            continue
        said = f"The certificate of {url} is refused: {cause.verify_message}"
        if cause.verify_code in DATE_CODES:
            return CERTIFICATE_DATE.found(f"{said}.")
        if cause.verify_code == NAME_CODE:
            return CERTIFICATE_NAME.found(f"{said}")
        return CERTIFICATE_UNKNOWN.found(f"{said}{_issuer(url)}.")
    if isinstance(error, RefusedAddress):
        return OTHER_PAGE.found(f"{url} is not fetched: {error}.")
    kinds = {type(cause).__name__ for cause in causes}
    if proxy and "ProxyError" in kinds:
        said = f"The proxy {_without_password(proxy)} does not let the address pass: {error}."
        return PROXY_REFUSES.found(said, variable=variable)
    if "ReadTimeout" in kinds:
        return SITE_SILENT.found(f"{url} accepts the connection, but does not answer within {ANSWER_SECONDS:g} s.")
    return SITE_FAILS.found(f"{url} breaks the connection off: {error}.")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those from which it came, of the libraries below."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _issuer(url: str) -> str:
    """Who signed the certificate, as the end of a sentence; empty if that cannot be read."""
    from cryptography import x509

    parts = urlsplit(url)
    with suppress(OSError, ValueError):
        pem = ssl.get_server_certificate((parts.hostname, parts.port or 443), timeout=ANSWER_SECONDS)
        return f"; it is signed by {x509.load_pem_x509_certificate(pem.encode()).issuer.rfc4514_string()!r}"
    return ""


def _clock_ahead(headers, now: float) -> float | None:
    """Seconds by which `now` is ahead of the answer's date; an answer from a cache says its age as well."""
    with suppress(KeyError, TypeError, ValueError):
        said = email.utils.parsedate_to_datetime(headers["Date"]).timestamp() + 0.5
        return now - said - float(headers.get("Age", 0))
    return None
