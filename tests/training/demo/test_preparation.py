"""The codec that the demo ships: it is whole, the demo uses it, and the project's own program makes its like."""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.support.programs import run_program
from training.data.demo.captions import draw_scene
from training.data.demo.draw import draw_picture
from training.demo import preparation
from training.demo.config import DemoConfig
from training.demo.preparation import CODEC, fits
from training.model.codecs.codec import CONFIG_FILE, WEIGHTS_FILE, load_codec
from training.recipe import RECIPES, load_recipe, parse_recipe

DEMO = load_recipe("demo")
ERROR = 0.00046
"""Mean squared error of the shipped codec on the 12 000 pictures of the demo, as `prepare` has printed it."""


@pytest.fixture(scope="module")
def pictures():
    """200 pictures that no codec was trained on, with channels first, in [0, 1]."""
    drawn = []
    for number in range(200):
        numbers = random.Random(f"new/{number}")
        drawn.append(np.asarray(draw_picture(draw_scene(numbers), numbers)))
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 255


def error_of(codec, pictures):
    return float((codec.decode(codec.encode(pictures)) - pictures).square().mean())


def test_the_shipped_codec_is_whole_small_and_good(pictures):
    codec = load_codec(CODEC, DEMO.codec)  # it compares the digest
    assert (CODEC / WEIGHTS_FILE).stat().st_size < 500_000
    assert error_of(codec, pictures) < 1.5 * ERROR


def test_it_fits_the_demos_recipe_and_no_other():
    assert fits(DEMO.codec)
    assert not fits(load_recipe("dalle-2021").codec)
    text = (RECIPES / "demo.toml").read_text()
    other = text.replace("codebook_size = 256", "codebook_size = 64").replace("vocab_size = 256", "vocab_size = 64")
    assert not fits(parse_recipe(other).codec)
    assert not fits(DEMO.codec.model_copy(update={"weights": "other.safetensors"}))


@pytest.mark.parametrize("recipe, is_used", [("demo", True), ("dalle-2021", False)])
def test_the_demo_encodes_with_it(tmp_path, monkeypatch, recipe, is_used):
    called = []
    monkeypatch.setattr(preparation, "_work", lambda config, console, stop, *command: called.append(command))
    config = DemoConfig(recipe=recipe, run_dir=tmp_path)
    preparation.prepare(config, load_recipe(recipe), Console(quiet=True), stop=None)
    draw, prepare = called
    assert draw[0] == "draw" and prepare[0] == "prepare"
    assert (("--codec", str(CODEC / WEIGHTS_FILE)) in pairwise(prepare)) == is_used


@pytest.mark.exhaustive
@pytest.mark.programs
@pytest.mark.timeout(3600)
def test_the_command_makes_its_like_again(tmp_path, pictures):
    """Of equal weights on the same kind of machine; elsewhere sums are rounded otherwise, and training diverges."""

    def call(*words):
        program = [sys.executable, "-m", "training", *words]
        run_program(program, within=3000).check_returncode()

    drawn, shards = tmp_path / "pictures", tmp_path / "shards"
    call("draw", "--out", drawn)
    call("prepare", "--images", drawn, "--captions", drawn / "captions.jsonl", "--out", shards)
    again, shipped = load_codec(shards, DEMO.codec), load_codec(CODEC, DEMO.codec)
    assert (shards / WEIGHTS_FILE).stat().st_size == (CODEC / WEIGHTS_FILE).stat().st_size
    assert {path.name for path in CODEC.iterdir()} == {WEIGHTS_FILE, CONFIG_FILE}
    assert error_of(again, pictures) == pytest.approx(error_of(shipped, pictures), rel=0.3)
