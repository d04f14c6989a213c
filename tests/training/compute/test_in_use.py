"""The settings in use are said with their reasons."""

from __future__ import annotations

import pytest

from training.compute.in_use import settings_in_use
from training.recipe import load_recipe, read_recipe, recipe_names

DEMO = load_recipe("demo")


def with_swarm(run=DEMO, **changes):
    return run.model_copy(update={"swarm": run.swarm.model_copy(update=changes)})


def in_use(run, parameters=10**6, threads=1):
    return settings_in_use(run.swarm, optimizer=run.optimizer.name, parameters=parameters, threads=threads)


@pytest.mark.parametrize("name", recipe_names())
def test_each_recipe_has_its_settings_in_use(name):
    assert len(in_use(load_recipe(name), threads=2)) >= 6


def test_settings_in_use_follow_the_recipe():
    def reasons(run):
        return {choice.name: f"{choice.value}: {choice.reason}" for choice in in_use(run)}

    assert "the update: set by the recipe; it runs while the next epoch computes" in reasons(DEMO)["meanwhile"]
    both = reasons(with_swarm(mode="delayed"))["meanwhile"]
    assert "the update and the average of gradients" in both
    local = reasons(with_swarm(mode="diloco"))
    assert local["meanwhile"].startswith("nothing: local updates") and "SGD on the host" in local["optimizer"]
    overlapped = reasons(with_swarm(mode="diloco", delay_outer_step=True))["meanwhile"]
    assert overlapped == "the exchange: set by the recipe; it runs while the next epoch computes"
    sparse = reasons(with_swarm(mode="sparse"))
    assert sparse["in 2 bit"].startswith("100 of each 4,096 distances: ") and sparse["meanwhile"] == local["meanwhile"]
    assert "each sends at most 3.3 MiB" in sparse["times"]  # not messages of 199 KiB: an average of 10**6 parameters
    assert "uniform8" in reasons(load_recipe("dalle-2021"))["in 8 bit"]
    assert "in 16 bit" in reasons(with_swarm(gradient_codec="float16"))
    whole = reasons(with_swarm(gradient_codec="float32", state_bits=8))["in 32 bit"]
    assert whole.startswith("gradients (float32), all tensors: set by the recipe; parameters in 32 bit every")


@pytest.mark.parametrize(
    "name, parameters, rate", [("dalle-2021", 125_894_244, "29 Mbit/s"), ("llama-150m", 151_181_184, "7.1 Mbit/s")]
)
def test_the_link_that_the_recipe_names_is_the_one_that_it_takes(name, parameters, rate):
    """As the recipe says beside its timeout."""
    every = in_use(load_recipe(name), parameters)
    assert f"at least {rate}" in next(choice.reason for choice in every if choice.name == "times")
    assert f"at least {rate}" in read_recipe(name)
