"""The quality figure: true drawings reach it, strangers' prompts give chance, and the interval is Wilson's."""

import random

import numpy as np
import pytest
import torch

from training.data.demo.captions import caption_of, draw_scene
from training.data.demo.draw import draw_picture
from training.errors import BadInput
from training.generate.evaluate import choose_captions, clip_score, evaluate_by_clip, evaluate_pictures, wilson_interval
from training.generate.pictures import Picture


def drawings(count):
    """Pictures as a perfect model would draw them."""
    random_numbers = random.Random(3)
    pictures = []
    for seed in range(count):
        scene = draw_scene(random_numbers)
        pixels = np.asarray(draw_picture(scene, random_numbers))
        pictures.append(Picture(prompt=caption_of(scene), seed=seed, codes=np.zeros(1, np.uint16), pixels=pixels))
    return pictures


def test_perfect_pictures_match_and_strangers_do_not():
    result = evaluate_pictures(drawings(24))
    assert result.count == 24 == len(result.verdicts)
    assert result.shares["matched"] > 0.9
    assert result.chance["matched"] < 0.1
    assert result.chance["shape"] < 0.4 and result.chance["colour"] < 0.4
    low, high = result.matched_interval
    assert low < result.shares["matched"] <= high + 1e-9


def test_wrong_pictures_are_counted_as_wrong():
    right, wrong = drawings(12), drawings(12)
    mixed = [
        picture if at % 2 else Picture(prompt=picture.prompt, seed=0, codes=picture.codes, pixels=picture.pixels * 0)
        for at, picture in enumerate(wrong)
    ]
    share = evaluate_pictures(right).shares["matched"]
    assert evaluate_pictures(mixed).shares["matched"] == pytest.approx(share / 2, abs=0.1)


def test_one_picture_has_no_strangers():
    assert evaluate_pictures(drawings(1)).chance is None
    with pytest.raises(BadInput, match="no picture"):
        evaluate_pictures([])


class Oracle:
    """A judge that knows which caption each picture shows: that of its first pixel."""

    def __init__(self, captions):
        self.captions = captions

    def embed_texts(self, texts):
        return torch.eye(len(self.captions))[[self.captions.index(text) for text in texts]]

    def embed_pictures(self, pictures):
        return torch.eye(len(self.captions))[[int(picture[0, 0, 0]) for picture in pictures]]


def test_clip_counts_the_pictures_that_it_finds_nearest_to_their_own_caption():
    captions = [f"caption {number}" for number in range(30)]
    shown = [number if number < 24 else (number + 1) % 30 for number in range(30)]  # the last six show another caption
    pictures = [
        Picture(prompt=caption, seed=0, codes=np.zeros(1, np.uint16), pixels=np.full((2, 2, 3), number, np.uint8))
        for caption, number in zip(captions, shown, strict=True)
    ]
    result = evaluate_by_clip(pictures, Oracle(captions), seed=0)
    assert result.choices == 10 and result.share == 24 / 30
    assert clip_score(pictures, Oracle(captions)) == pytest.approx(24 / 30) == result.score
    assert result.interval == wilson_interval(24, 30)
    with pytest.raises(BadInput, match="at least two different captions"):
        evaluate_by_clip(pictures[:1] * 3, Oracle(captions), seed=0)


@pytest.mark.parametrize(
    "right, count, low, high",
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_as_published(right, count, low, high):
    """Newcombe 1998, Statistics in Medicine 17, table I, method 3 (81 of 263); the ends by its formula."""
    assert wilson_interval(right, count) == pytest.approx((low, high), abs=1e-4)


def test_captions_are_chosen_once_each_while_they_last():
    captions = ["a red ring", "a blue star", "a red ring", "a pink heart"]
    assert sorted(choose_captions(captions, count=3, seed=1)) == ["a blue star", "a pink heart", "a red ring"]
    assert choose_captions(captions, count=2, seed=1) == choose_captions(captions, count=2, seed=1)
    assert len({tuple(choose_captions(captions, count=3, seed=seed)) for seed in range(20)}) > 3
    assert sorted(choose_captions(captions, count=6, seed=1)) == sorted(
        ["a blue star", "a pink heart", "a red ring"] * 2
    )
