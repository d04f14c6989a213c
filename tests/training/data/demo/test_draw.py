"""Drawn pictures: areas by geometry, places by caption, equal for equal seeds, sets whole or not at all."""

import hashlib
import json
import math
import random

import numpy as np
import pytest
from PIL import Image

from training.data.demo.captions import BACKGROUNDS, COLOURS, NEW_PAIRS, parse_caption
from training.data.demo.draw import draw_picture, draw_set, shape_mask
from training.data.demo.stories import write_stories

SINE = math.sin(math.pi / 5)
AREAS = {
    "circle": math.pi,
    "ring": math.pi * (1 - 0.52**2),
    "square": 1.72**2,
    "triangle": 1.75,
    "diamond": 1.6,
    "cross": 2 * 0.72 * 2 - 0.72**2,
    "star": 10 * 0.5 * 0.44 * SINE,
    "heart": 180 * math.pi / 256,
}
"""Area of each shape of radius 1, by elementary geometry (heart: the integral of its curve)."""


@pytest.mark.parametrize("shape", AREAS)
def test_area_is_that_of_the_geometry(shape):
    mask = np.asarray(shape_mask(shape, size=96, radius=0.4), dtype=float) / 255
    assert mask.sum() == pytest.approx(AREAS[shape] * (0.4 * 96) ** 2, rel=0.01)


@pytest.mark.parametrize("shape", AREAS)
def test_edges_are_smooth_and_shapes_symmetric(shape):
    mask = np.asarray(shape_mask(shape, size=64, radius=0.33), dtype=float)
    assert np.abs(mask - mask[:, ::-1]).max() <= 40
    assert shape == "square" or len(np.unique(mask)) > 8


@pytest.mark.parametrize(
    "caption, row, column",
    [
        ("a red square at the top left", 0.25, 0.25),
        ("a red square at the bottom", 0.75, 0.5),
        ("a red square on the right", 0.5, 0.75),
        ("a large red square in the centre on a black background", 0.5, 0.5),
    ],
)
def test_place_is_where_the_caption_says(caption, row, column):
    picture = np.asarray(draw_picture(parse_caption(caption), random.Random(0)))
    rows, columns = np.nonzero((picture == COLOURS["red"]).all(axis=-1))
    assert rows.mean() == pytest.approx(row * 64 - 0.5, abs=1) and columns.mean() == pytest.approx(
        column * 64 - 0.5, abs=1
    )
    background = BACKGROUNDS["black" if "black" in caption else "white"]
    assert (picture[0, -1] == background).all()


def test_relation_puts_the_first_thing_on_its_side():
    for seed in range(10):
        picture = np.asarray(
            draw_picture(parse_caption("a red circle to the left of a blue star"), random.Random(seed))
        )
        red, blue = (np.nonzero((picture == COLOURS[name]).all(axis=-1))[1] for name in ("red", "blue"))
        assert red.max() < 32 <= blue.min()


def test_no_thing_touches_the_edge():
    for caption in ("a large red square", "a red ring at the bottom right", "three red circles", "two red diamonds"):
        for seed in range(20):
            picture = np.asarray(draw_picture(parse_caption(caption), random.Random(seed)))
            frame = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
            assert (frame == BACKGROUNDS["white"]).all()


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_seed_draws_the_same_set(tmp_path):
    splits = draw_set(tmp_path / "a", count=60, seed=3)
    draw_set(tmp_path / "b", count=60, seed=3)
    draw_set(tmp_path / "c", count=60, seed=4)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    rows = [json.loads(line) for line in (tmp_path / "a" / "captions.jsonl").read_text().splitlines()]
    assert len(rows) == 60 == sum(splits.values())
    for row in rows:
        new = any((thing.colour, thing.shape) in NEW_PAIRS for thing in parse_caption(row["caption"]).things)
        assert (row["split"] == "new-pairs") == new
        assert Image.open(tmp_path / "a" / row["file"]).size == (64, 64)


@pytest.mark.parametrize("write", [draw_set, write_stories])
def test_an_interrupted_set_leaves_nothing(tmp_path, write):
    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "set", count=9, seed=0, progress=stop)
    assert list(tmp_path.iterdir()) == []
