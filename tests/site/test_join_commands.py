"""Every command that the join page can show runs, with `--dry-run`, beside a bootstrap peer of its recipe."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from builder.join import choices
from conftest import ROOT
from training.compute.plan import MOST_SAMPLES, make_plan
from training.config import RunConfig, load_recipe
from training.data.shards import Manifest, SplitEntry, describe_file, write_shard
from training.data.tokenizer import Tokenizer
from training.model.transformer import ACTIVATION_BUDGET_BYTES, build_model
from training.simulate.forecast import collaboration_of
from training.swarm.codecs import exchange_codec

SAMPLES = 64

EVERY = [
    (recipe, machine, link)
    for recipe in choices.RECIPES
    for machine in choices.machines()
    for link in choices.LINKS
    if choices.micro_batch(load_recipe(recipe), machine.device)
]


def command(recipe: str, machine: choices.Machine, link: str) -> str:
    samples = choices.micro_batch(load_recipe(recipe), machine.device)
    return choices.command(recipe, samples, link=link, kind=machine.kind)


def write_shards(folder: Path, run: RunConfig) -> Path:
    """Shards in the recipe's sizes, with random codes."""
    folder.mkdir()
    captions = [f"a {colour} {shape}" for colour in ("red", "blue") for shape in ("circle", "square")] * (SAMPLES // 4)
    codes = np.random.default_rng(0).integers(0, run.model.image_vocab_size, (SAMPLES, run.model.image_seq_len))
    ids = [str(number) for number in range(SAMPLES)]
    write_shard(folder / "train-00000.parquet", ids=ids, captions=captions, codes=codes.astype(np.uint16))
    Tokenizer.train(captions, 64).save(folder / "tokenizer.json")
    manifest = Manifest(
        run_id=run.run_id,
        input_digest="a" * 64,
        image_seq_len=run.model.image_seq_len,
        image_vocab_size=run.model.image_vocab_size,
        text_vocab_size=7,
        codec_digest="b" * 64,
        reconstruction_error=0.0,
        pictures=SAMPLES,
        left_out={},
        splits={"train": SplitEntry(samples=SAMPLES, shards=("train-00000.parquet",))},
        files={path.name: describe_file(path) for path in folder.iterdir()},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Recipe -> address of a bootstrap peer that runs it."""
    folder = tmp_path_factory.mktemp("bootstraps")
    processes, found = [], {}
    try:
        for recipe in choices.RECIPES:
            where = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--state-dir", str(folder / recipe)]
            program = [sys.executable, "-m", "training", "bootstrap", "--recipe", recipe, *where]
            log = (folder / f"{recipe}.log").open("w")
            log_json = ["--log-json", str(folder / f"{recipe}.jsonl")]
            processes.append(subprocess.Popen([*program, *log_json], cwd=ROOT, stdout=log, stderr=log))
        deadline = time.monotonic() + 120
        while len(found) < len(choices.RECIPES):
            assert time.monotonic() < deadline, [path.read_text() for path in folder.glob("*.log")]
            for recipe in choices.RECIPES:
                path = folder / f"{recipe}.jsonl"
                lines = path.read_text().splitlines() if path.is_file() else []
                for event in map(json.loads, lines):
                    found |= {recipe: event["addresses"][0]} if event["event"] == "ready" else {}
            time.sleep(0.1)
        yield found
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=20)


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_every_command_runs_dry(addresses, tmp_path):
    """Those that differ: equal ones run once. The shards are ours: the 2021 run's data is not at hand."""
    shown = sorted({command(*choice) for choice in EVERY})
    shards = {recipe: write_shards(tmp_path / recipe, load_recipe(recipe)) for recipe in choices.RECIPES}
    commands = []
    for line in shown:
        assert line.startswith(f"{choices.PROGRAM} join ")
        words = shlex.split(line.removeprefix(choices.PROGRAM))
        recipe = words[words.index("--recipe") + 1]
        words[words.index("ADDRESS")] = addresses[recipe]
        commands.append([*words, "--shards", str(shards[recipe]), "--dry-run"])
    assert len(commands) >= 6
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run_trainer, commands))
    for line, one in zip(shown, ended, strict=True):
        assert one.returncode == 0 and "All is well" in one.stdout, f"{line}\n{one.stdout}{one.stderr}"


def run_trainer(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """A command of the trainer, to its end."""
    program = [sys.executable, "-m", "training", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


def test_the_micro_batch_is_the_plans():
    """The page adds all that reversible layers may keep, the plan what they keep: at most one size lies between."""
    assert choices.KEPT_ACTIVATIONS == ACTIVATION_BUDGET_BYTES
    for recipe in choices.RECIPES:
        run = load_recipe(recipe)
        for machine in choices.machines():
            ours, plans = choices.micro_batch(run, machine.device), make_plan(run, machine.device).advised_micro_batch
            assert ours in (plans, plans // 2), (recipe, machine.title)
            assert ours <= MOST_SAMPLES


@pytest.mark.parametrize("recipe", choices.RECIPES)
def test_bytes_on_the_way_are_those_of_the_codec(recipe):
    run = load_recipe(recipe)
    with torch.device("meta"):
        model = build_model(run.model, 0)
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
