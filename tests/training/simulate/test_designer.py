"""Designed runs: their recipes are accepted, say what the design says, and reach in simulation what was promised."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from calculator import BadSetup
from calculator.browser import figure
from calculator.choose.devices import device_named
from calculator.swarm.collaboration import Kind
from calculator.swarm.designed_models import (
    FAMILIES,
    LANGUAGE_SIZES,
    PICTURE_RATE,
    PICTURE_RATES,
    PICTURE_SIZES,
    PYTHIA_RATES,
    PYTHIA_TOKENS,
    STORIES_RATE,
    DesignedModel,
    LanguageModel,
    PictureModel,
)
from calculator.swarm.designer import (
    GENEROUS,
    MOST_COMMUNICATION,
    STATES_EVERY,
    People,
    Wish,
    design,
    memory_of,
    micro_batch,
    recipe,
)
from calculator.swarm.settings import LOCAL_MODES, SPARSE_STATES_EVERY
from training.cli import build_app
from training.compute.plan import make_plan
from training.recipe import load_recipe, parse_recipe, read_recipe, recipe_names
from training.simulate.forecast import collaboration_of, simulate
from training.simulate.population import Spread
from training.simulate.swarm import Rules
from training.tasks.known import task_of

MIXES = {
    "few on slow links": (People(count=3, gpu="t4", up_megabits=5, down_megabits=20),),
    "one": (People(count=1, gpu="rtx-4090", up_megabits=50, down_megabits=100),),
    "a mix": (
        People(count=30, gpu="t4", up_megabits=50, down_megabits=100),
        People(count=10, gpu="rtx-3090", up_megabits=50, down_megabits=100),
    ),
    "many": (People(count=2000, gpu="t4", up_megabits=50, down_megabits=100),),
}


STORIES = LanguageModel(size="stories", family="llama", block_length=128)
SMALL_TEXT = LanguageModel(size="160m", family="llama", block_length=512)
MODELS = [
    *[PictureModel(size=size) for size in PICTURE_SIZES],
    *[LanguageModel(size=size, family="llama", block_length=512) for size in LANGUAGE_SIZES],
    *[LanguageModel(size="160m", family=family, block_length=length) for family in FAMILIES for length in (128, 4096)],
]


NO_T4_HOLDS = LanguageModel(size="2.8b", family="llama", block_length=512)
ONLY_T4 = ("few on slow links", "many")
CASES = [(model, mix) for model in MODELS for mix in MIXES if model != NO_T4_HOLDS or mix not in ONLY_T4]


def wish(model: DesignedModel | str, people: tuple[People, ...], **others) -> Wish:
    """A wish; a text names a size of pictures."""
    model = PictureModel(size=model) if isinstance(model, str) else model
    return Wish(model=model, people=people, **{"hours_a_day": 12, "samples": 1e8, "days": 60} | others)


def test_learning_rates_are_those_of_the_recipes_that_were_run():
    for known, name in ((PICTURE_RATES["demo"], "demo"), (PICTURE_RATE, "dalle-2021")):
        run = load_recipe(name)
        assert known == (run.schedule.peak_learning_rate, run.swarm.target_batch_size)
    run = load_recipe("stories")
    assert (run.schedule.peak_learning_rate, run.swarm.target_batch_size * run.model.block_length) == STORIES_RATE


def test_the_smallest_language_model_is_that_of_the_recipe():
    run, made = load_recipe("stories"), parse_recipe(recipe(*designed(STORIES)))
    assert made.model == run.model and made.optimizer == run.optimizer and made.task == run.task


VOLUNTEERS = {
    "demo": Kind(count=3, gpu="cpu", up_megabits=1000, down_megabits=1000, latency_milliseconds=1, micro_batch_size=16),
    "stories": Kind(
        count=3, gpu="cpu", up_megabits=1000, down_megabits=1000, latency_milliseconds=1, micro_batch_size=16
    ),
    "dalle-2021": Kind(count=37, gpu="t4", up_megabits=100, micro_batch_size=4),
    "llama-150m": Kind(count=8, gpu="rtx-3090", up_megabits=20, micro_batch_size=32),
    "lora-7b": Kind(count=8, gpu="t4", up_megabits=20),
}
"""Volunteers that a recipe's comment beside its mode names."""


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_has_the_mode_that_is_best_for_it_by_the_designers_figures(name):
    """The mode that learns best of those whose exchanges take at most a tenth of the time; the best comes first."""
    run, lost = load_recipe(name), {}
    own = collaboration_of(run, [VOLUNTEERS[name]])
    for mode in ("synchronous", "diloco", "sparse"):
        batch = (
            run.swarm.target_batch_size
            if mode in LOCAL_MODES or not run.swarm.local_updates
            else run.swarm.inner_batch_size
        )
        every = SPARSE_STATES_EVERY if mode == "sparse" else STATES_EVERY
        every = own.average_state_every if mode == run.swarm.mode else every
        chosen = replace(own, mode=mode, target_batch_size=batch, average_state_every=every, **GENEROUS)
        lost[mode] = chosen.forecast().shares.communication
    best = next((mode for mode, share in lost.items() if share <= MOST_COMMUNICATION), min(lost, key=lost.get))
    assert run.swarm.mode == best
    line = next(line for line in read_recipe(name).splitlines() if line.startswith("mode = "))
    assert f"{100 * lost[best]:.0f} % of the time of {VOLUNTEERS[name].count} volunteers" in line
    if best != "synchronous":
        assert f'"synchronous" would take {100 * lost["synchronous"]:.0f} %' in read_recipe(name)


