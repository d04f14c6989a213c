"""Small shards whose codes say which sample it is."""

import json

import numpy as np

from training.data.store.shards import Manifest, SplitEntry, describe_file, describe_shard, write_shard
from training.data.store.tokenizer import Tokenizer

COLOURS = ("red", "green", "blue")
SHARDS, ROWS = 6, 40
SAMPLES = SHARDS * ROWS


def captions_of(numbers):
    return [f"a {COLOURS[number % 3]} circle" for number in numbers]


def write_numbered(folder):
    """Six shards of 40 samples, in row groups as `training.data.store.shards.ROW_GROUP` says."""
    folder.mkdir()
    names = [f"train-{shard:05d}.parquet" for shard in range(SHARDS)]
    for shard, name in enumerate(names):
        numbers = range(ROWS * shard, ROWS * shard + ROWS)
        codes = np.array([[number] * 64 for number in numbers], dtype=np.uint16)
        write_shard(folder / name, ids=[str(number) for number in numbers], captions=captions_of(numbers), codes=codes)
    Tokenizer.train(captions_of(range(SAMPLES)), 64).save(folder / "tokenizer.json")
    (folder / "codec.safetensors").write_bytes(b"weights")
    (folder / "codec.json").write_text("{}")
    manifest = Manifest(
        run_id="demo",
        input_digest="a" * 64,
        image_seq_len=64,
        image_vocab_size=256,
        text_vocab_size=7,
        codec_digest="b" * 64,
        reconstruction_error=0.0,
        pictures=SAMPLES,
        picture_bytes=0,
        near_duplicates=0,
        left_out={},
        splits={
            "train": SplitEntry(samples=SAMPLES, shards=tuple(names)),
            "held-out": SplitEntry(samples=0, shards=()),
        },
        files={path.name: describe_file(path) for path in folder.iterdir()},
        index={name: describe_shard(folder / name) for name in names},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


def change_manifest(folder, change):
    """Writes the manifest as `change` leaves it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
