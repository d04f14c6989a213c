"""Blocks from a hostile server: nothing is allocated because they claim it, and nothing beyond bounds gets through."""

import hashlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data.numbered_shards import change_manifest, write_numbered
from tests.training.data.store.test_pages import integer, varint
from training.data.store import blocks as blocks_module
from training.data.store.blocks import Blocks, DamagedError
from training.data.store.sets import open_shards
from training.data.store.shards import DIGESTS_KEY, SCHEMA, describe_file, describe_shard
from training.errors import BadInput

NAME = "train-00000.parquet"
PLAIN = {"captions": ["a red circle"] * 40, "codes": [[7] * 64] * 40}


@pytest.fixture
def folder(tmp_path):
    return write_numbered(tmp_path / "shards")


def write_hostile(folder, *, captions, codes, schema=SCHEMA, harm=lambda content: content, **settings):
    """A first shard with any content, to which footer and manifest agree."""
    path, settings = folder / NAME, {"compression": "brotli", **settings}
    table = pa.table({"id": [str(number) for number in range(len(captions))], "caption": captions, "codes": codes})
    with pq.ParquetWriter(path, schema, write_statistics=False, **settings) as writer:
        writer.write_table(table.cast(schema))
    footer = pq.read_metadata(path)
    columns = [footer.row_group(0).column(at) for at in range(3)]
    start = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
    end = start + sum(column.total_compressed_size for column in columns)
    groups = harm(path.read_bytes()[start:end])
    with pq.ParquetWriter(path, schema, write_statistics=False, **settings) as writer:
        writer.write_table(table.cast(schema))
        writer.add_key_value_metadata({DIGESTS_KEY: hashlib.sha256(groups).hexdigest()[:32]})
    content = path.read_bytes()
    assert len(groups) == end - start
    path.write_bytes(content[:start] + groups + content[end:])
    describe_again(folder)


def describe_again(folder):
    """Makes the manifest agree to the first shard, whatever it holds."""

    def change(manifest):
        manifest["index"][NAME] = describe_shard(folder / NAME).model_dump()
        manifest["files"][NAME] = describe_file(folder / NAME).model_dump()

    change_manifest(folder, change)


def read(folder):
    shards = open_shards(folder)
    return Blocks(shards.manifest, shards.names, shards.files, None).read(0)


def test_a_block_as_other_programs_write_it_is_read(folder):
    write_hostile(folder, **PLAIN)
    rows = read(folder)
    assert rows.captions == PLAIN["captions"] and rows.codes.tolist() == PLAIN["codes"]
    assert rows.codes.dtype == np.uint16


@pytest.mark.parametrize("text", ["красный круг", "دائرة حمراء", "赤い円", "🔴" * 50, "", "a\u202eb\u0000c"])
def test_captions_of_any_script_come_back(folder, text):
    write_hostile(folder, captions=[text] * 40, codes=PLAIN["codes"])
    assert read(folder).captions == [text] * 40