def designed(model: DesignedModel, mix: str = "a mix", **others):
    wanted = wish(model, MIXES[mix], **others)
    return wanted, design(wanted)


@pytest.mark.parametrize("size", PYTHIA_RATES)
def test_language_models_have_as_many_weights_as_those_whose_learning_rate_they_take(size):
    """Pythia's hidden weights as published (arXiv:2304.01373, table 1); embeddings differ by the vocabularies."""
    published = {"160m": 85_056_000, "410m": 302_311_424, "1b": 805_736_448, "2.8b": 2_517_652_480}
    model = LanguageModel(size=size, family="llama", block_length=2048)
    hidden = model.parameters - 2 * model.config["vocab_size"] * model.config["hidden_size"]
    assert hidden == pytest.approx(published[size], rel=0.03)


def test_the_very_small_model_is_that_of_llama2c():
    """15,191,712 weights, as its stories15M.bin has with a shared output layer."""
    model = LanguageModel(size="15m", family="llama", block_length=256)
    assert model.parameters == 15_191_712
    assert model.learning_rate(512) == 5e-4


def test_updates_of_text_are_no_larger_and_rates_no_higher_than_what_is_known():
    for length in (128, 512, 2048, 4096):
        model = LanguageModel(size="1b", family="llama", block_length=length)
        assert max(model.batches) * length == PYTHIA_TOKENS or max(model.batches) == 16_384
        assert model.learning_rate(max(model.batches)) == pytest.approx(2.5e-4)
        assert model.learning_rate(10**6) == pytest.approx(2.5e-4)
        assert model.learning_rate(min(model.batches)) <= 2.5e-4


@pytest.mark.parametrize("gpu", ["t4", "rtx-4090"])
@pytest.mark.parametrize("model", [STORIES, SMALL_TEXT, PictureModel(size="small")])
def test_memory_and_micro_batch_are_the_plans(model, gpu):
    """`plan` builds the recipe's model and asks the calculator for that one."""
    wanted = wish(model, (People(count=2, gpu=gpu, up_megabits=1000, down_megabits=1000),), samples=1e6)
    made = design(wanted)
    run, memory, device = parse_recipe(recipe(wanted, made)), memory_of(wanted, made, gpu), device_named(gpu)
    samples = made.micro_batches[gpu]
    plan = make_plan(task_of(run), device, micro_batch_size=samples, activation_budget_bytes=0)
    assert (memory.device_bytes, memory.host_bytes) == (plan.need_bytes, plan.host_bytes)
    assert plan.parameters == wanted.model.parameters
    assert (
        samples
        <= plan.advised_micro_batch
        == micro_batch(model, gpu, local_updates=run.swarm.local_updates, target_batch_size=run.swarm.target_batch_size)
    )


