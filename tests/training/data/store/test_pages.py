"""What a page claims is believed within bounds only; headers are encoded here by hand, as parquet.thrift says."""

import io
import struct
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.store.pages import check_pages


def varint(number):
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def integer(number):
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def struct_of(*fields):
    """Fields are (number, type, bytes), in rising order."""
    found, last = b"", 0
    for number, kind, content in fields:
        found += bytes([(number - last) << 4 | kind]) + content
        last = number
    return found + b"\0"


def page(uncompressed, body, *, values=4, encoding=0, kind=5):
    inner = struct_of((1, 5, integer(values)), (2, 5, integer(encoding)), (3, 5, integer(3)), (4, 5, integer(3)))
    return (
        struct_of((1, 5, integer(0)), (2, 5, integer(uncompressed)), (3, 5, integer(len(body))), (kind, 12, inner))
        + body
    )


def check(content, *, values=4, largest_bytes=1000):
    check_pages(memoryview(content), values=values, largest_bytes=largest_bytes)


def test_pages_within_their_bounds_pass():
    check(page(16, b"0123456789"))
    check(page(16, b"", kind=7, values=4) + page(16, b"abc", encoding=8, values=3) + page(9, b"", values=1))


@pytest.mark.parametrize(
    "content, words",
    [
        (page(800_000_000, bytes(2219)), "claim 800000000 bytes; there is room for 1000"),
        (page(600, b"") + page(600, b""), "claim 1200 bytes"),
        (page(-1, b""), "claim -1 bytes"),
        (page(16, b"", values=5), "have 5 values instead of 4"),
        (page(16, b"", values=2), "have 2 values instead of 4"),
        (page(16, b"", values=-4), "another encoding"),
        (page(16, b"", encoding=7), "another encoding"),  # DELTA_BYTE_ARRAY: texts that share their beginnings
        (page(16, b"", kind=7, values=2**31 - 1), "a dictionary claims 2147483647 values in 16 bytes"),
        (page(16, b"0123456789")[:-1], "longer than its column"),
        (page(16, b"")[:5], "has no end"),
        (struct_of((2, 5, integer(8))), "longer than its column"),
        (struct_of((2, 5, integer(8)), (3, 5, integer(0))), "neither data nor a dictionary"),
        (
            struct_of((2, 5, integer(8)), (3, 5, integer(0)), (5, 12, b"\0"), (7, 12, b"\0")),
            "neither data nor a dictionary",
        ),
        (struct_of((1, 9, b"\x15")), "holds what none has"),
        (struct_of((2, 5, integer(2**30)), (2, 6, integer(2) + integer(16)), (3, 5, integer(0))), "field 2 again"),
        (struct_of((2, 5, integer(2**30)), (2, 5, integer(2**16 + 2) + integer(16))), "the field 65538"),
        (bytes([0x1C]) * 1000, "nested too deeply"),
        (bytes([0x15]) + bytes([255]) * 1000, "has no end"),
        (b"", "have 0 values instead of 4"),
    ],
)
def test_other_pages_are_refused(content, words):
    with pytest.raises(ValueError, match=words):
        check(content)


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_pass_in_no_time(content):
    with suppress(ValueError):
        check(content, values=0)


@given(st.binary(max_size=6), st.integers(0, 30))
def test_damaged_headers_are_refused_or_pass(harm, at):
    content = bytearray(page(16, b"0123456789"))
    content[at : at + len(harm)] = harm
    with suppress(ValueError):
        check(bytes(content))


@pytest.mark.parametrize("settings", [{}, {"data_page_version": "2.0"}, {"use_dictionary": False}])
def test_what_arrow_writes_passes(settings):
    """Headers that another program has written; the values of all pages are as many as the file says."""
    table = pa.table({"a": np.arange(3000) % 50, "b": [f"text {number}" for number in range(3000)]})
    file = io.BytesIO()
    pq.write_table(table, file, compression="brotli", data_page_size=2000, **settings)
    content, metadata = file.getvalue(), pq.ParquetFile(file).metadata
    for at in range(2):
        column = metadata.row_group(0).column(at)
        start = column.dictionary_page_offset or column.data_page_offset
        pages = content[start : start + column.total_compressed_size]
        check(pages, values=3000, largest_bytes=column.total_uncompressed_size)
        with pytest.raises(ValueError, match="there is room for"):
            check(pages, values=3000, largest_bytes=column.total_uncompressed_size // 2)
    assert struct.unpack("<I", content[-8:-4])[0] < len(content)
