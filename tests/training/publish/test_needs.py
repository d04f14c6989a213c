"""Every recipe of the project can say what it needs; test_join_commands.py compares the bytes with the codec's."""

from __future__ import annotations

import pytest

from training.publish.needs import needs_of
from training.recipe import RECIPES, load_recipe


@pytest.mark.parametrize("recipe", sorted(file.stem for file in RECIPES.glob("*.toml")))
def test_needs_of_every_recipe_are_known(recipe):
    needs = needs_of(load_recipe(recipe))
    assert set(needs) == {"least_memory_bytes", "sent_bytes"} and all(needs.values())


def test_a_run_with_powersgd_does_not_say_what_it_sends():
    run = load_recipe("demo")
    run = run.model_copy(update={"swarm": run.swarm.model_copy(update={"powersgd_rank": 4})})
    assert needs_of(run)["sent_bytes"] is None
