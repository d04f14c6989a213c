"""The blocks of a set, each of which is fetched, checked, kept and decoded as a whole.

A block is a row group of a shard. Every answer of a server is compared with a digest, and with the largest sizes of a
block, before memory is allocated for it. Readers skip a block that fails.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.data.store.cache import Cache
from training.data.store.layouts import Rows, TextRows, layout_of
from training.data.store.pages import check_pages
from training.data.store.shards import (
    DIGEST_DIGITS,
    DIGESTS_KEY,
    LARGEST_FOOTER_BYTES,
    Manifest,
    ShardIndex,
    TextManifest,
)
from training.errors import BadInput, reason_of
from training.storage.remote import MissingError, Source

LARGEST_BLOCK_BYTES = 1 << 26
"""Largest row group, compressed."""
MOST_BLOCKS = 1 << 22
"""Most row groups of a split: a billion samples."""
BLOCK_SUFFIX = ".block"
FOOTERS_IN_MEMORY = 64
SHARD_LOCKS = 64
"""Number of locks that shards share; with many, threads that read different shards seldom wait for each other."""


# Arrow's own allocator keeps 20 MB more.
pa.set_memory_pool(pa.system_memory_pool())


class DamagedError(Exception):
    """A block or footer does not match the set's manifest, or is not a part of a shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """End of a shard, with the sizes, places and digests of its row groups."""

    metadata: pq.FileMetaData
    digests: tuple[str, ...]
    """First hex digits of each row group's SHA-256."""

    @classmethod
    def parse(cls, content: bytes, wanted: pa.Schema) -> Footer:
        """Parses the footer from a shard's last bytes; `wanted` are the columns that the shard must have.

        Raises:
            DamagedError: If the bytes are not the end of a shard.
        """
        try:
            limits = {"thrift_string_size_limit": LARGEST_FOOTER_BYTES, "thrift_container_size_limit": 1 << 16}
            with pq.ParquetFile(pa.BufferReader(content), **limits) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedError(f"its end is not that of a shard: {error}") from None
        if not schema.equals(wanted):
            raise DamagedError(f"it has the columns {_told(schema)}; a shard has {_told(wanted)}")
        for columns in {metadata.row_group(group).num_columns for group in range(metadata.num_row_groups)}:
            if columns != metadata.num_columns:  # Arrow ends the program where it looks for a column beyond these
                raise DamagedError(f"it has a row group with {columns} columns; a shard has {metadata.num_columns}")
        digests = (metadata.metadata or {}).get(DIGESTS_KEY, b"").decode("ascii", "replace").split()
        return cls(metadata=metadata, digests=tuple(digests))

    def extent(self, group: int) -> tuple[int, int]:
        """Returns the offsets in the file of a row group's first byte, and of the byte after its last."""
        chunks = self.metadata.row_group(group)
        extents = [_extent(chunks.column(at)) for at in range(chunks.num_columns)]
        return min(start for start, _ in extents), max(end for _, end in extents)


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _extent(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    start = column.dictionary_page_offset or column.data_page_offset
    return start, start + column.total_compressed_size


class Blocks:
    """Reads the blocks of a split's shards.

    Args:
        manifest: The set's manifest.
        shards: Names of the split's shards.
        source: Folder or server of the shards.
        cache: Cache for fetched parts; None: nothing is kept.

    Raises:
        BadInput: If there are more row groups than any set has.
    """

    def __init__(self, manifest: Manifest | TextManifest, shards: Sequence[str], source: Source, cache: Cache | None):
        self._layout = layout_of(manifest)
        self._manifest, self._names, self._source, self._cache = manifest, tuple(shards), source, cache
        self._footers: OrderedDict[str, Footer] = OrderedDict()
        self._trimming, self._locks = threading.Lock(), [threading.Lock() for _ in range(SHARD_LOCKS)]
        index = [manifest.index[name] for name in self._names]
        if sum(-(-one.rows // one.group_rows) for one in index) > MOST_BLOCKS:
            raise BadInput(
                f"The shards claim more than {MOST_BLOCKS} row groups.", cure="Fetch or prepare the shards again."
            )
        counts = [_group_rows(one) for one in index]
        self.rows = np.array([rows for groups in counts for rows in groups], dtype=np.int64)
        """Samples of each block."""
        self._firsts = np.cumsum([0, *(len(groups) for groups in counts)])

    def locate(self, block: int) -> tuple[str, int]:
        """Shard of a block, and the block's number in that shard."""
        shard = int(np.searchsorted(self._firsts, block, side="right")) - 1
        return self._names[shard], block - int(self._firsts[shard])

    def name(self, block: int) -> str:
        """Name of a block in messages."""
        shard, group = self.locate(block)
        return f"row group {group} of {shard}"

    def read(self, block: int, *, is_offline: bool = False) -> Rows | TextRows:
        """Reads the samples of a block.

        Args:
            block: Number of the block.
            is_offline: Whether only the cache is read.

        Raises:
            DamagedError: If the block is damaged.
            MissingError: If the source, or when offline the cache, does not have the block.
            UnreachableError: If the source gives nothing now.
        """
        shard, group = self.locate(block)
        rows, file = int(self.rows[block]), self._manifest.files[shard]
        footer = self._footer(shard, is_offline)
        part = _part_of(shard, group, footer, last=file.bytes - self._manifest.index[shard].footer_bytes)
        return self._decode(self._get(part, is_offline), part.start, footer, group, rows)

    def cached(self) -> list[int]:
        """Numbers of the blocks that are in the cache."""
        numbers = {name: int(first) for name, first in zip(self._names, self._firsts, strict=False)}
        found = []
        for name in self._cache.names() if self._cache is not None else ():
            stem, _, group = name.removesuffix(BLOCK_SUFFIX).rpartition("-")
            if name.endswith(BLOCK_SUFFIX) and f"{stem}.parquet" in numbers:
                found.append(numbers[f"{stem}.parquet"] + int(group))
        return sorted(found)

    def _get(self, part: _Part, is_offline: bool) -> bytes:
        """Gets a part of a file from the cache or the source, and compares it with its digest.

        If the part is damaged in transit, it is fetched once more.
        """
        if (kept := self._kept(part)) is not None:
            return kept
        if is_offline:
            raise MissingError("it is not in the cache")
        return self._fetch(part)

    def _kept(self, part: _Part) -> bytes | None:
        kept = self._cache.read(part.name) if self._cache is not None else None
        if kept is not None and not part.is_whole(kept):
            self._cache.drop(part.name)
            return None
        return kept

    def _fetch(self, part: _Part) -> bytes:
        if part.length > LARGEST_BLOCK_BYTES:
            raise DamagedError(f"it claims {part.length} bytes; {LARGEST_BLOCK_BYTES} are the most")
        for _ in range(2):
            content = self._source.read(part.shard, start=part.start, length=part.length)
            if part.is_whole(content):
                if self._cache is not None:
                    self._cache.keep(part.name, content)
                return content
        raise DamagedError(f"it has SHA-256 {hashlib.sha256(content).hexdigest()[:12]}..., not {part.digest[:12]}...")

    def _footer(self, shard: str, is_offline: bool = False) -> Footer:
        # Two threads that need the footer of one shard fetch it once.
        with self._locks[hash(shard) % len(self._locks)]:
            footer = self._footers.pop(shard, None)
            if footer is None:
                footer = Footer.parse(self._get(self._footer_part(shard), is_offline), self._layout.schema)
                _check_footer(footer, self._manifest.index[shard])
            self._footers[shard] = footer  # now the last one of the dictionary
        with self._trimming:
            while len(self._footers) > FOOTERS_IN_MEMORY:
                self._footers.popitem(last=False)
        return footer

    def _footer_part(self, shard: str) -> _Part:
        size, index = self._manifest.files[shard].bytes, self._manifest.index[shard]
        start, name = size - index.footer_bytes, f"{PurePath(shard).stem}.footer"
        return _Part(name=name, shard=shard, start=start, length=index.footer_bytes, digest=index.footer_sha256)

    def _decode(self, content: bytes, start: int, footer: Footer, group: int, rows: int) -> Rows | TextRows:
        """Decodes the samples of a row group from bytes that begin at `start` of its file."""
        layout = self._layout
        try:
            columns = footer.metadata.row_group(group)
            chunks = {column.path_in_schema: column for column in map(columns.column, range(columns.num_columns))}
            for path, (values, largest_bytes) in layout.room(rows).items():
                first, last = _extent(chunks[path])
                pages = memoryview(content)[first - start : last - start]
                check_pages(pages, values=values, largest_bytes=largest_bytes)
            view, settings = pa.PythonFile(_View(content, start), mode="r"), {"read_dictionary": layout.shared}
            with pq.ParquetFile(view, metadata=footer.metadata, pre_buffer=False, **settings) as file:
                table = file.read_row_group(group, columns=list(layout.columns), use_threads=False)
            return layout.rows_of(table, rows)
        except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
            raise DamagedError(reason_of(error)) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Footer or row group of a shard."""

    name: str
    """Name in the cache."""
    shard: str
    start: int
    length: int
    digest: str
    """First hex digits of the part's SHA-256."""

    def is_whole(self, content: bytes) -> bool:
        """Returns whether `content` is this part, by length and digest."""
        return len(content) == self.length and hashlib.sha256(content).hexdigest().startswith(self.digest)


class _View(io.RawIOBase):
    """File object for Arrow that has only a part of the file's bytes."""

    def __init__(self, content: bytes, start: int):
        self._content, self._start, self._at = memoryview(content), start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._start + len(self._content)}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        first = self._at - self._start
        if first < 0:
            raise ValueError("it is read outside of what was fetched")
        found = bytes(self._content[first : len(self._content) if size < 0 else first + size])
        self._at += len(found)
        return found


def _group_rows(index: ShardIndex) -> list[int]:
    whole, rest = divmod(index.rows, index.group_rows)
    return [index.group_rows] * whole + [rest] * (rest > 0)


def _check_footer(footer: Footer, index: ShardIndex) -> None:
    """Raises DamagedError if a footer says something else than the index."""
    groups = _group_rows(index)
    found = [footer.metadata.row_group(at).num_rows for at in range(footer.metadata.num_row_groups)]
    if found != groups or len(footer.digests) != len(groups) or any(len(one) < DIGEST_DIGITS for one in footer.digests):
        raise DamagedError("its end does not describe the row groups that the manifest names")


def _part_of(shard: str, group: int, footer: Footer, *, last: int) -> _Part:
    start, end = footer.extent(group)
    if not 0 < start < end <= last:
        raise DamagedError(f"its row group {group} lies outside of the file")
    name = f"{PurePath(shard).stem}-{group}{BLOCK_SUFFIX}"
    return _Part(name=name, shard=shard, start=start, length=end - start, digest=footer.digests[group])
