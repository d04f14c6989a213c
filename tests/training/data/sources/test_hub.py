"""Data sets of the hub: read as a stream from a server that answers as the hub does, by real programs."""

import io
import json
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from tests.support.hub_server import Repository, hub_server
from tests.support.programs import run_program, until
from training.data.demo.draw import draw_set
from training.data.prepare.text import TextInput, prepare_text
from training.data.store.shards import read_manifest, read_shard
from training.model.codecs.codec import load_codec
from training.recipe import load_recipe

pytestmark = pytest.mark.programs

RUN = load_recipe("demo")
PREPARE = [sys.executable, "-m", "training", "prepare"]
SMALL_SHARDS = """
import sys; from training.data.prepare import pictures as prepare; prepare.ROWS_PER_SHARD = 20
from training.cli import main; sys.argv = ["training", "prepare", *sys.argv[1:]]; main()
"""
CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train.jsonl}
  - {split: test, path: en/test.jsonl}
- config_name: de
  data_files: de/*.jsonl
---
"""


def parquet_of(rows):
    """As `datasets` writes pictures and captions."""
    features = {"image": {"_type": "Image"}, "caption": {"dtype": "string", "_type": "Value"}}
    table = pa.table(
        {
            "image": [{"bytes": content, "path": name} for name, content, _ in rows],
            "caption": [caption for _, _, caption in rows],
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=8)
    return file.getvalue()


def lines_of(texts):
    return "".join(json.dumps({"text": text, "n": len(text)}) + "\n" for text in texts).encode()


TRAIN_TEXTS = [f"story {number}: " + "once upon a time " * (number % 7 + 1) for number in range(60)]
TEST_TEXTS = [f"ending {number}: " + "and they lived happily " * (number % 5 + 1) for number in range(20)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """(name, content, caption) of 70 pictures."""
    folder = tmp_path_factory.mktemp("drawn") / "pictures"
    draw_set(folder, count=70, seed=0)
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    return [(row["file"], (folder / row["file"]).read_bytes(), row["caption"]) for row in rows]


@pytest.fixture(scope="module")
def hub(pictures):
    parts = {f"data/train-0000{n}-of-00003.parquet": parquet_of(pictures[20 * n : 20 * n + 20]) for n in range(3)}
    spoilt = [("a.png", b"no picture", "a broken one"), ("b.png", pictures[0][1], "x")]
    folder = {f"train/{name}": content for name, content, _ in pictures[:5]}
    folder["train/metadata.jsonl"] = b"".join(
        json.dumps({"file_name": name, "text": caption}).encode() + b"\n" for name, _, caption in pictures[:5]
    )
    english = {"en/train.jsonl": lines_of(TRAIN_TEXTS), "en/test.jsonl": lines_of(TEST_TEXTS)}
    german = {"de/a.jsonl": lines_of(["es war einmal"] * 9), "README.md": CARD.encode()}
    sets = {
        "us/drawn": Repository({**parts, "data/validation-00000-of-00001.parquet": parquet_of(pictures[60:] + spoilt)}),
        "us/folder": Repository(folder),
        "us/text": Repository({**english, **german}, {**english, **german, "en/train.jsonl": lines_of(["new"] * 99)}),
        "us/script": Repository({"script.py": b"raise SystemExit('this ran')"}),
        "us/gated": Repository(parts, gated=True),
        "us/empty": Repository({"LICENSE": b"none"}),
        "us/none-to-train-on": Repository({"a/test.jsonl": lines_of(["x"]), "a/validation.jsonl": lines_of(["x"])}),
    }
    with hub_server(sets) as running:
        yield running


@pytest.fixture(scope="module")
def environment(hub, tmp_path_factory):
    return {**os.environ, **hub.environment(tmp_path_factory.mktemp("home"))}


@pytest.fixture(scope="module")
def prepared(environment, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "shards"
    command = [*PREPARE, "--images", "hf://us/drawn", "--out", str(out), "--codec-steps", "3"]
    done = run_program(command, env=environment, within=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, command, done.stdout


def test_pictures_of_the_hub_become_shards(prepared, environment, pictures):
    out, command, said = prepared
    manifest = read_manifest(out)
    assert "Prepared 60 train, 10 held-out, 0 new-pairs samples" in said
    assert manifest.pictures == 72 and manifest.left_out == {"short caption": 1, "unreadable file": 1}
    left_out = [json.loads(line) for line in (out / "left-out.jsonl").read_text().splitlines()]
    assert left_out == [
        {"file": "validation/0/11", "reason": "short caption"},
        {"file": "validation/0/10", "reason": "unreadable file"},
    ]
    codec = load_codec(out, RUN.codec)
    wanted = {f"train/{n // 20}/{n % 20}": pictures[n] for n in range(60)}
    wanted |= {f"validation/0/{n}": pictures[60 + n] for n in range(10)}
    found = {}
    for split, entry in manifest.splits.items():
        for sample in (sample for name in entry.shards for sample in read_shard(out / name)):
            _, content, caption = wanted[sample.id]
            pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=np.float32) / 255
            codes = codec.encode(torch.from_numpy(pixels).permute(2, 0, 1)[None])
            assert sample.caption == caption and sample.codes.tolist() == codes[0].tolist()
            assert split == ("train" if sample.id.startswith("train/") else "held-out")
            found[sample.id] = sample
    assert found.keys() == wanted.keys()
    assert not [path.name for path in out.parent.iterdir() if path != out]
    assert not [path for path in out.iterdir() if "place" in path.name or "note" in path.name or "marks" in path.name]
    again = run_program(command, env=environment, within=100)
    assert "Nothing to do" in again.stdout and again.returncode == 0, again.stderr


def test_killed_it_goes_on_after_the_last_finished_shard(prepared, hub, environment, programs, tmp_path):
    """Shards of 20 rows. The program dies while it waits for the third file; the first two are not made again."""
    flags = ["--images", "hf://us/drawn", "--codec", prepared[0] / "codec.safetensors"]
    flags += ["--tokenizer", prepared[0] / "tokenizer.json"]
    command = [sys.executable, "-c", SMALL_SHARDS, *map(str, flags), "--out"]
    whole = run_program([*command, str(tmp_path / "whole")], env=environment, within=100)
    assert whole.returncode == 0, whole.stderr
    third, waits = "train-00002-of-00003.parquet", []

    def silent(handler):
        if third in handler.path and handler.command == "GET":
            waits.append(handler.path)
            until(lambda: not waits)
        return False

    hub.fault = silent
    try:
        started = programs.start([*command, str(tmp_path / "shards")], env=environment)
        until(lambda: waits and list(tmp_path.glob(".shards.part-*/train-00001.note.json")))
        started.kill()
        started.wait()
    finally:
        waits.clear()
        hub.fault = lambda handler: False
    assert not (tmp_path / "shards").exists()
    names = ["train-00000.parquet", "train-00001.parquet"]
    (part,) = tmp_path.glob(".shards.part-*")
    stamps = [(part / name).stat().st_mtime_ns for name in names]
    done = run_program([*command, str(tmp_path / "shards")], env=environment, within=100)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / "shards" / name).stat().st_mtime_ns for name in names] == stamps, "made again"
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "shards" / path.name).read_bytes() == path.read_bytes(), path.name
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "shards"}


