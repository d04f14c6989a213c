"""Preparing shards: a maintainer's pictures of every kind, filters by reason, interruption, the codes themselves."""

import json
import random

import numpy as np
import pytest
import torch
from PIL import Image

from training.config import load_recipe
from training.data import prepare as prepare_module
from training.data.captions import caption_of, draw_scene
from training.data.draw import draw_picture, draw_set
from training.data.prepare import prepare, square_picture
from training.data.shards import check_file, read_manifest, read_shard
from training.data.tokenizer import Tokenizer
from training.errors import BadInput
from training.model.codec import load_codec, save_codec, train_small_codec

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
        return prepare(
            images, captions, out, settings.pop("run", RUN), codec_file=codec_folder / "codec.safetensors", **settings
        )

    return make


def write_rows(folder, rows):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "captions.jsonl").write_text(lines, encoding="utf-8-sig")  # as Windows' editors write


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


def test_other_input_needs_replace(make, tmp_path):
    make()
    with pytest.raises(BadInput, match="--replace"):
        make(seed=1)
    before = (tmp_path / "shards" / "train-00000.parquet").read_bytes()
    assert make(seed=1, replace=True)[1]
    assert (tmp_path / "shards" / "train-00000.parquet").read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


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
    write_shard = prepare_module.__dict__["read_manifest"].__globals__["write_shard"]
    make()
    assert "train-00000.parquet" not in written and "train-00001.parquet" not in written and written
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "shards" / path.name).read_bytes() == path.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "shards"}


def test_rows_after_a_shard_without_a_usable_picture_are_encoded(make, drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "ROWS_PER_SHARD", 1)
    there = [
        row for row in map(json.loads, (drawn / "captions.jsonl").read_text().splitlines()) if row["split"] == "train"
    ]
    missing = [{**row, "file": f"missing-{row['file']}"} for row in there[:6]]
    rows = [row for pair in zip(missing, there[:6], strict=True) for row in pair]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest, _ = make(captions=tmp_path / "captions.jsonl")
    found = {sample.id for name in manifest.splits["train"].shards for sample in read_shard(tmp_path / "shards" / name)}
    assert found == {row["file"] for row in there[:6]} and manifest.left_out == {"missing file": 6}


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
    assert (square_picture(folder / "deep.png", image_size=64, max_aspect_ratio=2) == 40_000 // 256).all()
    good = ["photo.jpg", "grey.png", "print.tif", "palette.gif", "deep.png", "wide.png"]
    rows = [{"file": name, "caption": "a caption"} for name in good]
    rows += [
        {"file": name, "caption": "a caption"}
        for name in ("banner.png", "float.tif", "torn.png", "text.png", "gone.png")
    ]
    rows += [{"file": "../outside.png", "caption": "a caption"}, {"file": "photo.jpg", "caption": "x "}]
    rows += [{"file": "photo.jpg", "caption": "a caption", "nsfw": "NSFW"}, {"file": "photo.jpg"}, ["photo.jpg"]]
    write_rows(folder, rows)
    with (folder / "captions.jsonl").open("a") as file:
        file.write('{"file": "photo.jpg", "capt\n\n')
        file.write(
            '{"file": "photo.jpg", "caption": "half a \\ud800 pair"}\n{"file": "a\\u0000b", "caption": "null"}\n'
        )
    manifest, _ = make(folder)
    assert manifest.left_out == {
        "broken line": 5,
        "extreme aspect ratio": 1,
        "marked unsafe": 1,
        "missing file": 2,
        "short caption": 1,
        "unreadable file": 3,
    }
    assert manifest.splits["train"].samples == len(good) and manifest.pictures == len(rows) + 3
    assert {sample.id for sample in read_shard(tmp_path / "shards" / "train-00000.parquet")} == set(good)


def test_the_middle_is_kept_and_turned_upright(tmp_path):
    """A wide picture, green in the middle and red at both ends, stored lying on its side."""
    pixels = np.zeros((100, 180, 3), np.uint8)
    pixels[:, :, 0] = 255
    pixels[:, 40:140] = (0, 255, 0)
    pixels[:50, 40:140] = (0, 0, 255)
    picture = Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.png", exif=exif)
    found = square_picture(tmp_path / "turned.png", image_size=50, max_aspect_ratio=2.0)
    assert found.shape == (3, 50, 50) and found.dtype == np.uint8
    assert found[:, 12, 25].tolist() == [0, 0, 255] and found[:, 38, 25].tolist() == [0, 255, 0]
    assert found[0].max() <= 40


def test_transparent_pixels_become_white(tmp_path):
    Image.fromarray(np.zeros((64, 64, 4), np.uint8)).save(tmp_path / "clear.png")
    assert (square_picture(tmp_path / "clear.png", image_size=64, max_aspect_ratio=2.0) == 255).all()


def test_nothing_left_is_an_error_with_the_reasons(make, tmp_path):
    write_rows(tmp_path, [{"file": "gone.png", "caption": "a caption"}] * 3)
    with pytest.raises(BadInput, match="3 missing file"):
        make(tmp_path, out=tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_folders_of_others_are_not_touched(make, tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "mine.txt").write_text("keep me")
    with pytest.raises(BadInput, match="not empty"):
        make(replace=True)
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["mine.txt"]


def test_missing_captions_and_large_vocabularies_are_refused(make, drawn, tmp_path):
    with pytest.raises(BadInput, match="--captions"):
        make(captions=tmp_path / "none.jsonl")
    large = RUN.model_copy(update={"model": RUN.model.model_copy(update={"text_vocab_size": 32_100})})
    with pytest.raises(BadInput, match="--tokenizer FILE"):
        make(run=large)
    Tokenizer.train([caption_of(draw_scene(random.Random(index))) for index in range(200)], 64).save(
        tmp_path / "t.json"
    )
    small = RUN.model_copy(update={"model": RUN.model.model_copy(update={"text_vocab_size": 8})})
    with pytest.raises(BadInput, match="smaller tokenizer"):
        make(run=small, tokenizer_file=tmp_path / "t.json")
