"""Stories: the same for the same seed, held out by their openings, short, and read by `prepare --text`."""

import itertools
import json
import re

from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from training.cli import build_app
from training.data.demo.captions import SPLITS
from training.data.demo.stories import (
    NEW_COMBINATIONS,
    PAINTS,
    PLOTS,
    STORIES_FILE,
    THINGS,
    prompts,
    story_at,
    write_stories,
)
from training.data.store.sets import open_shards

STORIES = [story_at(0, index) for index in range(4000)]


def pairs_in(text):
    """(colour, thing) pairs that a text names, read from its words."""
    words = re.findall(r"\w+", text)
    return {(one, two) for one, two in itertools.pairwise(words) if one in PAINTS and two in THINGS}


@given(st.integers(), st.integers(min_value=0, max_value=10**9))
def test_seed_and_index_decide_a_story_of_three_to_six_short_sentences(seed, index):
    story = story_at(seed, index)
    assert story == story_at(seed, index)
    assert 3 <= len(story.sentences) <= 6
    assert all(re.fullmatch(r"[A-Z][a-zA-Z ,]{6,90}\.", sentence) for sentence in story.sentences)
    assert story.text.startswith(f"{story.opening} ") and story.opening.count(".") == 2


def test_every_plot_is_told_and_few_stories_are_equal():
    endings = {story.sentences[1].split()[1] for story in STORIES}
    assert {"goes", "loses", "has", "puts", "is"} <= endings and len(PLOTS) == 6
    assert len({story.text for story in STORIES}) > 0.98 * len(STORIES)


def test_stories_are_short_and_have_few_different_words():
    """A model of the demo's size has blocks of 128 tokens and some hundred ids."""
    words = [re.findall(r"\w+|[.,]", story.text) for story in STORIES]
    assert max(map(len, words)) <= 50
    assert 100 < len({word for story in words for word in story}) < 200


def test_an_opening_is_in_one_split_only():
    openings = {split: {story.opening for story in STORIES if story.split == split} for split in SPLITS}
    assert not openings["train"] & openings["held-out"] and not openings["train"] & openings["new-pairs"]
    assert 0.08 < len(openings["held-out"]) / len(STORIES) < 0.17


def test_training_never_combines_some_colours_and_things():
    seen = {split: set() for split in SPLITS}
    for story in STORIES:
        seen[story.split] |= pairs_in(story.text)
        assert pairs_in(story.text) == story.things
    assert not (seen["train"] | seen["held-out"]) & NEW_COMBINATIONS
    assert seen["new-pairs"] >= NEW_COMBINATIONS and len(NEW_COMBINATIONS) == len(THINGS)
    assert len(seen["train"]) == len(PAINTS) * len(THINGS) - len(NEW_COMBINATIONS)


def test_the_kinds_of_prompts_are_what_they_say(tmp_path):
    write_stories(tmp_path / "set", count=1500, seed=7)
    rows = [json.loads(line) for line in (tmp_path / "set" / STORIES_FILE).read_text().splitlines()]
    trained = [row["text"] for row in rows if row["split"] == "train"]
    seen, unseen, new = (prompts(kind, 80, 7) for kind in ("seen", "unseen", "never combined"))
    assert all(any(text.startswith(f"{prompt} ") for text in trained) for prompt in seen)
    assert not any(pairs_in(prompt) & NEW_COMBINATIONS for prompt in unseen)
    assert all(pairs_in(prompt) & NEW_COMBINATIONS for prompt in new)
    everywhere = (story_at(seed, index) for seed in (0, 7, 8) for index in range(2000))
    openings = {story.opening for story in everywhere if story.split == "train"}
    assert not set(unseen) & openings and not set(new) & openings
    assert all(len(set(asked)) == 80 for asked in (seen, unseen, new))
    assert prompts("unseen", 80, 7) == unseen != prompts("unseen", 80, 8)


def test_from_the_command_to_shards_whose_words_are_single_ids(tmp_path):
    def call(*arguments):
        result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    output = call("stories", "--out", tmp_path / "text", "--count", 3000, "--seed", 1)
    assert "Made 3000 stories" in output and " train, " in output
    flags = ["--text", tmp_path / "text", "--vocabulary", 640, "--block-length", 128]
    call("prepare", *flags, "--out", tmp_path / "shards")
    train, held_out = (open_shards(tmp_path / "shards", split, kind="text") for split in ("train", "held-out"))
    assert train.samples > held_out.samples > 0
    for story in STORIES[:200]:
        (ids,) = train.tokenizer.encode([story.text])
        assert len(ids) == len(re.findall(r"\w+|[.,]", story.text))