@pytest.mark.parametrize("values", [{}, {"task": "causal-lm"}, {"task": "causal-lm", "size": "stories"}])
def test_the_command_plan_takes_what_the_page_offers(values, tmp_path):
    offered = json.loads(figure(json.dumps({"name": "designer", "values": values})))
    (tmp_path / "my-run.toml").write_text(offered["file"]["text"])
    done = CliRunner().invoke(build_app(), ["plan", "--recipe", str(tmp_path / "my-run.toml"), "--gpu", "t4", "--json"])
    assert done.exit_code == 0, done.output
    distinct = dict(offered["rows"])["Distinct parameters"].replace("\u202f", "").replace(" ", "").replace("\xa0", "")
    assert str(json.loads(done.stdout)["parameters"]) == "".join(filter(str.isdigit, distinct))


@pytest.mark.parametrize("mix", ONLY_T4)
def test_a_model_that_no_volunteer_holds_is_refused(mix):
    with pytest.raises(BadSetup, match="No volunteer's GPU"):
        design(wish(NO_T4_HOLDS, MIXES[mix]))


@pytest.mark.parametrize("model, mix", CASES, ids=lambda one: str(one)[:60])
def test_recipes_are_accepted_and_say_what_the_design_says(model, mix):
    wanted = wish(model, MIXES[mix])
    made = design(wanted)
    run, chosen = parse_recipe(recipe(wanted, made)), made.collaboration
    assert run.swarm.target_batch_size == chosen.target_batch_size
    assert (run.swarm.mode, run.swarm.sparse_kept) == (chosen.mode, chosen.sparse_kept)
    assert run.swarm.delay_outer_step == chosen.delay_outer_step
    assert run.schedule.total_epochs == made.epochs >= 1e8 / chosen.target_batch_size
    # Where no time-out is long enough, the page offers no recipe.
    assert run.swarm.allreduce_timeout_seconds >= made.forecast.all_reduce_seconds or not made.forecast.works
    assert run.task == model.task and run.optimizer.name == model.optimizer["name"]
    assert run.schedule.peak_learning_rate == pytest.approx(made.learning_rate, rel=0.05)
    assert parse_recipe(recipe(wanted, design(wanted))).digest == run.digest
    other = wish(model, MIXES[mix], days=61)
    assert parse_recipe(recipe(other, design(other))).run_id != run.run_id


TEXT = {"task": "causal-lm"}


@pytest.mark.parametrize("also", [{}, TEXT, TEXT | {"size": "2.8b", "block": "4096"}])
@pytest.mark.parametrize("values", [{}, {"model": "demo"}, {"first_up": "1"}, {"first_count": "2000", "batch": "512"}])
def test_what_the_page_offers_to_download_is_a_recipe(values, also):
    """With its time-outs, which a recipe's rules are about, from quick links to the slowest."""
    offered = json.loads(figure(json.dumps({"name": "designer", "values": values | also})))["file"]
    if offered is not None:
        parse_recipe(offered["text"])
    assert offered is not None or values


