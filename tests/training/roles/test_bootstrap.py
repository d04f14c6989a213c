"""The bootstrap peer as a program of its own: what its maintainer is told."""

from __future__ import annotations

import sys

import pytest

from tests.support.programs import until
from training.recipe import RECIPES, load_recipe
from training.roles.bootstrap import of_strangers

OUTSIDE = "/ip4/198.51.100.7/tcp/31337"
WARNING = "Warning: whoever learns these addresses may take part"


@pytest.mark.swarm
@pytest.mark.parametrize(
    "announced, aggregation, warns",
    [(OUTSIDE, "mean", True), (OUTSIDE, "centered-clip", False), ("", "mean", False)],
)
def test_who_lets_strangers_into_a_mean_is_warned(programs, tmp_path, announced, aggregation, warns):
    recipe = tmp_path / "my-run.toml"
    text = RECIPES.joinpath("demo.toml").read_text()
    assert text.count('aggregation = "mean"') == 1
    recipe.write_text(text.replace('aggregation = "mean"', f'aggregation = "{aggregation}"'))
    command = [sys.executable, "-m", "training", "bootstrap", "--recipe", recipe, "--state-dir", tmp_path / "state"]
    command += ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", *(["--announce-maddrs", announced] if announced else [])]
    printed = tmp_path / "printed"
    with printed.open("w") as file:
        bootstrap = programs.start(command, stdout=file)
    until(lambda: "Ctrl-C stops this peer" in printed.read_text(), said=printed.read_text)
    assert bootstrap.poll() is None
    assert (WARNING in printed.read_text()) == warns


@pytest.mark.parametrize("recipe, clips", [("demo", True), ("llama-150m", False)])
def test_centered_clip_is_advised_only_where_a_recipe_may_say_it(recipe, clips):
    run = load_recipe(recipe)
    assert run.swarm.local_updates != clips
    assert ("centered-clip" in of_strangers(run, [OUTSIDE])) == clips