def huge(captions_bytes):
    """Captions of so many bytes together, which compress to next to nothing."""
    return ["a" * (captions_bytes // 40)] * 40


@pytest.mark.parametrize("use_dictionary", [False, True])
def test_a_page_that_would_inflate_is_refused_before_it_does(folder, use_dictionary):
    """40 MB in a file of some kilobytes, where 40 captions have room for 160 kB."""
    write_hostile(folder, captions=huge(40_000_000), codes=PLAIN["codes"], use_dictionary=use_dictionary)
    assert (folder / NAME).stat().st_size < 50_000
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), pool.max_memory()
    with pytest.raises(DamagedError, match="pages claim"):
        read(folder)
    assert pool.max_memory() <= max(most, before + 1_000_000)


def test_a_size_that_is_told_twice_is_refused_before_the_page_inflates(folder):
    """40 MB by a field that Arrow takes, and 16 bytes by a second one, which it skips as one of another type."""
    usual = bytes.fromhex("2c1550150015061506") + b"\x1c\0\0"  # 40 plain values, and empty statistics

    def harm(content):
        found = re.search(rb"\x15\x00(\x15[\x80-\xff]{3}.)\x15([\x80-\xff]{2}.)" + re.escape(usual) + rb"\0", content)
        length = sum((byte & 127) << 7 * at for at, byte in enumerate(found[2])) // 2
        inflated = pa.decompress(content[found.end() : found.end() + length], 40_000_166, codec="brotli")
        body = pa.compress(inflated, codec="brotli", asbytes=True)
        # The rest of the room goes to a field that nobody reads.
        fields = b"\x15\x00" + found[1] + b"\x06\x04" + integer(16) + b"\x15" + integer(len(body)) + usual
        spare = len(found.group()) + length - len(fields) - len(body) - 5
        page = fields + b"\x48" + varint(spare) + bytes(spare) + b"\0" + body
        assert len(varint(spare)) == 3
        return content[: found.start()] + page + content[found.end() + length :]

    settings = {"use_dictionary": False, "compression_level": 0}
    write_hostile(folder, captions=huge(40_000_000), codes=PLAIN["codes"], harm=harm, **settings)
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), pool.max_memory()
    with pytest.raises(DamagedError, match="field 2"):
        read(folder)
    assert pool.max_memory() <= max(most, before + 1_000_000)


def test_a_caption_of_the_dictionary_is_not_copied_for_each_sample(folder):
    """One of 300 kB, which 40 samples share: within the bound of the pages, and 12 MB as copies."""
    write_hostile(folder, captions=["a" * 300_000] * 40, codes=PLAIN["codes"], use_dictionary=True)
    captions = read(folder).captions
    assert len({id(caption) for caption in captions}) == 1


def test_a_header_that_claims_more_than_the_footer_is_refused(folder):
    """A page of captions, 25 kB by the footer, claims the most that three bytes of its header can say: a megabyte."""

    def harm(content):
        # A data page is of type 0; then comes its size, and that of the captions takes three bytes.
        size = re.search(rb"\x15\x00\x15[\x80-\xff]{2}[\x01-\x7f]", content).start() + 3
        return content[:size] + bytes([0xFE, 0xFF, 0x7F]) + content[size + 3 :]

    captions = [f"a caption with the number {number}" * 20 for number in range(40)]
    write_hostile(folder, captions=captions, codes=PLAIN["codes"], harm=harm, use_dictionary=False)
    with pytest.raises(DamagedError, match="1048575"):
        read(folder)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"codes": [[256] + [7] * 63] * 40}, "code 256"),
        ({"codes": [[65535] * 64] * 40}, "code 65535"),
        ({"codes": [[7] * 63] * 40}, "2520"),
        ({"codes": [[7] * 65, *[[7] * 64] * 38, [7] * 63]}, "40 samples"),
        ({"codes": [None, [7] * 128, *[[7] * 64] * 38]}, "values|missing"),
        ({"captions": [None] * 40}, "missing"),
    ],
)
def test_samples_that_do_not_fit_are_refused(folder, changes, words):
    write_hostile(folder, **{**PLAIN, **changes})
    with pytest.raises(DamagedError, match=words):
        read(folder)


@pytest.mark.parametrize("changes", [{"caption": pa.binary()}, {"codes": pa.list_(pa.uint32())}])
def test_other_columns_are_refused(folder, changes):
    """Captions that are no text, and wider codes."""
    schema = pa.schema({"id": pa.string(), "caption": pa.string(), "codes": pa.list_(pa.uint16())} | changes)
    captions = [b"\xff\xfe"] * 40 if "caption" in changes else PLAIN["captions"]
    write_hostile(folder, captions=captions, codes=PLAIN["codes"], schema=schema)
    with pytest.raises(DamagedError, match="columns"):
        read(folder)


