"""Preparing shards: a maintainer's pictures of every kind, filters by reason, interruption, the codes themselves."""

import io
import json
import os
import random
import struct
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import EpsImagePlugin, Image, ImageFile, ImageOps

from tests.support.shard_server import shard_server
from training.data.demo.captions import draw_scene
from training.data.demo.draw import draw_picture, draw_set
from training.data.prepare import pictures as prepare_module
from training.data.prepare.pictures import Input, prepare
from training.data.sources import pictures as pictures_module
from training.data.sources.fetch import Fetcher
from training.data.sources.pictures import square_picture
from training.data.sources.unused import first_left_out
from training.data.store.shards import MANIFEST_FILE, check_file, read_manifest, read_shard, write_shard
from training.data.store.tokenizer import Tokenizer
from training.errors import BadInput, TrainingError
from training.model.codecs.codec import load_codec, save_codec, train_small_codec
from training.recipe import load_recipe

RUN = load_recipe("demo")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "pictures"
    draw_set(folder, count=60, seed=0)
    return folder


@pytest.fixture(scope="module")
def codec_folder(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("codec")
    pictures = [np.asarray(Image.open(path)).transpose(2, 0, 1) for path in sorted(drawn.glob("*.png"))]
    save_codec(train_small_codec(torch.from_numpy(np.stack(pictures)), RUN.codec, steps=3), folder)
    return folder


@pytest.fixture
def make(drawn, codec_folder, tmp_path):
    def make(images=drawn, **settings):
        captions = settings.pop("captions", images / "captions.jsonl")
        out = settings.pop("out", tmp_path / "shards")
        source = settings.pop("source", None) or Input(images=images, captions=captions)
        return prepare(source, out, settings.pop("run", RUN), codec_file=codec_folder / "codec.safetensors", **settings)

    return make


def write_rows(folder, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "captions.jsonl").write_text(lines, encoding="utf-8-sig")  # as Windows' editors write


def test_the_codecs_error_is_that_of_one_picture_in_32(make, drawn, codec_folder, tmp_path, monkeypatch):
    """Decoding takes as long as encoding, so that not all are decoded; each shard begins with one that is."""
    monkeypatch.setattr(pictures_module, "OPENED_TOGETHER", 10)
    manifest, _ = make()
    codec, errors, samples = load_codec(codec_folder, RUN.codec), [], 0
    for name in (name for entry in manifest.splits.values() for name in entry.shards):
        for number, sample in enumerate(read_shard(tmp_path / "shards" / name)):
            samples += 1
            if number % 32 == 0:
                pixels = np.asarray(Image.open(drawn / sample.id), dtype=np.float32).transpose(2, 0, 1)[None] / 255
                decoded = codec.decode(torch.from_numpy(sample.codes.astype(np.int64))[None]).numpy()
                errors.append(np.square(decoded - pixels).mean())
    assert 3 <= len(errors) < samples / 10
    assert manifest.reconstruction_error == pytest.approx(np.mean(errors), rel=1e-4)


def test_codes_captions_and_splits_are_those_of_the_pictures(make, drawn, codec_folder, tmp_path):
    manifest, made = make()
    assert made and manifest == read_manifest(tmp_path / "shards")
    codec = load_codec(codec_folder, RUN.codec)
    expected = {row["file"]: row for row in map(json.loads, (drawn / "captions.jsonl").read_text().splitlines())}
    found = 0
    for split, entry in manifest.splits.items():
        for name in entry.shards:
            for sample in read_shard(tmp_path / "shards" / name):
                pixels = np.asarray(Image.open(drawn / sample.id), dtype=np.float32) / 255
                codes = codec.encode(torch.from_numpy(pixels).permute(2, 0, 1)[None])
                assert sample.codes.tolist() == codes[0].tolist()
                assert (sample.caption, split) == (expected[sample.id]["caption"], expected[sample.id]["split"])
                found += 1
    assert found == 60 == sum(entry.samples for entry in manifest.splits.values())
    for name, entry in manifest.files.items():
        check_file(tmp_path / "shards" / name, entry, source=name)
    assert set(manifest.index) == {name for entry in manifest.splits.values() for name in entry.shards}


def test_samples_are_mixed(make, tmp_path):
    make()
    ids = [sample.id for sample in read_shard(tmp_path / "shards" / "train-00000.parquet")]
    assert ids != sorted(ids)


def test_the_tokenizer_knows_every_training_word(make, tmp_path, drawn):
    make()
    tokenizer = Tokenizer.from_file(tmp_path / "shards" / "tokenizer.json")
    assert tokenizer.vocab_size <= RUN.model.text_vocab_size
    rows = [json.loads(line) for line in (drawn / "captions.jsonl").read_text().splitlines()]
    captions = [row["caption"] for row in rows if row["split"] == "train"]
    assert not (tokenizer.encode(captions, RUN.model.text_seq_len) == 1).any()


def test_again_does_nothing(make, tmp_path):
    make()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    assert make()[1] is False
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()} == stamps


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for the size of a file")
@pytest.mark.parametrize("limit", [30_000, 100])
def test_a_full_disk_is_one_sentence_and_the_work_goes_on(make, tmp_path, limit):
    """As with `test_a_full_disk_costs_the_cache_only`. The shard does not fit, or not even the table of rows."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(TrainingError, match=str(tmp_path)) as error:
            make()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Make room" in error.value.sentence and not (tmp_path / "shards").exists()
    assert make()[1] and read_manifest(tmp_path / "shards").splits["train"].samples > 0


def test_interrupted_work_goes_on_after_the_last_finished_shard(make, tmp_path, monkeypatch):
    """Shards of 20 rows; the third one fails, the second call encodes only what is missing."""
    monkeypatch.setattr(prepare_module, "ROWS_PER_SHARD", 20)
    make(out=tmp_path / "whole")
    encoded = []

    def stop(stage, done, total):
        if stage == "Encoding":
            encoded.append(done)
            if done > 40:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(progress=stop)
    assert not (tmp_path / "shards").exists()
    (tmp_path / ".shards.part-of-other-input").mkdir()
    written = []
    monkeypatch.setattr(
        prepare_module, "write_shard", lambda path, **rows: (written.append(path.name), write_shard(path, **rows))
    )
    make()
    assert "train-00000.parquet" not in written and "train-00001.parquet" not in written and written
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "shards" / path.name).read_bytes() == path.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "shards"}


def test_pictures_of_every_kind_and_every_reason(make, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    picture = draw_picture(draw_scene(random.Random(5)), random.Random(5), size=96)
    picture.save(folder / "photo.jpg")
    picture.convert("L").save(folder / "grey.png")
    picture.convert("CMYK").save(folder / "print.tif")
    picture.convert("P").save(folder / "palette.gif")
    Image.fromarray(np.full((80, 80), 40_000, np.uint16)).save(folder / "deep.png")
    picture.resize((190, 96)).save(folder / "wide.png")
    picture.resize((300, 96)).save(folder / "banner.png")
    (folder / "torn.png").write_bytes((folder / "wide.png").read_bytes()[:200])
    (folder / "text.png").write_text("not a picture")
    picture.save(tmp_path / "outside.png")
    Image.fromarray(np.full((80, 80), 0.5, np.float32)).save(folder / "float.tif")
    assert (square_picture(folder / "deep.png", image_size=64) == 40_000 // 256).all()
    good = ["photo.jpg", "grey.png", "print.tif", "palette.gif", "deep.png", "wide.png"]
    rows = [{"file": name, "caption": "a caption"} for name in good]
    rows += [
        {"file": name, "caption": "a caption"}
        for name in ("banner.png", "float.tif", "torn.png", "text.png", "gone.png")
    ]
    rows += [{"file": "../outside.png", "caption": "a caption"}, {"file": "photo.jpg", "caption": "x "}]
    rows += [
        {"file": "photo.jpg", "caption": "ü" * 2049},
        {"file": "photo.jpg", "caption": "a caption", "nsfw": "NSFW"},
        {"file": "photo.jpg"},
        ["photo.jpg"],
    ]
    write_rows(folder, rows)
    with (folder / "captions.jsonl").open("a") as file:
        file.write('{"file": "photo.jpg", "capt\n\n')
        file.write(
            '{"file": "photo.jpg", "caption": "half a \\ud800 pair"}\n{"file": "a\\u0000b", "caption": "null"}\n'
        )
    manifest, _ = make(folder)
    assert manifest.left_out == {
        "broken line": 4,
        "extreme aspect ratio": 1,
        "line without file and caption": 1,
        "long caption": 1,
        "marked unsafe": 1,
        "missing file": 2,
        "short caption": 1,
        "unreadable file": 3,
    }
    assert manifest.splits["train"].samples == len(good) and manifest.pictures == len(rows) + 3
    assert {sample.id for sample in read_shard(tmp_path / "shards" / "train-00000.parquet")} == set(good)


@pytest.mark.parametrize("size", [(640, 480), (480, 641), (100, 80), (2000, 1500)])
def test_pictures_are_resized_as_by_lanczos(tmp_path, size):
    """Pillow's Lanczos filter is the oracle; the difference is smaller than what JPEG of quality 95 loses, in which
    img2dataset keeps its pictures. The noise is a camera's; the last picture is one whose decoder skips detail."""
    numbers = np.random.default_rng(1)
    coarse = Image.fromarray(numbers.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    noisy = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)) + numbers.normal(0, 6, (size[1], size[0], 3))
    picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    picture.save(tmp_path / "noisy.jpg", quality=95)
    found = square_picture(tmp_path / "noisy.jpg", image_size=128).transpose(1, 2, 0).astype(int)
    exact = ImageOps.fit(Image.open(tmp_path / "noisy.jpg"), (128, 128), Image.Resampling.LANCZOS)
    exact.save(tmp_path / "kept.jpg", quality=95)
    kept = np.asarray(Image.open(tmp_path / "kept.jpg"))
    exact = np.asarray(exact).astype(int)
    assert np.abs(found - exact).mean() < np.abs(kept - exact).mean()


