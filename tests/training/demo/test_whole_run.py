"""The whole demo, small: real pictures, shards, peers and monitor, a fourth volunteer, a killed one, and its end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress

import httpx
import psutil
import pytest
from PIL import Image

from tests.support.ports import free_port
from tests.support.programs import ROOT, run_program, until
from training.checkpoints.checkpoint import latest_checkpoint, load_checkpoint
from training.data.store.shards import read_manifest
from training.publish.history.history import HistoryReader
from training.recipe import RECIPES

EXTRAS, PINS = ("training", "demo"), ROOT / "constraints"
PATIENCE_SECONDS = 180.0
"""For what only has to come."""
CHANGES = {
    "hidden_size": 32,
    "num_heads": 2,
    "head_dim": 16,
    "image_vocab_size": 64,
    "codebook_size": 64,
    "target_batch_size": 96,
    "warmup_epochs": 2,
    "total_epochs": 1000,
    "metrics_every_seconds": 1.0,
    "checkpoint_every_epochs": 2,
    "pictures_every_epochs": 2,
}


def tiny_recipe(folder):
    text = (RECIPES / "demo.toml").read_text()
    for name, value in CHANGES.items():
        head, tail = text.split(f"\n{name} = ")
        text = f"{head}\n{name} = {value}\n{tail.partition(chr(10))[2]}"
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def while_it_runs(process, condition, log):
    """What the condition gives, once it is true; the demo must not end before."""

    def met():
        assert process.poll() is None, f"the demo ended early:\n{log.read_text()}"
        with suppress(httpx.HTTPError):  # the monitor is not there, or starts
            return condition()

    return until(met, within=PATIENCE_SECONDS, said=log.read_text)


def of_the_demo(processes):
    """Those that the demo itself has started, which carry its mark."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += [process] if "TRAINING_PART" in process.environ() else []
    return found


def what_is_left(run_dir, shards):
    """Looks at the files of a demo that has ended; its history, and the epoch of its last checkpoint."""
    history = HistoryReader(run_dir / "history.sqlite")
    losses = [row["loss"] for row in history.epochs()]
    assert all(0 < loss < 8 for loss in losses)
    assert min(losses) < losses[0]  # it learns
    picture = history.snapshots()[-1]["pictures"][0]
    assert Image.open(run_dir / "pictures" / picture["file"]).size == (64, 64)
    assert isinstance(picture["shape"], bool)
    checkpoint = load_checkpoint(latest_checkpoint(run_dir / "checkpoints"))
    assert checkpoint.codec_digest == read_manifest(shards).codec_digest
    assert (
        f"must train on the tokens {read_manifest(shards).tokens_digest}" in (run_dir / "logs/monitor.log").read_text()
    )
    assert checkpoint.epoch >= 2
    return history, checkpoint.epoch


def without_the_trainers_other_packages(folder):
    """The environment of programs that find no package of the trainer but those of the extra `demo`."""
    pins = {name: set(re.findall(r"^([\w.-]+)==", (PINS / f"{name}.txt").read_text(), re.M)) for name in EXTRAS}
    folder.mkdir()
    hidden = sorted(pins["training"] - pins["demo"])
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({hidden})\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_demo_from_pictures_to_a_resumed_run(tmp_path, programs):
    recipe, run_dir, log = tiny_recipe(tmp_path), tmp_path / "run", tmp_path / "demo.log"
    training = [sys.executable, "-m", "training"]
    environment = without_the_trainers_other_packages(tmp_path / "missing")

    def call(*arguments):
        run_program([*training, *map(str, arguments)]).check_returncode()

    call("draw", "--out", run_dir / "images", "--count", 300)
    captions = run_dir / "images" / "captions.jsonl"
    shards = run_dir / "shards"
    call(
        *("prepare", "--recipe", recipe, "--images", run_dir / "images", "--captions", captions),
        *("--out", shards, "--codec-steps", 20),
    )

    def start(*arguments):
        port = ("--port", str(free_port()))  # one that no demo of another test takes
        with log.open("w") as output:
            command = [*training, "demo", "--recipe", recipe, "--run-dir", run_dir, *port, *arguments]
            return programs.start(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    demo = start()
    url = while_it_runs(demo, lambda: [w for w in log.read_text().split() if w.startswith("http://127")], log)[0]

    def live(name):
        return httpx.get(f"{url}/live/{name}.json", timeout=10).raise_for_status().json()

    def volunteers():
        return {volunteer["name"]: volunteer for volunteer in live("leaderboard")["volunteers"]}

    while_it_runs(demo, lambda: (live("state")["epoch"] or 0) >= 1, log)
    while_it_runs(demo, lambda: "grace" in volunteers(), log)  # the others can make an epoch without her

    command = shlex.split(live("run")["join_command"])
    with (tmp_path / "dorothy.log").open("w") as output:
        ours = ["--name", "dorothy", "--threads", "1", "--state-dir", tmp_path / "fourth"]
        fourth = programs.start([*command, *ours], stdout=output, stderr=subprocess.STDOUT)
    (grace,) = [p for p in psutil.Process(demo.pid).children() if "grace" in p.cmdline()]
    grace.kill()
    while_it_runs(demo, lambda: not volunteers()["grace"]["active"], log)
    assert "Volunteer grace ended (killed by SIGKILL); the others continue" in log.read_text()
    while_it_runs(demo, lambda: "dorothy" in volunteers(), log)
    while_it_runs(demo, lambda: "dorothy" in live("losses")["peers"], log)
    page = volunteers()["dorothy"]["page"]
    while_it_runs(demo, lambda: live(f"volunteers/{page}")["samples"], log)
    while_it_runs(demo, lambda: live("pictures")["snapshots"], log)

    demo.send_signal(signal.SIGINT)
    asked = time.monotonic()
    assert demo.wait(timeout=20) == 130
    assert time.monotonic() - asked < 10
    assert of_the_demo(programs.running()) == []
    fourth.terminate()
    fourth.wait(15)
    assert until(lambda: not programs.running(), within=20)  # torch's janitor of shared memory stays for two seconds

    history, saved = what_is_left(run_dir, shards)
    wanted = history.last_epoch()["epoch"] + 2  # the last epochs may have been too short for a last checkpoint
    again = start("--epochs", str(wanted))
    assert again.wait(timeout=180) == 0, log.read_text()
    assert programs.running() == []
    told = [path.read_text() for path in (run_dir / "logs").glob("*.log")]
    # A volunteer that starts last may find the others an epoch further.
    assert any(f"at epoch {saved} with the checkpoint epoch-{saved:06d}" in log for log in told)
    assert not any("fresh weights" in log for log in told)
    epochs = [row["epoch"] for row in HistoryReader(run_dir / "history.sqlite").epochs()]
    assert epochs[-1] >= wanted and epochs == sorted(set(epochs))
    with closing(sqlite3.connect(run_dir / "history.sqlite")) as connection:
        shown = connection.execute("SELECT samples, credited FROM reports WHERE witnesses").fetchall()
    assert shown and all(samples == credited for samples, credited in shown), "nobody has claimed too much"
