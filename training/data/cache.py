"""The cache of fetched shards: it never takes more disk space than the volunteer allows."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

CACHE_GB = 1.0
"""Disk space for fetched shards, unless the volunteer gives another."""
IN_USE_SECONDS = 60.0
"""A shard that was used within this time may be open in another peer on this machine, so it stays."""


def default_cache() -> Path:
    """Where fetched files are kept: `training-together` in `XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-together"


def mark_used(shard: Path) -> None:
    """Notes that a shard is used now; `make_room` deletes those first that were not used for longest."""
    with suppress(OSError):  # the cache may be on a file system that somebody else owns
        os.utime(shard)


def make_room(folder: Path, *, needed_bytes: int, limit_bytes: int) -> None:
    """Deletes the shards used least recently, until another one fits.

    Shards in use stay, so the limit can be exceeded by these and by the one that is needed.

    Args:
        folder: Holds a folder for each set of shards; codecs and tokenizers in it are never deleted.
        needed_bytes: Size of the shard that is about to be fetched.
        limit_bytes: For all shards together.
    """
    shards = []
    for path in folder.glob("*/*.parquet"):
        with suppress(OSError):  # another peer on this machine may have deleted it
            facts = path.stat()
            shards.append((facts.st_mtime, facts.st_size, path))
    taken = sum(size for _, size, _ in shards)
    for used_at, size, path in sorted(shards):
        if taken + needed_bytes <= limit_bytes or time.time() - used_at < IN_USE_SECONDS:
            return
        path.unlink(missing_ok=True)
        taken -= size
