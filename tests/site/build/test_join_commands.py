"""Every command that the join page can show runs: that of a run with all flags, with `--dry-run`, and those of demos."""

from __future__ import annotations

import os
import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from builder.join import choices as joining
from calculator.choose.advice import LEAST_STEPS, MOST_SAMPLES, advised_micro_batch, sizes_to_advise
from calculator.choose.devices import device_named
from calculator.swarm.designed_models import DesignedModel, LanguageModel, PictureModel
from calculator.swarm.designer import micro_batch
from calculator.swarm.settings import DEFAULTS
from tests.support.programs import Programs, run_program, until
from tests.support.random_shards import write_shards
from training.compute import choices
from training.compute.choices import Wishes, choose
from training.compute.plan import make_plan, training_of
from training.demo.children import read_events
from training.recipe import RunConfig, load_recipe
from training.simulate.forecast import collaboration_of
from training.swarm.engine.codecs import exchange_codec
from training.tasks.known import task_of
from training.tasks.task import Task

EVERY = [
    (recipe, machine)
    for recipe in joining.RECIPES
    for machine in joining.machines()
    if joining.micro_batch(load_recipe(recipe), machine.device)
]


def flags(recipe: str, machine: joining.Machine) -> str:
    samples = joining.micro_batch(load_recipe(recipe), machine.device)
    return joining.flags(samples, kind=machine.kind)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Recipe -> address of a bootstrap peer that runs it."""
    folder = tmp_path_factory.mktemp("bootstraps")
    with Programs() as programs:
        for recipe in joining.RECIPES:
            where = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--state-dir", folder / recipe]
            program = [sys.executable, "-m", "training", "bootstrap", "--recipe", recipe, *where]
            with (folder / f"{recipe}.log").open("w") as log:
                programs.start([*program, "--log-json", folder / f"{recipe}.jsonl"], stdout=log, stderr=log)
        yield {recipe: address_in(folder / f"{recipe}.jsonl") for recipe in joining.RECIPES}


def address_in(events: Path) -> str:
    """Address of a peer that is ready, or will be."""
    ready = until(
        lambda: [event for event in read_events(events) if event["event"] == "ready"],
        said=events.with_suffix(".log").read_text,
    )
    return ready[0]["addresses"][0]


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_every_command_runs_dry(addresses, tmp_path):
    """Those that differ by more than a number run once. The shards are ours: the 2021 run's data is not at hand."""
    different = {(choice[0], re.sub(r"\d+$", "", flags(*choice))): flags(*choice) for choice in EVERY}
    shards = {recipe: write_shards(tmp_path / recipe, load_recipe(recipe)) for recipe in joining.RECIPES}
    commands = []
    for (recipe, _), line in different.items():
        words = ["join", "--recipe", recipe, "--initial-peers", addresses[recipe], *shlex.split(line)]
        state = ["--state-dir", str(tmp_path / f"state-{len(commands)}")]
        commands.append([*words, *state, "--shards", str(shards[recipe]), "--dry-run"])
    assert len(commands) >= 5
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run_trainer, commands))
    for words, one in zip(commands, ended, strict=True):
        assert one.returncode == 0 and "All checks passed" in one.stdout, f"{words}\n{one.stdout}{one.stderr}"


def run_trainer(arguments: list[str]) -> CompletedProcess[str]:
    """A command of the trainer, to its end."""
    return run_program([sys.executable, "-m", "training", *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_the_micro_batch_is_the_plans():
    for recipe in joining.RECIPES:
        run = load_recipe(recipe)
        for machine in joining.machines():
            ours, plans = (
                joining.micro_batch(run, machine.device),
                make_plan(task_of(run), machine.device).advised_micro_batch,
            )
            assert ours == plans <= MOST_SAMPLES, (recipe, machine.title)


@pytest.mark.parametrize("recipe", joining.RECIPES)
@pytest.mark.parametrize("target", [20, 64, 16_384])
@pytest.mark.parametrize("local", [False, True])
def test_plan_join_page_and_designer_advise_one_micro_batch(monkeypatch, recipe, target, local):
    """For any target batch, size of memory and, where it was measured, speed."""
    built, build = {}, Task.on_paper

    def on_paper(task):  # which takes the most of this test's time
        if task.run.run_id not in built:
            built[task.run.run_id] = build(task)
        return built[task.run.run_id]

    monkeypatch.setattr(Task, "on_paper", on_paper)
    run = with_swarm(load_recipe(recipe), target_batch_size=target, mode="diloco" if local else "synchronous")
    found = set()
    for gib in (2, 6, 16):
        device = device_named(f"cuda-{gib}gb")
        page = joining.micro_batch(run, device)
        found.add(page)
        chosen = choose(task_of(run), Wishes(precision="bfloat16"), machine=device)
        assert make_plan(task_of(run), device).advised_micro_batch == page
        assert chosen.micro_batch_size == max(page, 1), "where nothing fits, one sample is tried"
        assert micro_batch(designed(recipe, run), device.name, local_updates=local, target_batch_size=target) == page
        for seconds in (0.1, 5.0):
            # what `join` finds on such a GPU, whose steps take too long to be timed
            with monkeypatch.context() as measured:
                measured.setattr(choices, "this_machine", lambda name, device=device: device)
                measured.setattr(choices._Timer, "expected_seconds", lambda timer, precision, s=seconds: s)
                joined = choose(task_of(run), Wishes(precision="bfloat16")).micro_batch_size
            window = run.swarm.matchmaking_seconds
            sizes = sizes_to_advise(target, matchmaking_seconds=window, sample_seconds=seconds)
            advised = advised_micro_batch(sizes, partial(training_of(run).need_bytes, device), device)
            assert joined == max(advised, 1) <= max(page, 1) and (joined == 1 or joined * seconds <= window)
            assert joined * LEAST_STEPS <= max(target, LEAST_STEPS)
            if window == DEFAULTS.matchmaking_seconds:
                given = {"local_updates": local, "target_batch_size": target, "sample_seconds": seconds}
                assert micro_batch(designed(recipe, run), device.name, **given) == advised
    assert len(found) > 1 or target < 2 * LEAST_STEPS or recipe in ("demo", "stories")


def designed(recipe: str, run: RunConfig) -> DesignedModel:
    """The designer's model that is a recipe's."""
    if run.task == PictureModel.task:
        return PictureModel(size=recipe)
    return LanguageModel(size=recipe, family=run.model.architecture["model_type"], block_length=run.model.block_length)


def with_swarm(run: RunConfig, **changes) -> RunConfig:
    return run.model_copy(update={"swarm": run.swarm.model_copy(update=changes)})


@pytest.mark.parametrize("recipe", joining.RECIPES)
def test_bytes_on_the_way_are_those_of_the_codec(recipe):
    run = load_recipe(recipe)
    model = task_of(run).on_paper()
    codec = exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec)
    sizes = [parameter.numel() for parameter in model.parameters()]
    measured = {size: len(codec.compress(torch.ones(size), info_of(size)).buffer) for size in set(sizes)}
    gradients = collaboration_of(run, ()).exchange().gradient_bytes
    assert gradients == pytest.approx(sum(measured[size] for size in sizes), rel=0.002)


def info_of(size: int):
    """What the codec asks of a tensor."""
    from hivemind.compression import CompressionInfo
    from hivemind.utils import TensorDescriptor

    return CompressionInfo(key=0, descriptor=TensorDescriptor.from_tensor(torch.ones(size)))