def test_two_calls_do_not_make_one_set_together(make, tmp_path):
    """The second one comes while the first one encodes; both would write the same shards, and the same marks."""
    refused = []

    def come_second(stage, done, total):
        if stage == "Encoding":
            with pytest.raises(BadInput, match="Another `prepare`"):
                make()
            refused.append(done)

    make(progress=come_second)
    assert refused and [path.name for path in tmp_path.iterdir()] == ["shards"]
    assert make()[1] is False


def png_of(width, height):
    """A PNG whose header claims a size, with some bytes of its first line: a small file of a huge picture."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    lines = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(13_300, 13_300), (6001, 4000), (100_000, 100_000), (2**31 - 1, 2**31 - 1)])
def test_a_small_file_of_a_huge_picture_is_left_out_unread(tmp_path, size, monkeypatch):
    """The first one has 177 million pixels: decoded, half a gigabyte."""
    (tmp_path / "bomb.png").write_bytes(png_of(*size))
    assert (tmp_path / "bomb.png").stat().st_size < 1000
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda picture: pytest.fail("it is decoded"))
    assert square_picture(tmp_path / "bomb.png", image_size=64) == "huge picture"


def samples_in(folder):
    names = json.loads((folder / "manifest.json").read_text())["splits"]["train"]["shards"]
    return {sample.caption: sample.codes.tolist() for name in names for sample in read_shard(folder / name)}


@pytest.fixture
def few(drawn, tmp_path):
    """Twelve pictures and their captions, which differ."""
    rows = [json.loads(line) for line in (drawn / "captions.jsonl").read_text().splitlines()]
    captions = {row["caption"]: row["file"] for row in rows if row["split"] == "train"}
    return {caption: (drawn / file).read_bytes() for caption, file in list(captions.items())[:12]}


def test_the_same_pictures_from_every_kind_of_set_have_the_same_codes(make, few, tmp_path):
    texts, lines = tmp_path / "texts", tmp_path / "lines"
    texts.mkdir()
    lines.mkdir()
    with tarfile.open(tmp_path / "few.tar", "w") as tar:
        for number, (caption, content) in enumerate(few.items()):
            for folder in (texts, lines):
                (folder / f"{number}.png").write_bytes(content)
            (texts / f"{number}.txt").write_text(caption)
            for file in (texts / f"{number}.png", texts / f"{number}.txt"):
                tar.add(file, arcname=file.name)
    write_rows(lines, [{"file": f"{number}.png", "caption": caption} for number, caption in enumerate(few)])
    make(source=Input(images=texts), out=tmp_path / "a")
    make(source=Input(images=lines, captions=lines / "captions.jsonl"), out=tmp_path / "b")
    make(source=Input(images=tmp_path / "few.tar"), out=tmp_path / "c")
    with zipfile.ZipFile(tmp_path / "few.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for file in texts.iterdir():
            made.write(file, file.name)
    make(source=Input(images=tmp_path / "few.zip"), out=tmp_path / "e")
    with shard_server(lines, ranged=False) as server:
        addresses = {"URL": [f"{server.url}/{number}.png" for number in range(12)], "TEXT": list(few)}
        addresses = {name: [*values, values[0]] for name, values in addresses.items()}
        addresses["URL"][-1] = f"{server.url}/gone.png"
        pq.write_table(pa.table(addresses), tmp_path / "list.parquet")
        reach = Fetcher(lambda address: address == "127.0.0.1")
        manifest, _ = make(source=Input(urls=tmp_path / "list.parquet"), out=tmp_path / "d", fetcher=reach)
        assert manifest.left_out == {"not found at its address": 1}
        listed = [json.loads(line) for line in (tmp_path / "d" / "left-out.jsonl").read_text().splitlines()]
        assert listed == [{"file": f"{server.url}/gone.png", "reason": "not found at its address"}]
    found = [samples_in(tmp_path / name) for name in "abcde"]
    assert all(samples == found[0] for samples in found) and found[0].keys() == few.keys()


def test_parquet_files_with_pictures_inside(make, few, tmp_path):
    """The files are those that `datasets` writes; their names tell the split."""
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    rows = [({"bytes": content, "path": None}, caption) for caption, content in few.items()]
    for name, some in {"train-00000": rows[:7], "train-00001": rows[7:], "validation-00000": rows[:2]}.items():
        table = {"image": [one for one, _ in some], "text": [caption for _, caption in some]}
        pq.write_table(pa.table(table), folder / f"{name}-of-00002.parquet")
    manifest, _ = make(source=Input(images=tmp_path / "set"), out=tmp_path / "a")
    assert (manifest.splits["train"].samples, manifest.splits["held-out"].samples) == (12, 2)
    assert samples_in(tmp_path / "a").keys() == few.keys()
    (folder / "train-00001-of-00002.parquet").write_bytes(b"PAR1")
    manifest, _ = make(source=Input(images=tmp_path / "set"), out=tmp_path / "b")
    assert (manifest.splits["train"].samples, manifest.left_out) == (7, {"broken file": 1})
    for file in folder.iterdir():
        file.write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"Parquet files in .* cannot be read"):
        make(source=Input(images=tmp_path / "set"), out=tmp_path / "c")


def test_nothing_usable_is_one_sentence_with_the_keys_that_are_there(few, tmp_path):
    """With a codec to train and without: the first step that needs a picture differs."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, content in enumerate(few.values()):
        (folder / f"{number}.png").write_bytes(content)
    with pytest.raises(BadInput, match=r"to train on \(12 no caption\)\. The first ones: no caption: 0\.png\.$"):
        prepare(Input(images=folder), tmp_path / "out", RUN)
    (folder / "metadata.jsonl").write_text('{"file_name": "0.png", "prompt": "a cat", "seed": 5}\n')
    with pytest.raises(
        BadInput, match=r"1 line without file.* keys are file_name, prompt, seed\. Name .*--text-column"
    ):
        prepare(Input(images=folder), tmp_path / "out", RUN)
    (folder / "test").mkdir()
    (folder / "0.png").rename(folder / "test" / "0.png")
    (folder / "test" / "0.txt").write_text("a cat")
    with pytest.raises(BadInput, match=r"1 held out"):
        prepare(Input(images=folder), tmp_path / "out", RUN)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"there are no rows"):
        prepare(Input(images=tmp_path / "empty"), tmp_path / "out", RUN)
    assert not (tmp_path / "out").exists()


