"""The cache of fetched parts of shards: it never takes more disk space than the volunteer allows."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from training.storage.whole import whole_file

CACHE_GB = 1.0
"""Disk space for fetched shards, unless the volunteer gives another."""
SUFFIXES = (".parquet", ".block", ".footer")
"""Whole shards, row groups and footers; nothing else in the cache is ever deleted."""
IN_USE_SECONDS = 60.0
"""A whole shard that was used within this time may be open in another program on this machine, so it stays."""
LOOKS_PER_LIMIT = 32
"""The cache's size is measured again whenever this fraction of its limit was written, since other peers may fill it."""


def default_cache() -> Path:
    """Folder of fetched files: `training-together` in `XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-together"


def mark_used(path: Path) -> None:
    """Notes that a file is used now; `make_room` deletes those first that were not used for longest."""
    with suppress(OSError):  # another user may own the file system of the cache
        os.utime(path)


def make_room(folder: Path, *, needed_bytes: int, limit_bytes: int) -> int:
    """Deletes the files used least recently until a new file fits. Returns the free bytes of the limit.

    Whole shards in use stay, so these and the new file can exceed the limit.

    Args:
        folder: Holds a folder for each set of shards; codecs and tokenizers in it are never deleted.
        needed_bytes: Size of the file that is about to be kept.
        limit_bytes: Disk space of all files together.
    """
    files, now = [], time.time()
    for path in folder.glob("*/*"):
        if path.suffix in SUFFIXES:
            with suppress(OSError):  # another peer on this machine may have deleted it
                facts = path.stat()
                files.append((facts.st_mtime, facts.st_size, path))
    taken = sum(size for _, size, _ in files)
    for used_at, size, path in sorted(files):
        if taken + needed_bytes <= limit_bytes:
            break
        if path.suffix != ".parquet" or now - used_at >= IN_USE_SECONDS:
            path.unlink(missing_ok=True)
            taken -= size
    return limit_bytes - taken


class Cache:
    """Parts of one set of shards, which a peer reads at once and can fetch again at any time.

    Args:
        folder: Folder of this set; the limit applies to all folders beside it.
        limit_bytes: Disk space of all sets together.
    """

    def __init__(self, folder: Path, limit_bytes: int):
        self._folder, self._limit_bytes = folder, limit_bytes
        self._room, self._lock = 0, threading.Lock()

    def read(self, name: str) -> bytes | None:
        """Reads a part; None if the cache does not have it."""
        path = self._folder / name
        try:
            content = path.read_bytes()
        except OSError:
            return None
        mark_used(path)
        return content

    def names(self) -> set[str]:
        """Names of the parts in the cache."""
        try:
            return {name for name in os.listdir(self._folder) if name.endswith(SUFFIXES)}
        except OSError:
            return set()

    def keep(self, name: str, content: bytes) -> None:
        """Keeps a part, unless it is larger than the limit or the disk is full: the peer then goes on without it."""
        with self._lock, suppress(OSError):
            if not self._has_room(len(content)):
                return
            # Not flushed to the disk: readers compare the content with its digest.
            with whole_file(self._folder / name, flushed=False) as draft:
                draft.write_bytes(content)
            self._room -= len(content)

    def drop(self, name: str) -> None:
        """Deletes a damaged part."""
        with suppress(OSError):
            (self._folder / name).unlink(missing_ok=True)

    def _has_room(self, size: int) -> bool:
        if size > self._limit_bytes:
            return False
        if size > self._room:
            most = max(self._limit_bytes // LOOKS_PER_LIMIT, size)
            left = make_room(self._folder.parent, needed_bytes=most, limit_bytes=self._limit_bytes)
            self._room = min(left, most)
        return size <= self._room
