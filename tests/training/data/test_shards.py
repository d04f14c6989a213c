"""Shards on disk: what is written is read, compressed as said, and a broken file is named."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from training.data.shards import check_file, describe_file, parse_manifest, read_shard, write_shard
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
    assert metadata.num_row_groups == 3 and metadata.row_group(0).num_rows == 512
    assert {metadata.row_group(0).column(at).compression for at in range(3)} == {"BROTLI"}


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
    with pytest.raises(BadInput, match=r"train-00000\.parquet is no readable shard"):
        list(read_shard(shard))
    with pytest.raises(BadInput, match=r"train-00000\.parquet is broken: it has \d+ bytes"):
        check_file(shard, entry, source=str(shard))


def test_one_flipped_bit_is_found(shard):
    entry = describe_file(shard)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(BadInput, match="SHA-256"):
        check_file(shard, entry, source=str(shard))


MANIFEST = {
    "run_id": "demo",
    "input_digest": "0" * 64,
    "image_seq_len": 64,
    "image_vocab_size": 256,
    "text_vocab_size": 49,
    "codec_digest": "1" * 64,
    "reconstruction_error": 0.001,
    "pictures": 1,
    "left_out": {},
    "splits": {"train": {"samples": 1, "shards": ["train-00000.parquet"]}},
    "files": {"train-00000.parquet": {"bytes": 1, "sha256": "2" * 64}},
}


def test_a_manifest_is_read():
    assert parse_manifest(json.dumps(MANIFEST), source="here").splits["train"].samples == 1


@pytest.mark.parametrize("name", ["../train.parquet", "/etc/passwd", ".hidden", "other.parquet"])
def test_a_manifest_names_only_files_beside_it(name):
    strange = {**MANIFEST, "splits": {"train": {"samples": 1, "shards": [name]}}}
    if name != "other.parquet":
        strange["files"] = {name: {"bytes": 1, "sha256": "2" * 64}}
    with pytest.raises(BadInput, match="not one beside it"):
        parse_manifest(json.dumps(strange), source="here")


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**MANIFEST, "pictures": "many"})])
def test_other_files_are_no_manifest(text):
    with pytest.raises(BadInput, match="here is no manifest"):
        parse_manifest(text, source="here")
