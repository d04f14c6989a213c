"""The monitor's keeper: what it notes of checkpoints and pictures while the run goes back or the history is locked, and
what it saves when the monitor stops."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from types import SimpleNamespace

import pytest

from tests.support.random_shards import hold_out, write_shards
from tests.training.publish.history.test_history import Report, open_history
from training.checkpoints.checkpoint import checkpoint_epoch, lineage_of, save_checkpoint
from training.data.prepare.text import TextInput, prepare_text
from training.errors import TrainingError
from training.model.transformer import build_model
from training.processes.events import EventLog
from training.publish.keeper import Keeper
from training.publish.showcase import Shown
from training.recipe import RECIPES, load_recipe
from training.swarm.run.lineage import Lineage
from training.tasks.held_out import HeldOut

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


def test_each_checkpoint_is_measured_once_on_held_out_samples(tmp_path, history, keeper):
    """A failure is told, and not tried again; a branch comes to the same epoch with other weights."""
    folder, measured = write_shards(tmp_path / "shards", RUN), []

    def measure(checkpoint):
        measured.append((checkpoint_epoch(checkpoint), lineage_of(checkpoint)))
        if len(measured) == 2:
            raise TrainingError("The process ended.")
        return HeldOut(loss=float(len(measured)), samples=3, tokens=192, image_loss=1.0)

    keeper._drawer, keeper._shards = SimpleNamespace(measure=measure), str(folder)
    keeper._measure()
    save(tmp_path, 3, OLD)
    keeper._measure()
    assert measured == [], "nothing is held out"
    hold_out(folder, RUN, (3,))
    save(tmp_path, 4, OLD)
    keeper._measure()
    keeper._measure()
    save(tmp_path, 5, OLD)
    with pytest.raises(TrainingError):
        keeper._measure()
    keeper._measure()
    assert [(one["epoch"], one["loss"], one["samples"]) for one in history.held_out()] == [(4, 1.0, 3)]
    keeper.enter(NEW)
    history.enter_lineage(NEW.id, NEW.ancestors)
    history.observe([Report(epoch=4, samples=60, time=9, lineage=NEW.id)])
    keeper._measure()  # epoch 3, of which nothing was held out before
    save(tmp_path, 4, NEW)
    keeper._measure()
    assert measured == [(4, OLD.id), (5, OLD.id), (3, NEW.id), (4, NEW.id)]
    assert [(one["epoch"], one["loss"]) for one in history.held_out()] == [(3, 3.0), (4, 4.0)]
    save(tmp_path, 5, NEW)
    keeper._stopping.set()
    keeper._look_once()
    assert len(measured) == 4, "a monitor that stops starts no process"


def test_a_monitor_that_comes_back_measures_only_what_has_no_loss(tmp_path, history, keeper):
    folder = write_shards(tmp_path / "shards", RUN)
    hold_out(folder, RUN, (3,))
    save(tmp_path, 5, OLD)
    history.add_held_out(5, HeldOut(loss=2.0, samples=3, tokens=192), lineage=OLD.id)
    keeper._drawer, keeper._shards = None, str(folder)  # any call fails
    keeper._measure()
    assert [one["loss"] for one in history.held_out()] == [2.0]


def test_each_checkpoint_is_scored_once_if_a_clip_model_is_named(tmp_path, history, keeper):
    """The loss stays if the drawing of pictures fails."""
    folder, asked = write_shards(tmp_path / "shards", RUN), []
    hold_out(folder, RUN, (3,))

    def score(checkpoint, clip):
        asked.append((checkpoint_epoch(checkpoint), clip))
        if len(asked) == 2:
            raise TrainingError("The process ended.")
        return 0.25

    measure = lambda checkpoint: HeldOut(loss=2.0, samples=3, tokens=192)  # noqa: E731
    keeper._drawer, keeper._shards = SimpleNamespace(measure=measure, score=score), str(folder)
    for epoch, clip in ((3, None), (4, "clip"), (5, "clip")):
        keeper._clip = clip
        save(tmp_path, epoch, OLD)
        with contextlib.suppress(TrainingError):
            keeper._measure()
        keeper._measure()
    assert asked == [(4, "clip"), (5, "clip")]
    assert [(one["epoch"], one["loss"], one["clip_score"]) for one in history.held_out()] == [
        (3, 2.0, None),
        (4, 2.0, 0.25),
        (5, 2.0, None),
    ]


def test_adapters_are_measured_though_their_recipe_has_no_prompts(tmp_path, history, keeper):
    run = load_recipe("lora-7b")
    keeper._run = run.model_copy(update={"monitor": run.monitor.model_copy(update={"prompts": ()})})
    (tmp_path / "text.txt").write_text("Ada has a red key. " * 200)
    text = TextInput(path=tmp_path / "text.txt", block_length=16, vocabulary=300, holds_out=True)
    prepare_text(text, tmp_path / "text")
    save(tmp_path, 5, OLD)
    measured = HeldOut(loss=2.0, samples=3, tokens=48)
    keeper._drawer, keeper._shards = SimpleNamespace(measure=lambda checkpoint: measured), str(tmp_path / "text")
    keeper._measure()
    assert [(one["epoch"], one["loss"]) for one in history.held_out()] == [(5, 2.0)]


def test_a_checkpoint_is_copied_though_the_history_cannot_note_it(tmp_path, history, keeper):
    """It may be the run's last one, after which nobody looks again. The history's disk is full, or it is locked."""
    path, told = save(tmp_path, 5, OLD), []
    keeper._pusher = SimpleNamespace(look=lambda: told.append("look"))
    history._connection.execute("PRAGMA busy_timeout = 100")
    with contextlib.closing(sqlite3.connect(history.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        keeper._saver._note(path, SimpleNamespace(epoch=5))
    assert told == ["look"]


class Downloads:
    """The keeper's saver, whose downloads are given: an epoch that a donor sends, or the error of all donors."""

    def __init__(self, keeper, folder, donor):
        self.folder, self.donor, self.wanted = folder, donor, []
        keeper._saver.save = self.save

    def save(self, wanted, *_seconds):
        self.wanted.append(wanted)
        if isinstance(self.donor, Exception):
            raise self.donor
        save(self.folder, self.donor, OLD)