@pytest.mark.parametrize("model", ["small", "dalle-2021", SMALL_TEXT])
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
@pytest.mark.parametrize("model", ["demo", "small", STORIES, SMALL_TEXT])
def test_the_command_in_a_designed_recipe_simulates_what_the_designer_says(model, mix, tmp_path, monkeypatch):
    """`simulate` alone has other volunteers, of varying speeds and links: it said 63 % where the designer said none."""
    wanted = wish(model, MIXES[mix], hours_a_day=24)
    made = design(wanted)
    text = recipe(wanted, made)
    (tmp_path / "my-run.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    (line,) = [line for line in text.splitlines() if line.startswith("#   python -m training simulate ")]
    done = CliRunner().invoke(build_app(), [*line.removeprefix("#   python -m training ").split(), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    # Where the designer warns of epochs that are too short, rounds of parameters overlap more than its formulas say.
    close = 0.08 if any(limit.name == "short epochs" for limit in made.forecast.limits) else 0.05
    assert found["samples_per_second"] == pytest.approx(made.forecast.samples_per_second, rel=close)
    names = ("last_micro_batch", "meeting", "averaging")
    assert sum(found["shares"][name] for name in names) == pytest.approx(made.forecast.shares.communication, abs=close)


def test_slow_links_get_larger_batches_then_delay_then_local_updates():
    fast = design(wish("middle", (People(count=8, gpu="t4", up_megabits=1000, down_megabits=1000),)))
    slow = design(wish("middle", (People(count=8, gpu="t4", up_megabits=20, down_megabits=100),)))
    slower = design(wish("middle", (People(count=300, gpu="t4", up_megabits=10, down_megabits=50),)))
    assert fast.collaboration.target_batch_size < slow.collaboration.target_batch_size
    assert slower.collaboration.local_updates
    assert all(made.forecast.shares.communication <= 0.1 for made in (fast, slow))
    # Somebody vanishes in most exchanges of 150 peers; the others do not wait as long as for a slow message (157 s).
    shares = slower.forecast.shares
    assert shares.computing > 0.6 and shares.communication < shares.computing / 2 and shares.leaving < 0.01


def test_peers_train_on_during_an_exchange_only_where_waiting_takes_too_long():
    """So few samples leave 100 updates between two exchanges, which take an eighth or more of the time if awaited."""
    people = (People(count=8, gpu="rtx-4090", up_megabits=20, down_megabits=100),)
    made = design(wanted := wish(SMALL_TEXT, people, samples=5e6, hours_a_day=24))
    chosen = made.collaboration
    awaited = replace(chosen, delay_outer_step=False).forecast()
    assert chosen.delay_outer_step and made.forecast.shares.communication < 0.01
    assert awaited.shares.communication > MOST_COMMUNICATION
    assert f"{100 * awaited.shares.communication:.0f} % of the time" in made.why_batch and "none" not in made.why_batch
    run = parse_recipe(recipe(wanted, made))
    assert run.swarm.delay_outer_step and run.swarm.mode == chosen.mode
    rules = Rules(exchange=collaboration_of(run, chosen.volunteers).exchange(), averaging_timeout_seconds=600.0)
    outcome = simulate(chosen.kinds(), rules, epochs=20, spread=Spread.none())
    assert outcome.samples_per_second == pytest.approx(made.forecast.samples_per_second, rel=0.05)
    rested = design(replace(wanted, samples=1e8)).collaboration
    assert rested.local_updates and not rested.delay_outer_step, "500 updates between exchanges leave enough time"


def test_memory_counts_the_weights_from_which_progress_counts_during_an_exchange():
    """4 bytes a parameter, which a computer without a GPU takes of the same memory as the training."""
    people = (People(count=8, gpu="cpu", up_megabits=0.02, down_megabits=0.02),)
    wanted = wish(LanguageModel(size="15m", family="llama", block_length=256), people, hours_a_day=24)
    made = design(wanted)
    assert made.collaboration.delay_outer_step
    waits = replace(made, collaboration=replace(made.collaboration, delay_outer_step=False))
    more, less = (memory_of(wanted, one, "cpu") for one in (made, waits))
    assert more.host_bytes - less.host_bytes == more.device_bytes - less.device_bytes == 4 * wanted.model.parameters


def test_the_reason_of_a_run_with_too_slow_links_claims_no_short_exchange():
    made = design(wish(SMALL_TEXT, MIXES["few on slow links"], samples=1e5))
    assert made.forecast.shares.communication > MOST_COMMUNICATION
    assert "none leaves enough time" in made.why_batch and "at most a tenth" not in made.why_batch


def test_batches_leave_enough_updates():
    for samples in (1e5, 1e6, 1e7, 1e9):
        made = design(wish("small", MIXES["a mix"], samples=samples))
        assert made.collaboration.target_batch_size <= max(256, samples / 1000)
        assert made.epochs * made.collaboration.target_batch_size >= samples
    crowd = design(wish("dalle-2021", MIXES["many"], samples=1e7))
    assert crowd.forecast.shares.communication > 0.5, "for so few samples, so many volunteers are of no use"


def test_a_gpu_that_holds_no_sample_is_left_out():
    small, large = (People(count=9, gpu=gpu, up_megabits=50, down_megabits=100) for gpu in ("rtx-2060", "a100-80gb"))
    assert micro_batch(PictureModel(size="huge"), "rtx-2060") == 0 < micro_batch(PictureModel(size="huge"), "a100-80gb")
    made = design(wish("huge", (small, large)))
    assert made.micro_batches["rtx-2060"] == 0 and made.forecast.peers == 4.5
    with pytest.raises(BadSetup, match="No volunteer's GPU"):
        design(wish("huge", (small,)))