def test_texts_that_share_their_beginnings_are_refused(folder):
    """40 captions of 100 kB each in 100 kB: the size of the page does not bound that of its values."""
    encoded = {"use_dictionary": False, "column_encoding": {"caption": "DELTA_BYTE_ARRAY"}}
    write_hostile(folder, captions=["a" * 100_000] * 40, codes=PLAIN["codes"], **encoded)
    with pytest.raises(DamagedError, match="encoding"):
        read(folder)


def test_a_row_group_outside_of_its_file_is_refused(folder):
    def change(manifest):
        manifest["files"][NAME]["bytes"] -= 1

    change_manifest(folder, change)
    with pytest.raises(DamagedError):
        read(folder)


@pytest.mark.parametrize("columns", [0, 4])
def test_a_row_group_with_other_columns_than_its_file_is_refused(folder, columns):
    """Arrow would look for the fourth of the three columns of the file, wherever that leads."""
    path = folder / NAME
    content, metadata = path.read_bytes(), pq.read_metadata(path)
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8]
    # The group has a list of columns, its size in bytes, and 40 samples; the list of groups comes behind 40 as well.
    begin = re.search(rb"\x16\x50\x19\x1c", footer).end()
    *_, rest = re.finditer(rb"\x16[\x80-\xff]*[\x01-\x7f]\x16\x50", footer)
    assert metadata.num_row_groups == 1 and footer[begin : begin + 2] == b"\x19\x3c"  # three structures
    chunks = footer[begin + 2 : rest.start()] + b"\x26\0\0" if columns else b""
    harmed = footer[:begin] + bytes([0x19, columns << 4 | 0xC]) + chunks + footer[rest.start() :]
    path.write_bytes(content[: -8 - length] + harmed + len(harmed).to_bytes(4, "little") + b"PAR1")
    describe_again(folder)
    with pytest.raises(DamagedError, match=f"{columns} columns"):
        read(folder)


def test_a_row_group_larger_than_any_is_not_fetched(folder, monkeypatch):
    monkeypatch.setattr(blocks_module, "LARGEST_BLOCK_BYTES", 100)
    with pytest.raises(DamagedError, match=r"\b100\b"):
        read(folder)


def test_blocks_are_numbered_through_the_shards(folder, monkeypatch):
    monkeypatch.setattr("training.data.store.shards.ROW_GROUP", 16)
    other = write_numbered(folder.parent / "other")
    shards = open_shards(other)
    blocks = Blocks(shards.manifest, shards.names, shards.files, None)
    assert blocks.rows.tolist() == [16, 16, 8] * 6
    assert [blocks.locate(block) for block in (0, 2, 3, 17)] == [
        ("train-00000.parquet", 0),
        ("train-00000.parquet", 2),
        ("train-00001.parquet", 0),
        ("train-00005.parquet", 2),
    ]
    assert blocks.read(4).codes[:, 0].tolist() == list(range(56, 72))
    assert blocks.name(4) == "row group 1 of train-00001.parquet"


def test_a_manifest_of_billions_of_row_groups_is_refused(folder):
    """Each would have an entry in memory."""

    def change(manifest):
        names = [f"train-{number:05d}.parquet" for number in range(1000)]
        entry = {**manifest["index"][NAME], "rows": 2**24, "group_rows": 1}
        manifest["splits"]["train"] = {"samples": 2**24 * 1000, "shards": names}
        manifest["files"].update(dict.fromkeys(names, manifest["files"][NAME]))
        manifest["index"] = dict.fromkeys(names, entry)

    change_manifest(folder, change)
    with pytest.raises(BadInput, match="4194304"):
        read(folder)


@pytest.mark.parametrize(
    "field, value",
    [("rows", 2**40), ("group_rows", 2**16), ("rows", 0), ("footer_sha256", ""), ("footer_bytes", 2**32)],
)
def test_an_index_beyond_its_bounds_is_refused(folder, field, value):
    change_manifest(folder, lambda manifest: manifest["index"][NAME].update({field: value}))
    with pytest.raises(BadInput, match="manifest"):
        open_shards(folder)
