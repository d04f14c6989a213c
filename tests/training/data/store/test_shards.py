"""Shards on disk: what is written is read, compressed as said, and a broken file is named."""

import hashlib
import json
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.store.shards import (
    check_file,
    describe_file,
    describe_shard,
    parse_manifest,
    read_shard,
    write_shard,
)
from training.errors import BadInput

rng = np.random.default_rng(0)
CODES = rng.integers(0, 8192, (1200, 16), dtype=np.uint16)
IDS = [f"{index}.png" for index in range(1200)]
CAPTIONS = [f"caption {index}, with ünïcode" for index in range(1200)]


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "train-00000.parquet"
    write_shard(path, ids=IDS, captions=CAPTIONS, codes=CODES)
    return path


def test_samples_come_back_in_order(shard):
    samples = list(read_shard(shard))
    assert [sample.id for sample in samples] == IDS and [sample.caption for sample in samples] == CAPTIONS
    assert np.array_equal(np.stack([sample.codes for sample in samples]), CODES)
    assert list(shard.parent.iterdir()) == [shard]


def test_columns_are_brotli_compressed_in_small_row_groups(shard):
    metadata = pq.ParquetFile(shard).metadata
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [256] * 4 + [176]
    assert {metadata.row_group(0).column(at).compression for at in range(3)} == {"BROTLI"}


def test_codes_of_13_bits_take_little_more_than_13_bits(shard):
    metadata = pq.ParquetFile(shard).metadata
    taken = sum(metadata.row_group(at).column(2).total_compressed_size for at in range(metadata.num_row_groups))
    dictionaries = 1200 * 16 * 2  # a row group with 4096 random codes repeats few of them
    assert 1200 * 16 * 13 / 8 < taken < 1.1 * 1200 * 16 * 13 / 8 + dictionaries


def test_the_index_finds_each_row_group(shard):
    """Read as the format says: the footer's length and magic number are the file's last eight bytes."""
    index, content = describe_shard(shard), shard.read_bytes()
    assert (index.rows, index.group_rows) == (1200, 256)
    assert content[-4:] == b"PAR1" and index.footer_bytes == struct.unpack("<I", content[-8:-4])[0] + 8
    assert index.footer_sha256 == hashlib.sha256(content[-index.footer_bytes :]).hexdigest()
    metadata = pq.ParquetFile(shard).metadata
    begins = [metadata.row_group(at).column(0).data_page_offset for at in range(5)]
    ends = [*begins[1:], len(content) - index.footer_bytes]
    digests = [hashlib.sha256(content[begin:end]).hexdigest()[:32] for begin, end in zip(begins, ends, strict=True)]
    assert metadata.metadata[b"row_group_sha256"].decode().split() == digests


def test_another_parquet_reader_sees_plain_columns(shard):
    table = pq.read_table(shard)
    assert {field.name: str(field.type) for field in table.schema} == {
        "id": "string",
        "caption": "string",
        "codes": "list<element: uint16>",
    }


@pytest.mark.parametrize("damage", [b"", b"PAR1 nothing PAR1"])
def test_a_broken_shard_is_named(shard, damage):
    entry = describe_file(shard)
    shard.write_bytes(damage)
    with pytest.raises(BadInput, match=r"train-00000\.parquet"):
        list(read_shard(shard))
    with pytest.raises(BadInput, match=r"train-00000\.parquet.* bytes"):
        check_file(shard, entry, source=str(shard))


def test_a_shard_whose_captions_are_no_text_is_named(shard):
    table = pq.read_table(shard)
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"a\xff"))
    pq.write_table(table.slice(0, 1).set_column(1, table.schema.field("caption"), broken), shard)
    with pytest.raises(BadInput, match=r"train-00000\.parquet.*utf-8"):
        list(read_shard(shard))


def test_one_flipped_bit_is_found(shard):
    entry = describe_file(shard)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(BadInput, match="SHA-256"):
        check_file(shard, entry, source=str(shard))


MANIFEST = {
    "kind": "pictures",
    "run_id": "demo",
    "input_digest": "0" * 64,
    "image_seq_len": 64,
    "image_vocab_size": 256,
    "text_vocab_size": 49,
    "codec_digest": "1" * 64,
    "reconstruction_error": 0.001,
    "pictures": 1,
    "picture_bytes": 1,
    "near_duplicates": 0,
    "left_out": {},
    "splits": {"train": {"samples": 1, "shards": ["train-00000.parquet"]}},
    "files": {"train-00000.parquet": {"bytes": 1, "sha256": "2" * 64}},
    "index": {"train-00000.parquet": {"rows": 1, "group_rows": 1, "footer_bytes": 12, "footer_sha256": "3" * 64}},
}


@pytest.mark.parametrize("name", ["../train.parquet", "/etc/passwd", ".hidden", "other.parquet"])
def test_a_manifest_names_only_files_beside_it(name):
    strange = {**MANIFEST, "splits": {"train": {"samples": 1, "shards": [name]}}}
    if name != "other.parquet":
        strange["files"] = {name: {"bytes": 1, "sha256": "2" * 64}}
    with pytest.raises(BadInput, match="beside"):
        parse_manifest(json.dumps(strange), source="here")


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**MANIFEST, "pictures": "many"})])
def test_other_files_are_no_manifest(text):
    with pytest.raises(BadInput, match="manifest"):
        parse_manifest(text, source="here")
