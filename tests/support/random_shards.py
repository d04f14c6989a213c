"""Prepared shards of random codes or random text, for tests of programs that read shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from training.data.prepare.text import TextInput, prepare_text
from training.data.store.shards import Manifest, SplitEntry, describe_file, describe_shard, write_shard
from training.data.store.tokenizer import Tokenizer
from training.recipe import LanguageRun, RunConfig

SAMPLES = 64


def write_shards(folder: Path, run: RunConfig, samples: int = SAMPLES) -> Path:
    """Shards in the recipe's sizes, with random codes or text; `samples` of codes, a multiple of four."""
    if isinstance(run, LanguageRun):
        return _write_text(folder, run)
    folder.mkdir(exist_ok=True)
    captions = [f"a {colour} {shape}" for colour in ("red", "blue") for shape in ("circle", "square")] * (samples // 4)
    codes = np.random.default_rng(0).integers(0, run.model.image_vocab_size, (samples, run.model.image_seq_len))
    ids = [str(number) for number in range(samples)]
    write_shard(folder / "train-00000.parquet", ids=ids, captions=captions, codes=codes.astype(np.uint16))
    Tokenizer.train(captions, 64).save(folder / "tokenizer.json")
    write_manifest(folder, run, ("train-00000.parquet",), samples)
    return folder


def write_manifest(folder: Path, run: RunConfig, names: tuple[str, ...], samples: int) -> None:
    """The manifest of these shards of a folder, which holds all other files already."""
    manifest = Manifest(
        run_id=run.run_id,
        input_digest="a" * 64,
        image_seq_len=run.model.image_seq_len,
        image_vocab_size=run.model.image_vocab_size,
        text_vocab_size=Tokenizer.from_file(folder / "tokenizer.json").vocab_size,
        codec_digest="b" * 64,
        reconstruction_error=0.0,
        pictures=samples,
        picture_bytes=0,
        near_duplicates=0,
        left_out={},
        splits={
            "train": SplitEntry(samples=samples, shards=names),
            "held-out": SplitEntry(samples=0, shards=()),
        },
        files={path.name: describe_file(path) for path in folder.iterdir()},
        index={name: describe_shard(folder / name) for name in names},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())


def hold_out(folder: Path, run: RunConfig, counts: tuple[int, ...]) -> None:
    """Adds held-out pictures to these shards of pictures: a file for each of `counts`, with that many."""
    random_numbers, names = np.random.default_rng(1), []
    for number, count in enumerate(counts):
        names.append(f"held-out-{number:05d}.parquet")
        codes = random_numbers.integers(0, run.model.image_vocab_size, (count, run.model.image_seq_len))
        captions = [("a red circle", "a blue square", "a red square")[at % 3] for at in range(count)]
        ids = [f"held out {at}" for at in range(count)]
        write_shard(folder / names[-1], ids=ids, captions=captions, codes=codes.astype(np.uint16))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["held-out"] = {"samples": sum(counts), "shards": names}
    manifest["files"] |= {name: describe_file(folder / name).model_dump() for name in names}
    manifest["index"] |= {name: describe_shard(folder / name).model_dump() for name in names}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _write_text(folder: Path, run: LanguageRun) -> Path:
    """Shards of blocks of random words, at least `SAMPLES` of them: a word is at least a token."""
    random_numbers = np.random.default_rng(0)
    words = ["".join(random_numbers.choice(list("abcdefgh"), 4)) for _ in range(200)]
    lines = [" ".join(random_numbers.choice(words, 50)) for _ in range(SAMPLES * run.model.block_length // 50 + 1)]
    text = folder.with_suffix(".txt")
    text.write_text("\n<|endoftext|>\n".join(lines) + "\n")
    vocabulary = run.model.architecture["vocab_size"]
    prepare_text(TextInput(path=text, block_length=run.model.block_length, vocabulary=vocabulary), folder)
    return folder
