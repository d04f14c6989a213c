"""Pictures that are nearly the same as an earlier one: found, counted, left out; what is missed."""

import io
import json
import random
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from tests.training.data.prepare.test_prepare import RUN, codec_folder, drawn  # noqa: F401
from training.data.prepare import pictures as prepare_module
from training.data.prepare.pictures import Input, prepare
from training.data.sources import near as near_module
from training.data.sources.near import HASH_BYTES, MARK_BYTES, MOST_BITS, MOST_DIFFERENCE, NearDuplicates, mark_of
from training.data.sources.pictures import square_picture

SIZE = 64


def scene(seed, side=240):
    """A picture with detail of all sizes, as photos have it: noise whose strength falls with its frequency."""
    noise = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    frequency[0, 0] = 1
    layers = [np.fft.ifft2(np.fft.fft2(noise.standard_normal((side, side))) / frequency).real for _ in range(3)]
    layers = np.stack([layers[0] + 0.4 * layers[channel] for channel in range(3)], axis=-1)
    low, high = np.percentile(layers, (1, 99))
    return Image.fromarray((255 * np.clip((layers - low) / (high - low), 0, 1)).astype(np.uint8))


def recompressed(picture, quality):
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file)


def cropped(picture, share):
    cut = round(share * picture.width)
    return picture.crop((cut, cut, picture.width - cut, picture.height - cut))


COPIES = {
    "half the size": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "twice the size": lambda picture: picture.resize((picture.width * 2, picture.height * 2)),
    "JPEG 75": lambda picture: recompressed(picture, 75),
    "JPEG 30": lambda picture: recompressed(picture, 30),
    "2 % cut off each side": lambda picture: cropped(picture, 0.02),
    "5 % cut off each side": lambda picture: cropped(picture, 0.05),
}


def marked(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return mark_of(square_picture(file, image_size=SIZE))


def are_near(one, other):
    """By the definition, without any table."""
    bits = sum((a ^ b).bit_count() for a, b in zip(one[:HASH_BYTES], other[:HASH_BYTES], strict=True))
    colours = [np.frombuffer(mark[HASH_BYTES:], np.uint8).astype(float) for mark in (one, other)]
    return bits <= MOST_BITS and np.sqrt(np.mean((colours[0] - colours[1]) ** 2)) <= MOST_DIFFERENCE


def test_copies_are_found_and_different_pictures_are_not():
    """Those that the module names: what is found, what is not, and what is found wrongly."""
    pictures = [scene(seed) for seed in range(40)]
    marks = [marked(picture) for picture in pictures]
    found = {
        name: np.mean([are_near(mark, marked(copy(picture))) for picture, mark in zip(pictures, marks, strict=True)])
        for name, copy in COPIES.items()
    }
    assert found.pop("2 % cut off each side") >= 0.85 and found.pop("5 % cut off each side") <= 0.1
    assert set(found.values()) == {1.0}, found
    assert not any(are_near(one, other) for one, other in combinations(marks, 2))


def random_marks(count, drawn_from):
    """Hashes that differ in 0 to 12 bits from one of a few, with thumbnails of few kinds."""
    for _ in range(count):
        value = drawn_from.choice((0, 1 << 63, 0x0123456789ABCDEF, (1 << 64) - 1))
        for bit in drawn_from.sample(range(64), drawn_from.randrange(13)):
            value ^= 1 << bit
        yield value.to_bytes(HASH_BYTES, "little") + bytes(
            [drawn_from.choice((10, 17, 200))] * (MARK_BYTES - HASH_BYTES)
        )


def test_the_table_finds_what_a_comparison_of_all_finds_also_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(near_module, "LOOSE", 16)
    marks, kept, expected = list(random_marks(500, random.Random(7))), [], []
    for mark in marks:
        expected.append(any(are_near(mark, other) for other in kept))
        kept += [] if expected[-1] else [mark]
    assert 50 < sum(expected) < 450
    with NearDuplicates(tmp_path / "whole") as near:
        assert [near.add(mark) for mark in marks] == expected and near.keep() == len(kept)
    with NearDuplicates(tmp_path / "broken") as near:
        first = [near.add(mark) for mark in marks[:200]]
        count = near.keep()
        for mark in marks[200:300]:  # of a shard that is not finished
            near.add(mark)
    with NearDuplicates(tmp_path / "broken", count) as near:
        assert first + [near.add(mark) for mark in marks[200:]] == expected
    assert (tmp_path / "broken").read_bytes() == (tmp_path / "whole").read_bytes() == b"".join(kept)


@pytest.fixture
def copied(tmp_path):
    """Ten scenes, three of which are there again."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    again = {3: "half the size", 5: "JPEG 75", 8: "twice the size"}
    rows = [(f"{seed}.png", scene(seed)) for seed in range(10)]
    rows += [(f"{seed}-again.png", COPIES[name](scene(seed))) for seed, name in again.items()]
    for name, picture in rows:
        picture.save(folder / name)
    lines = [{"file": name, "caption": f"scene {name}"} for name, _ in rows]
    (folder / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_they_are_counted_and_left_out_on_request_also_after_a_kill(copied, codec_folder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(prepare_module, "ROWS_PER_SHARD", 4)

    def made(out, **settings):
        source = Input(images=copied, captions=copied / "captions.jsonl")
        return prepare(source, tmp_path / out, RUN, codec_file=codec_folder / "codec.safetensors", **settings)[0]

    kept, dropped = made("kept"), made("dropped", drops_near_duplicates=True)
    assert kept.near_duplicates == 3 and kept.splits["train"].samples == 13 and kept.left_out == {}
    assert dropped.near_duplicates == 3 and dropped.splits["train"].samples == 10
    assert dropped.left_out == {"near-duplicate": 3}
    listed = [json.loads(line) for line in (tmp_path / "dropped" / "left-out.jsonl").read_text().splitlines()]
    assert {one["reason"] for one in listed} == {"near-duplicate"}
    assert {one["file"].split(".")[0].split("-")[0] for one in listed} == {"3", "5", "8"}
    assert "| Nearly the same as an earlier picture | 3 |" in (tmp_path / "dropped" / "README.md").read_text()

    def stop(stage, done, total):
        if stage == "Encoding" and done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made("broken", drops_near_duplicates=True, progress=stop)
    assert made("broken", drops_near_duplicates=True) == dropped
    for path in (tmp_path / "dropped").iterdir():
        assert (tmp_path / "broken" / path.name).read_bytes() == path.read_bytes(), path.name
