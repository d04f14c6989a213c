"""What a site may do to a program that asks it: where it may send the program, how much it may send, and how slowly.

No redirect leads from the Internet into a private network, and none gives up TLS.
"""

from __future__ import annotations

import ipaddress
import socket
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from http.client import HTTPResponse

_PIECE_BYTES = 1 << 16


class RefusedRedirect(OSError):
    """A site has sent us to an address that we do not ask."""


class UnreadRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without what stands behind them: urllib would read all of it, which may have no end."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        fp.close()
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class CheckedRedirects(UnreadRedirects):
    """Follows redirects, but for those that `check_redirect` refuses."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        check_redirect(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_checked(address: str | urllib.request.Request, seconds: float) -> HTTPResponse:
    """Opens an address that somebody else has named, or whose site somebody else runs; follows redirects as above.

    Args:
        address: Of http or https.
        seconds: Longest silence of the site.

    Raises:
        OSError, ValueError, HTTPException: If it does not answer, or leads elsewhere (`RefusedRedirect`).
    """
    return urllib.request.build_opener(CheckedRedirects()).open(address, timeout=seconds)


def check_redirect(source: str, target: str) -> None:
    """Refuses a redirect from a site on the Internet into the volunteer's own network, and one that gives up TLS.

    A site could otherwise make volunteers send requests to their routers and other machines behind their firewalls.
    The target's name is looked up here and again for the connection, so a name server may still lie the second time.

    Raises:
        RefusedRedirect: If it is such a redirect.
    """
    before, after = urllib.parse.urlsplit(source), urllib.parse.urlsplit(target)
    if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
        raise RefusedRedirect(f"it is redirected to {target}, which is less safe than the address that was given")
    if _is_public(before) and not _is_public(after):
        raise RefusedRedirect(f"it is redirected to {target}, an address within a private network")


def read_short(response: HTTPResponse, *, most_bytes: int, seconds: float) -> bytes:
    """A short answer, whole.

    Raises:
        ValueError: If it is longer, takes longer, or the connection broke off.
    """
    content, deadline = b"", time.monotonic() + seconds
    # In pieces: a server that sends a byte now and then would otherwise be waited for without end.
    while piece := response.read1(_PIECE_BYTES):
        content += piece
        if len(content) > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes")
        if time.monotonic() > deadline:
            raise ValueError(f"it has not arrived within {seconds:.0f} s")
    # Bytes that the server has announced but not sent: `read1` raises no error if the connection ends early.
    if response.length:
        raise ValueError("the connection broke off")
    return content


def _is_public(address: urllib.parse.SplitResult) -> bool:
    """Whether all addresses of a host are on the Internet; a host that has none is not."""
    found = []
    with suppress(OSError, ValueError):
        found = socket.getaddrinfo(address.hostname, address.port or 0, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(entry[4][0].partition("%")[0]) for entry in found]
    return bool(addresses) and all((getattr(ip, "ipv4_mapped", None) or ip).is_global for ip in addresses)
