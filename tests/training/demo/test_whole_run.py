"""The whole demo, small: real pictures, shards, peers and monitor, a fourth volunteer, a killed one, and its end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
from PIL import Image

from training.checkpoints.checkpoint import latest_checkpoint, load_checkpoint
from training.config import RECIPES
from training.data.shards import read_manifest
from training.publish.history import HistoryReader

ROOT = Path(__file__).parents[3]
CHANGES = {
    "hidden_size": 32,
    "num_heads": 2,
    "head_dim": 16,
    "image_vocab_size": 64,
    "codebook_size": 64,
    "shuffle_buffer": 256,
    "target_batch_size": 96,
    "warmup_epochs": 2,
    "total_epochs": 1000,
    "metrics_every_seconds": 1.0,
    "metrics_expiration_seconds": 8.0,
    "checkpoint_every_epochs": 2,
    "pictures_every_epochs": 2,
}


@pytest.fixture
def marked(tmp_path):
    """Environment for all processes of this test, and a function that finds those that still run."""
    environment = {**os.environ, "DEMO_RUN_TEST": str(tmp_path)}

    def running(mark="DEMO_RUN_TEST"):
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                its = process.environ()
                if its.get("DEMO_RUN_TEST") == str(tmp_path) and mark in its and process.status() != "zombie":
                    found.append(process)
        return found

    yield environment, running
    for process in running():
        with suppress(psutil.NoSuchProcess):
            process.kill()


def tiny_recipe(folder):
    text = (RECIPES / "demo.toml").read_text()
    for name, value in CHANGES.items():
        head, tail = text.split(f"\n{name} = ")
        text = f"{head}\n{name} = {value}\n{tail.partition(chr(10))[2]}"
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def until(condition, process, log, seconds):
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except httpx.TransportError:
            pass
        assert process.poll() is None, f"the demo ended early:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"not within {seconds} s:\n{log.read_text()}"
        time.sleep(0.2)


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_demo_from_pictures_to_a_resumed_run(tmp_path, marked):
    environment, running = marked
    recipe, run_dir, log = tiny_recipe(tmp_path), tmp_path / "run", tmp_path / "demo.log"
    training = [sys.executable, "-m", "training"]

    def call(*arguments):
        subprocess.run([*training, *map(str, arguments)], cwd=ROOT, env=environment, check=True, capture_output=True)

    call("draw", "--out", run_dir / "images", "--count", 300)
    captions = run_dir / "images" / "captions.jsonl"
    shards = run_dir / "shards"
    call(
        *("prepare", "--recipe", recipe, "--images", run_dir / "images", "--captions", captions),
        *("--out", shards, "--codec-steps", 20),
    )

    def start(*arguments):
        with log.open("w") as output:
            return subprocess.Popen(
                [*training, "demo", "--recipe", str(recipe), "--run-dir", str(run_dir), *arguments],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    demo = start()
    url = until(lambda: [w for w in log.read_text().split() if w.startswith("http://127")], demo, log, 120)[0]

    def live(name):
        return httpx.get(f"{url}/live/{name}.json", timeout=10).json()

    def volunteers():
        return {volunteer["name"]: volunteer for volunteer in live("leaderboard")["volunteers"]}

    until(lambda: (live("state")["epoch"] or 0) >= 1, demo, log, 120)

    command = shlex.split(live("run")["join_command"])
    state_dir = str(tmp_path / "fourth")
    with (tmp_path / "dorothy.log").open("w") as output:
        fourth = subprocess.Popen(
            [*command, "--name", "dorothy", "--threads", "1", "--state-dir", state_dir],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    (grace,) = [p for p in running() if "grace" in p.cmdline() and p.parent().pid == demo.pid]
    grace.kill()
    until(lambda: not volunteers()["grace"]["active"], demo, log, 60)
    assert "Volunteer grace ended (killed by SIGKILL); the others go on" in log.read_text()
    until(lambda: "dorothy" in volunteers(), demo, log, 120)
    until(lambda: "dorothy" in live("losses")["peers"], demo, log, 90)
    until(lambda: live("pictures")["snapshots"], demo, log, 60)

    demo.send_signal(signal.SIGINT)
    asked = time.monotonic()
    assert demo.wait(timeout=20) == 130
    assert time.monotonic() - asked < 10
    assert running("TRAINING_DEMO_PART") == []
    fourth.terminate()
    fourth.wait(15)
    deadline = time.monotonic() + 20
    while running() and time.monotonic() < deadline:  # torch's janitor of shared memory stays for two seconds
        time.sleep(0.1)
    assert running() == []

    history = HistoryReader(run_dir / "history.sqlite")
    losses = [row["loss"] for row in history.epochs()]
    assert all(0 < loss < 8 for loss in losses)
    assert min(losses) < losses[0]  # it learns
    picture = history.snapshots()[-1]["pictures"][0]
    assert Image.open(run_dir / "pictures" / picture["file"]).size == (64, 64)
    assert isinstance(picture["shape"], bool)
    checkpoint = load_checkpoint(latest_checkpoint(run_dir / "checkpoints"))
    assert checkpoint.codec_digest == read_manifest(shards).codec_digest
    assert f"must have the tokens {read_manifest(shards).tokens_digest}" in (run_dir / "logs/monitor.log").read_text()
    saved = checkpoint.epoch
    assert saved >= 2

    again = start("--epochs", str(saved + 2))
    assert again.wait(timeout=180) == 0, log.read_text()
    assert running() == []
    assert f"at epoch {saved} with the checkpoint epoch-{saved:06d}" in (run_dir / "logs" / "ada.log").read_text()
    epochs = [row["epoch"] for row in HistoryReader(run_dir / "history.sqlite").epochs()]
    assert epochs[-1] >= saved + 2
    assert epochs == sorted(set(epochs))