def test_metadata_and_dotted_tars_become_the_same_shards(make, few, tmp_path):
    metadata, dotted = tmp_path / "metadata", tmp_path / "dotted"
    (metadata / "train").mkdir(parents=True)
    dotted.mkdir()
    rows = []
    with tarfile.open(dotted / "a.tar", "w") as tar:
        for number, (caption, content) in enumerate(few.items()):
            (metadata / "train" / f"{number}.png").write_bytes(content)
            rows.append({"file_name": f"{number}.png", "text": [caption, "another caption"]})
            (tmp_path / "caption").write_text(caption)
            tar.add(metadata / "train" / f"{number}.png", arcname=f"22.{number:02}.png")
            tar.add(tmp_path / "caption", arcname=f"22.{number:02}.txt")
    (metadata / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    manifests = [
        make(source=Input(images=folder), out=tmp_path / name)[0]
        for name, folder in {"a": metadata, "b": dotted}.items()
    ]
    assert [(manifest.pictures, manifest.left_out) for manifest in manifests] == [(12, {})] * 2
    assert samples_in(tmp_path / "a") == samples_in(tmp_path / "b") and samples_in(tmp_path / "a").keys() == few.keys()
    assert first_left_out(tmp_path / "a", 1) == {"more captions than the first, which is used": (12, ["train/0.png"])}


def test_pictures_of_phones(make, few, tmp_path):
    """AVIF is read by Pillow; HEIC needs a library that is not ours, and the reason names it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    picture = Image.open(io.BytesIO(next(iter(few.values()))))
    picture.save(folder / "1.AVIF", quality=95)
    (folder / "2.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(20))
    (folder / "3.png").write_bytes(b"\0\0\0\x18ftypmif1" + bytes(20))
    (folder / "4.png").write_bytes(b"\0\0\0\x18ftypwhat" + bytes(20))
    for number in range(1, 5):
        (folder / f"{number}.txt").write_text("a picture")
    manifest, _ = make(source=Input(images=folder))
    assert manifest.left_out == {"HEIC, which `pip install pillow-heif` makes readable": 2, "unreadable file": 1}
    assert manifest.splits["train"].samples == 1


def test_addresses_inside_the_network_are_left_out(make, few, tmp_path):
    with shard_server(tmp_path, ranged=False) as server:
        pq.write_table(pa.table({"URL": [f"{server.url}/0.png"], "TEXT": ["a cat"]}), tmp_path / "list.parquet")
        with pytest.raises(BadInput, match="1 private address"):
            make(source=Input(urls=tmp_path / "list.parquet"))
        with pytest.raises(BadInput, match=r"codec .*1 private address"):
            prepare(Input(urls=tmp_path / "list.parquet"), tmp_path / "other", RUN)
        assert server.requests == []


def test_the_card_says_what_the_set_is(make, drawn, tmp_path):
    manifest, _ = make(licence="cc-by-4.0")
    text = (tmp_path / "shards" / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["license"] == "cc-by-4.0" and header["task_categories"] == ["text-to-image"]
    kept = {
        sample.id
        for entry in manifest.splits.values()
        for name in entry.shards
        for sample in read_shard(tmp_path / "shards" / name)
    }
    pictures = sum((drawn / name).stat().st_size for name in kept)
    shards = sum(path.stat().st_size for path in (tmp_path / "shards").glob("*.parquet"))
    assert manifest.picture_bytes == pictures
    assert f"| Picture files over shards, bytes | {pictures / shards:.1f} |" in text
    assert f"| Samples, train | {manifest.splits['train'].samples} |" in text
    assert Image.open(tmp_path / "shards" / "samples.png").size == (8 * 64, 2 * 64)


def test_the_number_of_workers_changes_nothing(make, tmp_path):
    make(out=tmp_path / "one", workers=1)
    make(out=tmp_path / "many", workers=7)
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "many" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["a shard is gone", "a shard is shorter", "the manifest is broken"])
def test_damaged_shards_are_made_again(make, few, tmp_path, damage):
    first, _ = make(out=tmp_path / "out")
    shard = tmp_path / "out" / first.splits["train"].shards[0]
    if damage == "a shard is gone":
        shard.unlink()
    elif damage == "a shard is shorter":
        shard.write_bytes(shard.read_bytes()[:-1])
    else:
        (tmp_path / "out" / MANIFEST_FILE).write_text("{")
    again, is_made = make(out=tmp_path / "out", replace=damage == "the manifest is broken")
    assert is_made and again == first and read_manifest(tmp_path / "out") == first
    assert make(out=tmp_path / "out")[1] is False


def test_no_program_runs_for_a_picture(tmp_path, monkeypatch):
    """Pillow has Ghostscript draw what is a program in PostScript. A stranger's may have no end."""
    gs = tmp_path / "gs"
    gs.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/started\n')
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # what Pillow has found before
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png", "EPS")
    assert square_picture(tmp_path / "a.png", image_size=64) == "unreadable file"
    assert not (tmp_path / "started").exists()