def test_text_of_a_configuration_and_a_revision(hub, environment, tmp_path):
    """The blocks are those of the same documents in a file; the newest commit has others."""
    first = hub.repositories["us/text"].sha(0)
    flags = ["--vocabulary", "300", "--block-length", "16", "--out"]
    command = [*PREPARE, "--text", f"hf://us/text/en@{first}", *flags, str(tmp_path / "shards")]
    done = run_program(command, env=environment, within=100)
    assert done.returncode == 0, done.stderr
    documents = [{"text": text} for text in TRAIN_TEXTS] + [{"text": text, "split": "test"} for text in TEST_TEXTS]
    (tmp_path / "same.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    same = TextInput(path=tmp_path / "same.jsonl", tokenizer=tmp_path / "shards" / "tokenizer.json", block_length=16)
    manifest, _ = prepare_text(same, tmp_path / "same")
    there = read_manifest(tmp_path / "shards")
    assert there.splits == manifest.splits and there.splits["held-out"].samples > 0 and there.documents == 80
    for name in (name for entry in there.splits.values() for name in entry.shards):
        assert pq.read_table(tmp_path / "shards" / name).equals(pq.read_table(tmp_path / "same" / name))


REFUSED = {
    "hf://us/unknown": ("BadInput", "hf://us/unknown cannot be opened"),
    "hf://us/gated": ("BadInput", "hf://us/gated cannot be opened"),
    "hf://us/script": ("BadInput", "is made by a program, a dataset script, which never runs here"),
    "hf://us/empty": ("BadInput", "hf://us/empty cannot be opened"),
    "hf://us/text": ("BadInput", r"Please pick one among the available configs: ['en', 'de']"),
    "hf://us/text/fr": ("BadInput", "BuilderConfig 'fr' not found"),
    "hf://us/drawn@older": ("BadInput", "hf://us/drawn@older cannot be opened"),
    "hf://datasets/us/drawn": ("BadInput", "has the columns ['image', 'caption']. Give that of the text with"),
    "hf://drawn": ("BadInput", "names no data set of the hub; give hf://OWNER/NAME"),
    "hf://us/none-to-train-on": ("BadInput", "has the splits ['test', 'validation'], and none to train on"),
}


def test_sets_that_cannot_be_read_are_refused_in_one_sentence(environment):
    """In one program, since loading the libraries takes longer than all else."""
    code = """
import sys
from training.data.sources.hub import HubSet, hub_texts
from training.errors import TrainingError
for address in sys.argv[1:]:
    try: hub_texts(address, "caption" if address == "hf://us/drawn" else "text")
    except TrainingError as error: print(type(error).__name__, " ".join(error.sentence.split()))
    else: print("read")
"""
    done = run_program([sys.executable, "-c", code, *REFUSED, "hf://us/drawn"], env=environment, within=100)
    assert done.returncode == 0, done.stderr
    *told, read = done.stdout.splitlines()
    assert len(told) == len(REFUSED) and read == "read"
    for line, (kind, words) in zip(told, REFUSED.values(), strict=True):
        assert line.startswith(f"{kind} ") and words in line, line
    assert "this ran" not in done.stdout + done.stderr


def test_a_hub_that_does_not_answer(environment, tmp_path):
    command = [*PREPARE, "--images", "hf://us/drawn", "--out", str(tmp_path / "out")]
    elsewhere = {**environment, "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = run_program(command, env=elsewhere, within=100)
    assert done.returncode == 1 and "The hub cannot be reached for hf://us/drawn" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
