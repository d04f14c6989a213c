"""Checks the sizes that the pages of a Parquet column claim, before memory is allocated for them.

A page's header says how long the page is once decompressed, and Arrow allocates that much: 2 kB from a server could
take all memory. The headers are read here first (Thrift's compact protocol; parquet.thrift, `PageHeader`) and compared
with the largest sizes of a shard's block. Damaged or hostile pages raise ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator

PAGE_ENCODINGS = (0, 2, 8)
"""PLAIN, PLAIN_DICTIONARY and RLE_DICTIONARY, the encodings of shards. Values encoded as differences can share bytes,
so the size of their page does not bound their number."""
DEEPEST = 3
"""Deepest nesting of structures: a page's header holds a header of its kind, which holds statistics."""
_INTEGERS, _BINARY, _STRUCT = (3, 4, 5, 6), 8, 12
_UNCOMPRESSED, _COMPRESSED, _DATA, _DICTIONARY, _DATA_2 = 2, 3, 5, 7, 8


def check_pages(content: memoryview, *, values: int, largest_bytes: int) -> None:
    """Checks all pages of a column chunk.

    Args:
        content: The chunk's bytes.
        values: Values that the column has in this row group.
        largest_bytes: Most bytes that the chunk's pages may take together once decompressed.

    Raises:
        ValueError: If the pages claim more values or bytes, or are malformed.
    """
    found = inflated = 0
    for header in _headers(content):
        inflated += header[_UNCOMPRESSED]
        if header[_UNCOMPRESSED] < 0 or inflated > largest_bytes:
            raise ValueError(f"its pages claim {inflated} bytes; there is room for {largest_bytes}")
        kinds = [kind for kind in (_DATA, _DATA_2, _DICTIONARY) if isinstance(header.get(kind), dict)]
        if len(kinds) != 1:  # if there are several, Arrow reads the header that the page's type names
            raise ValueError("a page is neither data nor a dictionary")
        (kind,) = kinds
        count, encoding = header[kind].get(1), header[kind].get(4 if kind == _DATA_2 else 2)
        if encoding not in PAGE_ENCODINGS or not isinstance(count, int) or count < 0:
            raise ValueError("a page has another encoding than those of shards")
        if kind != _DICTIONARY:
            found += count
        elif 4 * count > header[_UNCOMPRESSED]:  # a number takes four bytes, and so does the length of a text
            raise ValueError(f"a dictionary claims {count} values in {header[_UNCOMPRESSED]} bytes")
    if found != values:
        raise ValueError(f"its pages have {found} values instead of {values}")


def _headers(content: memoryview) -> Iterator[dict]:
    at = 0
    while at < len(content):
        reader = _Thrift(content, at)
        header = reader.struct(DEEPEST)
        sizes = header.get(_UNCOMPRESSED), header.get(_COMPRESSED)
        if not all(isinstance(size, int) for size in sizes) or not 0 <= sizes[1] <= len(content) - reader.at:
            raise ValueError("a page is longer than its column")
        yield header
        at = reader.at + sizes[1]


class _Thrift:
    """Reads structures of integers, flags, bytes and structures; page headers have nothing else."""

    def __init__(self, content: memoryview, at: int):
        self._content, self.at = content, at

    def struct(self, depth: int) -> dict:
        """Reads a structure as a mapping from field numbers to values; values of bytes are skipped."""
        if depth == 0:
            raise ValueError("a page's header is nested too deeply")
        fields: dict = {}
        number = 0
        while (first := self._byte()) != 0:
            number = number + (first >> 4) if first >> 4 else self._signed()
            # Arrow skips a field whose type is not the expected one, and keeps 16 bits of a number: of two fields with
            # the same number it could take the one, and `check_pages` the other.
            if number in fields or not 0 < number < 1 << 15:
                raise ValueError(f"a page's header names the field {number}{' again' if number in fields else ''}")
            fields[number] = self._value(first & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> object:
        if kind in (1, 2):
            return kind == 1
        if kind in _INTEGERS:
            return self._byte() if kind == 3 else self._signed()
        if kind == _BINARY:
            length = self._number()
            self.at += length
            return None
        if kind == _STRUCT:
            return self.struct(depth - 1)
        raise ValueError("a page's header holds what none has")

    def _byte(self) -> int:
        if not self.at < len(self._content):
            raise ValueError("a page's header has no end")
        self.at += 1
        return self._content[self.at - 1]

    def _number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in a page's header has no end")

    def _signed(self) -> int:
        value = self._number()
        return value >> 1 ^ -(value & 1)