GONE = TrainingError("No peer offers its state yet.")


@pytest.mark.parametrize(
    ("saved", "donor", "told"),
    [
        (3, 5, ""),
        (None, 5, ""),
        (5, GONE, ""),
        (5, 6, ""),
        (3, GONE, "The last checkpoint is of epoch 3, and the run is at epoch 5: No peer offers its state yet. Vol"),
        (None, GONE, "There is no checkpoint, and the run is at epoch 5: No peer offers its state yet. Volunteers"),
    ],
    ids=["newer", "first", "just saved", "ahead of its records", "donors gone", "no checkpoint"],
)
def test_a_monitor_that_stops_saves_the_last_state_or_says_what_is_missing(
    tmp_path, history, keeper, capsys, saved, donor, told
):
    if saved is not None:
        save(tmp_path, saved, OLD)
    downloads = Downloads(keeper, tmp_path, donor)
    keeper.start()
    keeper.finish()
    assert downloads.wanted == [(saved or 0) + 1]
    assert keeper.saved_epoch() == (saved or 0 if donor is GONE else donor)
    printed = capsys.readouterr().out
    assert printed.startswith(told) if told else not printed


def test_a_monitor_that_stops_without_volunteers_says_who_has_the_last_state(tmp_path, history, keeper, capsys):
    save(tmp_path, 3, OLD)
    history.observe([Report(epoch=5, samples=50, time=9.0, lineage=OLD.id, status="leaving")])
    downloads = Downloads(keeper, tmp_path, 5)
    keeper.start()
    keeper.finish()
    assert not downloads.wanted
    assert capsys.readouterr().out == (
        "The last checkpoint is of epoch 3, and the run is at epoch 5: no volunteer is there to send a newer state. "
        "Volunteers keep their weights.\n"
    )


def test_a_download_under_way_becomes_the_last_checkpoint(tmp_path, keeper, capsys, monkeypatch):
    monkeypatch.setattr("training.publish.keeper.LAST_SECONDS", 120.0)
    began = threading.Event()

    def look_once():
        began.set()
        keeper._stopping.wait()
        save(tmp_path, 5, OLD)

    keeper._look_once = look_once
    Downloads(keeper, tmp_path, GONE)
    keeper.start()
    keeper.look()
    began.wait()
    keeper.finish()
    assert keeper.saved_epoch() == 5 and not capsys.readouterr().out
