"""The monitor's keeper: what it notes of checkpoints and pictures while the run goes back, or the history is locked."""

from __future__ import annotations

import contextlib
import sqlite3
from types import SimpleNamespace

import pytest

from tests.training.publish.history.test_history import Report, open_history
from training.checkpoints.checkpoint import save_checkpoint
from training.model.transformer import build_model
from training.processes.events import EventLog
from training.publish.keeper import Keeper
from training.publish.showcase import Shown
from training.recipe import RECIPES, load_recipe
from training.swarm.run.lineage import Lineage

RUN, TEXT = load_recipe("demo"), (RECIPES / "demo.toml").read_text()
OLD = Lineage(id="a" * 16)
NEW = Lineage(id="b" * 16, ancestors=((OLD.id, 3),))


@pytest.fixture
def history(tmp_path):
    with contextlib.closing(open_history(tmp_path)) as history:
        history.enter_lineage(OLD.id)
        for epoch in range(1, 6):
            history.observe([Report(epoch=epoch, samples=10 * epoch, time=epoch, lineage=OLD.id)])
        yield history


@pytest.fixture
def keeper(tmp_path, history):
    settings = {"run_dir": tmp_path, "shards": "s", "codec_digest": None, "dht": None}
    keeper = Keeper(RUN, TEXT, **settings, history=history, events=EventLog(tmp_path / "events.jsonl"))
    keeper.enter(OLD)
    yield keeper
    keeper._drawer_log.close()


def save(folder, epoch, lineage):
    model = build_model(RUN.model, seed=7)
    return save_checkpoint(
        folder / "checkpoints", model=model, recipe_toml=TEXT, epoch=epoch, metrics={}, shards="s", lineage=lineage
    )


def test_pictures_of_what_the_run_has_gone_back_from_are_not_those_of_the_branch(tmp_path, history, keeper):
    """A drawing takes minutes on a slow machine. The branch comes to the same epoch later, with other weights."""
    for epoch in (3, 5):
        save(tmp_path, epoch, OLD)

    def draw(checkpoint, folder):
        keeper.enter(NEW)
        history.enter_lineage(NEW.id, NEW.ancestors)
        return [Shown(prompt="a", file="000005/0.png", shape=None, colour=None)]

    keeper._drawer = SimpleNamespace(draw=draw)
    keeper._draw()
    assert history.last_epoch()["epoch"] == 3, "the run has gone back"
    assert history.snapshots() == []
    keeper._drawer = SimpleNamespace(draw=lambda checkpoint, folder: [])
    keeper._draw()
    assert [snapshot["epoch"] for snapshot in history.snapshots()] == [3]


def test_a_checkpoint_is_copied_though_the_history_cannot_note_it(tmp_path, history, keeper):
    """It may be the run's last one, after which nobody looks again. The history's disk is full, or it is locked."""
    path, told = save(tmp_path, 5, OLD), []
    keeper._pusher = SimpleNamespace(look=lambda: told.append("look"))
    history._connection.execute("PRAGMA busy_timeout = 100")
    with contextlib.closing(sqlite3.connect(history.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        keeper._saver._note(path, SimpleNamespace(epoch=5))
    assert told == ["look"]
