"""The checker: true pictures pass, pictures drawn for another caption do not, blur and noise change nothing."""

import dataclasses
import random

import numpy as np
import pytest
from PIL import Image, ImageFilter

from training.data.demo.captions import COLOURS, SHAPES, caption_of, draw_scene, parse_caption
from training.data.demo.draw import draw_picture
from training.errors import BadInput
from training.generate.judge import judge

DRAWN = 150


def drawn(seed, count=DRAWN):
    for index in range(count):
        random_numbers = random.Random(f"{seed}/{index}")
        scene = draw_scene(random_numbers)
        yield scene, np.asarray(draw_picture(scene, random_numbers)), random_numbers


def changed(scene, attribute, random_numbers):
    """The scene with one thing's shape or colour replaced by another."""
    at = random_numbers.randrange(len(scene.things))
    values = {"shape": SHAPES, "colour": COLOURS}[attribute]
    other = random_numbers.choice([value for value in values if value != getattr(scene.things[at], attribute)])
    things = list(scene.things)
    things[at] = dataclasses.replace(things[at], **{attribute: other})
    return dataclasses.replace(scene, things=tuple(things))


def blurred(picture, seed):
    """As an image codec might leave it: edges 1 pixel softer, noise of 8 grey levels."""
    soft = np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(1)), dtype=float)
    return np.clip(soft + np.random.default_rng(seed).normal(0, 8, soft.shape), 0, 255).astype(np.uint8)


def test_true_pictures_are_accepted():
    verdicts = [judge(picture, caption_of(scene)) for scene, picture, _ in drawn("true")]
    assert sum(verdict.exact for verdict in verdicts) >= 0.98 * DRAWN


def test_blurred_and_noisy_pictures_are_accepted():
    verdicts = [judge(blurred(picture, 0), caption_of(scene)) for scene, picture, _ in drawn("blurred")]
    assert sum(verdict.matched for verdict in verdicts) >= 0.95 * DRAWN


@pytest.mark.parametrize("attribute", ["shape", "colour"])
@pytest.mark.parametrize(
    "treat", [lambda picture: picture, lambda picture: blurred(picture, 1)], ids=["clear", "blurred"]
)
def test_pictures_of_another_caption_are_rejected(attribute, treat):
    wrong = [
        judge(treat(picture), caption_of(changed(scene, attribute, random_numbers)))
        for scene, picture, random_numbers in drawn(attribute)
    ]
    assert sum(not getattr(verdict, attribute) for verdict in wrong) >= 0.97 * DRAWN


def test_chance_is_one_in_eight_each():
    """Captions of one thing against pictures of one thing that was drawn blindly."""
    random_numbers = random.Random(0)
    verdicts = []
    for _ in range(400):
        blind = [
            parse_caption(
                f"a {random_numbers.choice(list(COLOURS))} {random_numbers.choice(list(SHAPES))}".replace("a o", "an o")
            )
            for _ in range(2)
        ]
        verdicts.append(judge(np.asarray(draw_picture(blind[0], random_numbers)), caption_of(blind[1])))
    for share, chance in (
        (sum(verdict.shape for verdict in verdicts) / 400, 1 / 8),
        (sum(verdict.colour for verdict in verdicts) / 400, 1 / 8),
        (sum(verdict.matched for verdict in verdicts) / 400, 1 / 64),
    ):
        assert abs(share - chance) < 3.5 * (chance * (1 - chance) / 400) ** 0.5


@pytest.mark.parametrize(
    "drawn_caption, caption, wrong",
    [
        ("two red circles", "a red circle", "count"),
        ("two red circles", "three red circles", "count"),
        ("a red circle above a blue square", "a red circle below a blue square", "relation"),
        ("a red circle to the left of a blue square", "a red circle above a blue square", "relation"),
        ("a red circle at the top", "a red circle at the bottom", "place"),
        ("a red circle in the centre", "a red circle at the top left", "place"),
        ("a small red circle", "a large red circle", "size"),
        ("a red circle", "a small red circle", "size"),
        ("a red circle on a black background", "a red circle on a grey background", "background"),
    ],
)
def test_each_other_promise_is_judged_alone(drawn_caption, caption, wrong):
    picture = np.asarray(draw_picture(parse_caption(drawn_caption), random.Random(1)))
    verdict = judge(picture, caption)
    names = [field.name for field in dataclasses.fields(verdict) if field.name != "seen"]
    assert [name for name in names if not getattr(verdict, name)] == [wrong]
    assert verdict.matched and not verdict.exact


def test_one_of_two_things_missing_or_swapped_is_no_match():
    caption = "a red circle above a blue square"
    for other in ("a red circle", "a blue square", "a blue circle above a red square", "two red circles"):
        assert not judge(np.asarray(draw_picture(parse_caption(other), random.Random(2))), caption).matched


def test_a_second_thing_of_another_kind_is_no_match():
    picture = np.asarray(draw_picture(parse_caption("a red circle above a blue square"), random.Random(0)))
    assert not judge(picture, "a red circle").matched


def test_empty_noise_and_scribble_are_no_match():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for picture in (np.zeros((64, 64, 3), np.uint8), np.full((64, 64, 3), 250, np.uint8), noise):
        verdict = judge(picture, "a red circle")
        assert not verdict.shape and not verdict.colour


@pytest.mark.parametrize("picture", [np.zeros((64, 64)), np.zeros((64, 64, 3)), np.zeros((64, 32, 3), np.uint8)])
def test_other_arrays_are_refused(picture):
    with pytest.raises(BadInput, match="uint8"):
        judge(picture, "a red circle")
