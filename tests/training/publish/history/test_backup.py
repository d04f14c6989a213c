"""Backups of a history that is being written, and a monitor's files after it was killed again and again."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading

import pytest

from tests.support.programs import run_program
from tests.training.publish.history.test_history import Report
from training.checkpoints.checkpoint import list_checkpoints, load_checkpoint
from training.errors import BadInput
from training.publish.history.backup import KEPT, back_up, back_up_run, backups
from training.publish.history.history import History, HistoryReader
from training.publish.history.sound import DamagedHistory


@pytest.fixture
def history(tmp_path):
    history = History(tmp_path / "history.sqlite", run_id="demo", recipe_digest="d", expiration_seconds=30)
    yield history
    history.close()


def test_a_backup_holds_all_that_was_written(history, tmp_path):
    """What was written last is not in the file itself yet, but beside it."""
    history.observe([Report()])
    for epoch in (1, 2, 3):
        history.observe([Report(epoch=epoch, loss=3.0, samples=10 * epoch, time=epoch)])
    history.set_run_value("document", "{}")
    assert (tmp_path / "history.sqlite-wal").stat().st_size > 0
    back_up(tmp_path / "history.sqlite", tmp_path / "elsewhere" / "copy.sqlite")
    copy = HistoryReader(tmp_path / "elsewhere" / "copy.sqlite")
    assert copy.epochs() == history.epochs() != []
    assert copy.leaderboard() == history.leaderboard()
    assert copy.events() == history.events()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["copy.sqlite"]
    again = History(copy.path, run_id="demo", recipe_digest="d", expiration_seconds=30)
    again.observe([Report(epoch=4, loss=3.0, samples=50, time=4)])
    assert again.total_samples() == 50
    again.close()


def test_each_backup_of_a_busy_history_is_of_one_moment(history, tmp_path):
    """A thread writes two things in each transaction; no copy has one without the other."""
    history.observe([Report()])
    stop = threading.Event()

    def write():
        epoch = 0
        while not stop.is_set():
            epoch += 1
            history.observe([Report(epoch=epoch, loss=1.0, samples=10 * epoch, time=epoch)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = []
        for number in range(10):
            back_up(tmp_path / "history.sqlite", tmp_path / "copy.sqlite")
            copy = HistoryReader(tmp_path / "copy.sqlite")
            counts.append(copy.total_samples())
            assert sum(epoch["samples"] for epoch in copy.epochs()) == counts[-1], number
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_a_run_keeps_a_few_backups(history, tmp_path):
    for epoch in (10, 20, 30, 40, 15):  # at the end the run has gone back
        back_up_run(tmp_path, epoch)
    assert [path.name for path in backups(tmp_path)] == [f"history-{epoch:06d}.sqlite" for epoch in (30, 40, 15)]
    assert KEPT == 3


def test_a_damaged_history_replaces_no_backup(history, tmp_path):
    for epoch in range(200):
        history.set_run_value(f"filling {epoch}", "x" * 1000)
    good = back_up_run(tmp_path, 10).read_bytes()
    history.close()
    content = bytearray((tmp_path / "history.sqlite").read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    (tmp_path / "history.sqlite").write_bytes(content)
    with pytest.raises(DamagedHistory, match="is damaged: "):
        back_up_run(tmp_path, 10)
    assert [path.read_bytes() for path in backups(tmp_path)] == [good]
    with pytest.raises(BadInput, match="no history"):
        back_up(tmp_path / "nothing.sqlite", tmp_path / "copy.sqlite")


@pytest.mark.programs
def test_the_command_copies_the_history_of_a_running_monitor(history, tmp_path):
    """`history` is open here and has the writer's lock."""
    history.observe([Report()])
    command = [sys.executable, "-m", "training", "monitor", "--run-dir", tmp_path, "--backup"]
    done = run_program([*command, tmp_path / "copy.sqlite"])
    assert (done.returncode, done.stdout) == (0, f"Wrote {tmp_path / 'copy.sqlite'}.\n"), done.stderr
    assert HistoryReader(tmp_path / "copy.sqlite").leaderboard() == history.leaderboard()
    done = run_program([*command[:-2], tmp_path / "nothing", "--backup", tmp_path / "copy.sqlite"])
    assert done.returncode == 2
    assert "Error: There is no history at" in done.stderr


WRITER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from training.checkpoints.checkpoint import latest_checkpoint, checkpoint_epoch, save_checkpoint
from training.checkpoints.retention import delete_surplus
from training.recipe import RECIPES, load_recipe
from training.model.transformer import build_model
from training.publish.history.backup import back_up_run
from training.publish.history.history import History
from training.swarm.node.metrics import PeerRecord

