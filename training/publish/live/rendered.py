"""Documents as the live API sends them: each is computed once for all readers who ask at about the same time."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass

from cachetools import TLRUCache
from starlette.requests import Request
from starlette.responses import Response

KEPT_SECONDS = 0.5
"""Shortest time between two computations of a document without news, however many dashboards ask."""
KEPT_TIMES = 20
"""A document is kept this many times as long as its computation took, so that a slow document takes 5 % of a core."""
MOST_KEPT_BYTES = 64 << 20
"""Largest size of all kept documents together; a document that does not fit is computed for each request."""


def render(document: dict) -> bytes:
    """Renders a document as JSON; raises ValueError for NaN, which browsers refuse."""
    return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


COMPRESSED_BYTES = 1024
"""Least size of a document that is compressed, once for all readers. Starlette's middleware compresses for each reader,
with which 95 % of 200 readers waited four times as long at a new epoch."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The bytes of a document."""

    content: bytes
    compressed: bytes
    """Bytes compressed with gzip, which all browsers read; empty for short documents."""
    etag: str
    version: int
    until: float
    """The document is current until this time, even if there is news."""


class RenderedDocuments:
    """The newest documents by key, for the tasks of one event loop.

    Args:
        clock: Seconds since any time; a test passes its own.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._kept = TLRUCache(
            MOST_KEPT_BYTES,
            ttu=lambda key, rendered, now: max(now + KEPT_SECONDS, rendered.until),
            timer=clock,
            getsizeof=lambda rendered: len(rendered.content) + len(rendered.compressed),
        )
        self._computing: dict[Hashable, asyncio.Task[Rendered]] = {}

    async def current(self, key: Hashable, compute: Callable[[], dict], *, version: int = 0) -> Rendered:
        """Returns the document of a key; if it is too old, one thread computes it for all who wait for it.

        Args:
            key: Name of the document and its part.
            compute: Makes the document.
            version: Number that changes with news; then a document that is quick to compute is computed at once.
        """
        kept = self._kept.get(key)
        if kept is not None and (kept.version == version or self._clock() < kept.until):
            return kept
        if (task := self._computing.get(key)) is None:
            task = self._computing[key] = asyncio.create_task(self._compute(key, compute, version))
            task.add_done_callback(lambda _: self._computing.pop(key))
        # A reader that goes away must not stop the computing, for which others may wait.
        return await asyncio.shield(task)

    async def _compute(self, key: Hashable, compute: Callable[[], dict], version: int) -> Rendered:
        began = self._clock()
        content, compressed = await asyncio.to_thread(_rendered, compute)
        now = self._clock()
        etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        rendered = Rendered(content, compressed, etag, version, until=now + KEPT_TIMES * (now - began))
        with suppress(ValueError):  # it is larger than all that is kept
            self._kept[key] = rendered
        return rendered


def _rendered(compute: Callable[[], dict]) -> tuple[bytes, bytes]:
    content = render(compute())
    return content, gzip.compress(content, compresslevel=5, mtime=0) if len(content) >= COMPRESSED_BYTES else b""


def answer(request: Request, rendered: Rendered) -> Response:
    """Makes the answer to a request for a document: 304 without content if the browser has the document already."""
    headers = {"etag": rendered.etag, "vary": "accept-encoding"}
    if rendered.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = rendered.content
    if rendered.compressed and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["content-encoding"] = rendered.compressed, "gzip"
    return Response(content, media_type="application/json", headers=headers)
