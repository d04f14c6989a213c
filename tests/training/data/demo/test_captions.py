"""The caption grammar: said and read back, held out, short enough for the model."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.demo.captions import (
    BACKGROUNDS,
    COLOURS,
    NEW_PAIRS,
    PLACES,
    RELATIONS,
    SHAPES,
    SIZES,
    SPLITS,
    Scene,
    Thing,
    caption_of,
    draw_scene,
    parse_caption,
)

things = st.builds(Thing, shape=st.sampled_from(list(SHAPES)), colour=st.sampled_from(list(COLOURS)))
sized = st.builds(
    Thing,
    shape=st.sampled_from(list(SHAPES)),
    colour=st.sampled_from(list(COLOURS)),
    size=st.sampled_from([None, *SIZES]),
)
backgrounds = st.sampled_from([None, *BACKGROUNDS])
scenes = st.one_of(
    st.builds(Scene, things=st.tuples(sized), place=st.sampled_from([None, *PLACES]), background=backgrounds),
    st.builds(Scene, things=st.tuples(things), count=st.sampled_from([2, 3]), background=backgrounds),
    st.builds(
        Scene, things=st.tuples(things, things), relation=st.sampled_from(list(RELATIONS)), background=backgrounds
    ),
)


@given(scenes)
def test_a_caption_reads_back_as_its_scene(scene):
    assert parse_caption(caption_of(scene)) == scene


@pytest.mark.parametrize(
    "caption, expected",
    [
        ("a red circle", Scene(things=(Thing(shape="circle", colour="red"),))),
        ("  A small  Orange heart. ", Scene(things=(Thing(shape="heart", colour="orange", size="small"),))),
        ("two cyan crosses", Scene(things=(Thing(shape="cross", colour="cyan"),), count=2)),
        (
            "a red circle above a blue square on a grey background",
            Scene(
                things=(Thing(shape="circle", colour="red"), Thing(shape="square", colour="blue")),
                relation="above",
                background="grey",
            ),
        ),
    ],
)
def test_captions_by_hand(caption, expected):
    assert parse_caption(caption) == expected


def test_captions_fit_the_demo_model():
    """24 text tokens and a vocabulary of 64 ids, padding and unknown among them."""
    captions = [caption_of(draw_scene(random.Random(index))).split() for index in range(5000)]
    assert max(map(len, captions)) <= 24
    assert len({word for caption in captions for word in caption}) <= 62


def test_new_pairs_leave_every_colour_and_shape_to_training():
    assert {colour for colour, _ in NEW_PAIRS} == set(COLOURS) and {shape for _, shape in NEW_PAIRS} == set(SHAPES)
    assert len(NEW_PAIRS) == 8
    seen = {split: set() for split in SPLITS}
    for index in range(5000):
        scene = draw_scene(random.Random(index))
        seen[scene.split] |= {(thing.colour, thing.shape) for thing in scene.things}
    assert not (seen["train"] | seen["held-out"]) & NEW_PAIRS
    assert len(seen["train"]) == 64 - 8
    assert seen["new-pairs"] >= NEW_PAIRS


def test_no_caption_is_both_trained_on_and_held_out():
    captions = {split: set() for split in SPLITS}
    for index in range(5000):
        scene = draw_scene(random.Random(index))
        captions[scene.split].add(caption_of(scene))
        assert parse_caption(caption_of(scene)).split == scene.split
    assert not captions["train"] & captions["held-out"]
    assert 0.05 < len(captions["held-out"]) / len(captions["train"]) < 0.15
    assert not any(re.fullmatch(r"an? \w+ \w+", caption) for caption in captions["held-out"])  # "a red circle"