torch.set_num_threads(1)
FOLDER, SEED = Path(sys.argv[1]), int(sys.argv[2])
RUN, TEXT = load_recipe("demo"), (RECIPES / "demo.toml").read_text()
MODEL = build_model(RUN.model, seed=1)
BEGAN = time.monotonic()
PEERS = {"ada": 7, "bob": 11}  # samples in each epoch

def records(epoch):
    return [PeerRecord.construct(recent=(), name=name, peer_id=name, status="training", lineage=None, epoch=epoch,
        loss=8.0 / epoch if epoch else None, samples=samples * epoch, samples_per_second=1.0, seconds=float(epoch),
        time=float(epoch)) for name, samples in PEERS.items()]

def epoch_now():  # the volunteers go on, whether or not anybody watches
    return int((time.monotonic() - BEGAN) / 0.01)

def watch(history, epoch, acknowledge):
    history.observe(records(epoch))
    acknowledge("epoch", epoch)
    latest = latest_checkpoint(FOLDER / "checkpoints")
    if epoch >= 10 + (checkpoint_epoch(latest) if latest else 0):
        path = save_checkpoint(FOLDER / "checkpoints", model=MODEL, recipe_toml=TEXT, epoch=epoch,
            metrics={"loss": 8.0 / epoch}, shards="s")
        acknowledge("checkpoint", epoch)
        delete_surplus(FOLDER / "checkpoints", RUN.monitor)
        back_up_run(FOLDER, epoch)
        acknowledge("backup", epoch)

def monitor(out):
    history = History(FOLDER / "history.sqlite", run_id="demo", recipe_digest=RUN.digest, expiration_seconds=60)
    while True:
        watch(history, epoch_now(), lambda what, epoch: os.write(out, f"{what} {epoch}\\n".encode()))

def killed_after(seconds):
    come, go = os.pipe()
    child = os.fork()
    if not child:
        monitor(go)
    os.close(go)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(come) as told:
        return [line.split() for line in told.read().splitlines()]

history = History(FOLDER / "history.sqlite", run_id="demo", recipe_digest=RUN.digest, expiration_seconds=60)
history.observe(records(0))
told = []
time.sleep(0.2)
began = time.monotonic()
watch(history, epoch_now(), lambda what, epoch: told.append([what, epoch]))
round_seconds = time.monotonic() - began  # with a checkpoint and a backup, which a busy disk delays
history.close()
chance = random.Random(SEED)
told += [told for _ in range(10) for told in killed_after(round_seconds * chance.uniform(0.1, 3))]
history = History(FOLDER / "history.sqlite", run_id="demo", recipe_digest=RUN.digest, expiration_seconds=60)
last = epoch_now()
watch(history, last, lambda what, epoch: told.append([what, epoch]))
history.close()
print(json.dumps({"told": [[what, int(epoch)] for what, epoch in told], "last": last}))
"""


@pytest.mark.programs
def test_a_monitor_that_is_killed_ten_times_loses_and_doubles_nothing(tmp_path):
    """It is killed at random moments, and all that it has said to be written is there in the end, once."""
    done = run_program([sys.executable, "-c", WRITER, tmp_path, "11"])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    said = {
        what: {epoch for kind, epoch in result["told"] if kind == what} for what in ("epoch", "checkpoint", "backup")
    }
    assert min(map(len, said.values())) >= 3, said
    history = HistoryReader(tmp_path / "history.sqlite")
    rows = history.epochs()
    epochs = [row["epoch"] for row in rows]
    assert epochs == sorted(set(epochs))
    assert said["epoch"] - {0} <= set(epochs)
    assert epochs[-1] == result["last"]
    volunteers = {row["name"]: row["samples"] for row in history.leaderboard()}
    assert volunteers == {"ada": 7 * len(epochs), "bob": 11 * len(epochs)}
    assert {row["samples"] for row in rows} == {18}, "as many as in each epoch, however many nobody has watched"
    assert all(row["loss"] == pytest.approx(8 / row["epoch"]) for row in rows)
    joined = [event["name"] for event in history.events() if event["kind"] == "joined"]
    assert sorted(joined) == ["ada", "bob"]

    saved = [load_checkpoint(path).epoch for path in list_checkpoints(tmp_path / "checkpoints")]
    assert saved[-1] >= max(said["checkpoint"])
    assert len(saved) <= 3 + result["last"] // 100 + 1
    assert set(saved[:-1]) <= said["checkpoint"] | set(saved)
    for backup in backups(tmp_path):
        with sqlite3.connect(backup) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(backups(tmp_path)) <= KEPT
    assert int(backups(tmp_path)[-1].stem.removeprefix("history-")) >= max(said["backup"])
