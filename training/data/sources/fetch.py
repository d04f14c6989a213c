"""Fetches pictures from the addresses of a list: many at a time, few from one host, and none from inside the network.

A list of addresses comes from strangers. We connect only to public addresses of the Internet, and check each address
when we connect, so that no name and no redirection leads to this machine or its neighbours. If a host says in
`X-Robots-Tag` that its pictures are not for training, we obey (`noai`, `noimageai`, `noindex`, `noimageindex`, as
img2dataset does).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit, urlunsplit

from training.storage.remote import (
    TRY_AGAIN_CODES,
    Refusal,
    RefusedAddress,
    ask,
    is_public,
    pause_seconds,
)

CONNECTIONS, CONNECTIONS_PER_HOST, PLACES = 64, 4, 4096
FETCH_TRIES, SILENT_SECONDS, PICTURE_SECONDS = 3, 10.0, 30.0
"""Tries for a picture, the longest silence of its host, and the longest time of an answer."""
LARGEST_PICTURE_BYTES = 1 << 25
OPTED_OUT = ("noai", "noimageai", "noindex", "noimageindex")
USER_AGENT = "training-transformers-together (obeys X-Robots-Tag: noai)"
PLAIN_SIGNS = "%/:=&?~+!$,;'@()*[]"
"""Signs that are not quoted in an address. Addresses in lists also have spaces and letters of all scripts, as browsers
accept them."""


class LeftOutError(Exception):
    """A picture is left out; the text of the error is the reason."""


class Fetcher:
    """Fetches pictures, from as many threads as ask.

    Args:
        is_allowed: Returns whether a connection to an IP address may be made; None: only to public ones.
    """

    def __init__(self, is_allowed: Callable[[str], bool] | None = None):
        self._is_allowed = is_allowed or is_public
        # A fixed number: a list may name millions of hosts. Two hosts that share a place only wait for each other.
        self._turns = [threading.Semaphore(CONNECTIONS_PER_HOST) for _ in range(PLACES)]

    def fetch(self, url: str) -> bytes:
        """Fetches a picture's bytes.

        Raises:
            LeftOutError: If the host does not send it, or it is too large, or not for training.
        """
        for failures in range(1, FETCH_TRIES + 1):
            try:
                parts = urlsplit(url)
                path, query = (quote(part, safe=PLAIN_SIGNS) for part in (parts.path, parts.query))
                with self._turns[hash(parts.hostname) % PLACES]:
                    return self._read(urlunsplit(parts._replace(path=path, query=query)))
            except Refusal as error:
                if error.status < 500 and error.status not in TRY_AGAIN_CODES:
                    raise LeftOutError("not found at its address") from None
            except RefusedAddress:
                raise LeftOutError("private address") from None
            except ValueError:  # raised for this address, or for one to which it redirects
                raise LeftOutError("no web address") from None
            except OSError:
                pass  # we ask again
            if failures < FETCH_TRIES:
                time.sleep(pause_seconds(failures))
        raise LeftOutError("host does not answer")

    def _read(self, url: str) -> bytes:
        limits = {"seconds": PICTURE_SECONDS, "silence_seconds": SILENT_SECONDS}
        with ask(url, headers={"User-Agent": USER_AGENT}, is_allowed=self._is_allowed, **limits) as answer:
            answer.check()
            if is_opted_out(answer.headers.get_list("X-Robots-Tag")):
                raise LeftOutError("opted out of training")
            content = bytearray()
            for piece in answer.pieces:
                content += piece
                if len(content) > LARGEST_PICTURE_BYTES:
                    raise LeftOutError("huge file")
            return bytes(content)


def is_opted_out(tags: list[str]) -> bool:
    """Returns whether values of `X-Robots-Tag` forbid training; `noai` for a named agent counts for that agent alone.

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
