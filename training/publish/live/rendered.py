"""Documents as the live API sends them: each is computed once for all readers, and compressed once."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

KEPT_SECONDS = 0.5
"""A document is computed at most once in this time, however many dashboards ask."""
KEPT_TIMES = 20
"""And it is kept for so many times the time that computing it took, so that large ones take at most 5 % of a core."""
MOST_KEPT = 64
"""Documents that are kept; of those with parameters there can be many."""
MOST_KEPT_BYTES = 64 << 20
"""Of all of them together; the newest is kept, however large it is."""
COMPRESSED_BYTES = 1024
"""Documents of at least so many bytes are compressed."""


def render(document: dict) -> bytes:
    """JSON as it is served and written; never NaN, which browsers refuse."""
    return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Rendered:
    """The bytes of a document."""

    content: bytes
    etag: str
    compressed: bytes | None
    """By gzip, which all browsers read; None for short ones."""

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return len(self.content) + len(self.compressed or b"")

    @classmethod
    def of(cls, document: dict) -> Rendered:
        """Renders a document."""
        content = render(document)
        return cls(
            content=content,
            etag=f'"{hashlib.sha256(content).hexdigest()[:20]}"',
            compressed=gzip.compress(content, compresslevel=5, mtime=0) if len(content) >= COMPRESSED_BYTES else None,
        )


@dataclass(frozen=True)
class _Kept:
    rendered: Rendered
    version: int
    until: float
    """Until then it is good, unless there is news."""
    until_anyway: float
    """Until then it is good although there may be news."""


class RenderedDocuments:
    """Rendered documents by their key."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._computing: dict[Hashable, threading.Lock] = {}
        self._guard = threading.Lock()
        self._flying: dict[Hashable, asyncio.Task[Rendered]] = {}

    async def current(self, key: Hashable, compute: Callable[[], dict], *, version: int = 0) -> Rendered:
        """As `get`, from the server's event loop: it computes in one thread for all who ask meanwhile, and in none if
        the document is fresh, so that hundreds of readers do not wait for each other's threads."""
        if (kept := self._fresh(key, version)) is not None:
            return kept
        if (task := self._flying.get(key)) is None:
            task = asyncio.create_task(asyncio.to_thread(self.get, key, compute, version=version))
            self._flying[key] = task
            task.add_done_callback(lambda _: self._flying.pop(key, None))
        return await asyncio.shield(task)

    def get(self, key: Hashable, compute: Callable[[], dict], *, version: int = 0) -> Rendered:
        """The document of a key, computed anew if it is too old.

        While one thread computes it, others wait for it, but those who ask for other documents do not.

        Args:
            key: Of the document.
            compute: Makes it.
            version: Changes when there is news: then a document that is quickly computed is computed at once.
        """
        if (kept := self._fresh(key, version)) is not None:
            return kept
        with self._guard:
            computing = self._computing.setdefault(key, threading.Lock())
        with computing:
            if (kept := self._fresh(key, version)) is not None:
                return kept
            try:
                began = time.monotonic()
                rendered = Rendered.of(compute())
                now = time.monotonic()
                anyway = now + KEPT_TIMES * (now - began)
                self._keep(key, _Kept(rendered, version, max(now + KEPT_SECONDS, anyway), anyway))
                return rendered
            finally:
                with self._guard:
                    self._computing.pop(key, None)

    def _keep(self, key: Hashable, document: _Kept) -> None:
        with self._guard:
            self._kept[key] = document
            self._kept.move_to_end(key)
            taken = sum(kept.rendered.bytes for kept in self._kept.values())
            while len(self._kept) > MOST_KEPT or (taken > MOST_KEPT_BYTES and len(self._kept) > 1):
                taken -= self._kept.popitem(last=False)[1].rendered.bytes

    def _fresh(self, key: Hashable, version: int) -> Rendered | None:
        with self._guard:
            kept = self._kept.get(key)
        if kept is None:
            return None
        until = kept.until if kept.version == version else kept.until_anyway
        return kept.rendered if time.monotonic() < until else None


def answer(request: Request, rendered: Rendered) -> Response:
    """The answer to a request for a document: nothing but 304 to a browser that has it already."""
    headers = {"etag": rendered.etag, "vary": "accept-encoding"}
    if rendered.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = rendered.content
    if rendered.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["content-encoding"] = rendered.compressed, "gzip"
    return Response(content, media_type="application/json", headers=headers)
