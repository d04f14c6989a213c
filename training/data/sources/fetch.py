"""Fetches pictures from the addresses of a list: many at a time, few from one host, and none from inside the network.

A list of addresses comes from strangers. A connection is made only to public addresses of the Internet, checked when it
is made, so that no name and no redirection leads to this machine or its neighbours. A host that says in `X-Robots-Tag`
that its pictures are not for training is obeyed (`noai`, `noimageai`, `noindex`, `noimageindex`, as for img2dataset).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit, urlunsplit

from training.storage.remote import (
    TRY_AGAIN_CODES,
    Refusal,
    RefusedAddress,
    allowed_addresses,
    ask,
    is_public,
    pause_seconds,
)

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
            except Refusal as error:
                if error.status < 500 and error.status not in TRY_AGAIN_CODES:
                    raise LeftOutError("not found at its address") from None
            except RefusedAddress:
                raise LeftOutError("private address") from None
            except ValueError:  # of this address, or of one to which it leads
                raise LeftOutError("no web address") from None
            except OSError:
                pass  # it is asked again
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
                first, *_ = allowed_addresses(*self._answerer, self._is_allowed)
                socket.create_connection((first, self._answerer[1]), SILENT_SECONDS).close()
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
        limits = {"seconds": PICTURE_SECONDS, "silence_seconds": SILENT_SECONDS}
        with ask(url, headers={"User-Agent": USER_AGENT}, is_allowed=self._is_allowed, **limits) as answer:
            answer.check()
            parts = urlsplit(answer.url)
            self._answerer = (parts.hostname, parts.port or {"https": 443}.get(parts.scheme, 80))
            if is_opted_out(answer.headers.get_list("X-Robots-Tag")):
                raise LeftOutError("opted out of training")
            content = bytearray()
            for piece in answer.pieces:
                content += piece
                if len(content) > LARGEST_PICTURE_BYTES:
                    raise LeftOutError("huge file")
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


class _Host:
    """A host that is asked."""

    def __init__(self):
        self.turns = threading.Semaphore(CONNECTIONS_PER_HOST)
        self.asking = 0
        """Threads that have a turn, or wait for one."""
