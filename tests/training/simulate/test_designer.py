"""Designed runs: their recipes are accepted, say what the design says, and reach in simulation what was promised."""

import itertools
import json
import time

import pytest
from typer.testing import CliRunner

from calculator import BadSetup
from calculator.browser import figure
from calculator.designer import (
    MODELS,
    PEAK_LEARNING_RATE,
    PEAK_LEARNING_RATES,
    People,
    Wish,
    design,
    micro_batch,
    recipe,
)
from training.cli import build_app
from training.config import load_recipe, parse_recipe
from training.simulate.forecast import collaboration_of, simulate
from training.simulate.population import Spread
from training.simulate.swarm import Rules

MIXES = {
    "few on slow links": (People(count=3, gpu="t4", up_megabits=5, down_megabits=20),),
    "one": (People(count=1, gpu="rtx-4090", up_megabits=50, down_megabits=100),),
    "a mix": (
        People(count=30, gpu="t4", up_megabits=50, down_megabits=100),
        People(count=10, gpu="rtx-3090", up_megabits=50, down_megabits=100),
    ),
    "many": (People(count=2000, gpu="t4", up_megabits=50, down_megabits=100),),
}


def wish(model: str, people: tuple[People, ...], **others) -> Wish:
    return Wish(model=model, people=people, **{"hours_a_day": 12, "samples": 1e8, "days": 60} | others)


def test_learning_rates_are_those_of_the_recipes_that_were_run():
    for known, name in ((PEAK_LEARNING_RATES["demo"], "demo"), (PEAK_LEARNING_RATE, "dalle-2021")):
        run = load_recipe(name)
        assert known == (run.schedule.peak_learning_rate, run.swarm.target_batch_size)


@pytest.mark.parametrize("model, mix", itertools.product(MODELS, MIXES))
def test_recipes_are_accepted_and_say_what_the_design_says(model, mix):
    wanted = wish(model, MIXES[mix])
    made = design(wanted)
    run, chosen = parse_recipe(recipe(wanted, made)), made.collaboration
    assert run.swarm.target_batch_size == chosen.target_batch_size
    assert run.swarm.delay_gradient_averaging == chosen.delay_gradient_averaging
    assert (run.swarm.mode == "diloco") == chosen.local_updates
    assert run.schedule.total_epochs == made.epochs >= 1e8 / chosen.target_batch_size
    assert run.swarm.allreduce_timeout_seconds >= made.forecast.all_reduce_seconds
    assert run.model.num_layers == MODELS[model]["num_layers"]
    assert parse_recipe(recipe(wanted, design(wanted))).digest == run.digest
    other = wish(model, MIXES[mix], days=61)
    assert parse_recipe(recipe(other, design(other))).run_id != run.run_id


@pytest.mark.parametrize("values", [{}, {"model": "demo"}, {"first_up": "1"}, {"first_count": "2000", "batch": "512"}])
def test_what_the_page_offers_to_download_is_a_recipe(values):
    """With its time-outs, which a recipe's rules are about, from quick links to the slowest."""
    offered = json.loads(figure(json.dumps({"name": "designer", "values": values})))["file"]
    if offered is not None:
        parse_recipe(offered["text"])
    assert offered is not None or values


@pytest.mark.parametrize("model", ["small", "dalle-2021"])
def test_a_designed_run_reaches_in_simulation_what_was_promised(model):
    """With the time-outs of the recipe that it comes with."""
    wanted = wish(model, MIXES["a mix"], hours_a_day=24)
    made = design(wanted)
    chosen = made.collaboration
    run = parse_recipe(recipe(wanted, made))
    rules = Rules(
        exchange=collaboration_of(run, chosen.volunteers).exchange(),
        averaging_timeout_seconds=run.swarm.averaging_timeout_seconds,
    )
    outcome = simulate(chosen.kinds(), rules, epochs=60, spread=Spread.none())
    assert outcome.samples_per_second == pytest.approx(made.forecast.samples_per_second, rel=0.05)
    assert outcome.days(made.epochs) == pytest.approx(made.days, rel=0.05)


@pytest.mark.parametrize("mix", ["few on slow links", "one"])
@pytest.mark.parametrize("model", ["demo", "small"])
def test_the_command_in_a_designed_recipe_simulates_what_the_designer_says(model, mix, tmp_path, monkeypatch):
    """`simulate` alone has other volunteers, of varying speeds and links: it said 63 % where the designer said none."""
    wanted = wish(model, MIXES[mix], hours_a_day=24)
    made = design(wanted)
    text = recipe(wanted, made)
    (tmp_path / "my-run.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in text.splitlines() if line.startswith("#   python -m training ")]
    done = CliRunner().invoke(build_app(), [*line.removeprefix("#   python -m training ").split(), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["samples_per_second"] == pytest.approx(made.forecast.samples_per_second, rel=0.05)
    names = ("last_micro_batch", "meeting", "averaging")
    assert sum(found["shares"][name] for name in names) == pytest.approx(made.forecast.shares.communication, abs=0.05)


def test_slow_links_get_larger_batches_then_delay_then_local_updates():
    fast = design(wish("middle", (People(count=8, gpu="t4", up_megabits=1000, down_megabits=1000),)))
    slow = design(wish("middle", (People(count=8, gpu="t4", up_megabits=20, down_megabits=100),)))
    slower = design(wish("middle", (People(count=300, gpu="t4", up_megabits=10, down_megabits=50),)))
    assert fast.collaboration.target_batch_size < slow.collaboration.target_batch_size
    assert slower.collaboration.local_updates
    assert all(made.forecast.shares.communication <= 0.1 for made in (fast, slow))
    assert slower.forecast.shares.communication < 0.25


def test_batches_leave_enough_updates():
    for samples in (1e5, 1e6, 1e7, 1e9):
        made = design(wish("small", MIXES["a mix"], samples=samples))
        assert made.collaboration.target_batch_size <= max(256, samples / 1000)
        assert made.epochs * made.collaboration.target_batch_size >= samples
    crowd = design(wish("dalle-2021", MIXES["many"]))
    assert crowd.forecast.shares.communication > 0.5, "for so few samples, so many volunteers are of no use"


def test_a_batch_that_is_asked_for_is_taken():
    asked = wish("dalle-2021", MIXES["a mix"], batch=512)
    made = design(asked)
    assert made.collaboration.target_batch_size == parse_recipe(recipe(asked, made)).swarm.target_batch_size == 512
    assert made.epochs == 1e8 // 512 + 1 and not made.collaboration.local_updates


def test_where_a_larger_batch_would_help_it_is_said_why_it_is_not_taken():
    few = json.loads(figure(json.dumps({"name": "designer", "values": {"model": "demo", "samples": "100000"}})))
    assert "A larger target batch helps. It would leave even fewer updates" in few["caption"]


def test_a_gpu_that_holds_no_sample_is_left_out():
    small, large = (People(count=9, gpu=gpu, up_megabits=50, down_megabits=100) for gpu in ("rtx-2060", "a100-80gb"))
    assert micro_batch("huge", "rtx-2060") == 0 < micro_batch("huge", "a100-80gb")
    made = design(wish("huge", (small, large)))
    assert made.micro_batches["rtx-2060"] == 0 and made.forecast.peers == 4.5
    with pytest.raises(BadSetup, match="No volunteer's GPU"):
        design(wish("huge", (small,)))


def test_it_answers_within_a_frame():
    wanted = wish("dalle-2021", MIXES["a mix"])
    design(wanted)
    began = time.process_time()
    for _ in range(10):
        design(wanted)
    assert (time.process_time() - began) / 10 < 0.016
