"""What a volunteer keeps beside training and when it leaves: all of its weights and moments, or nothing."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.training.roles import test_peer
from training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from training.checkpoints.keep import EVERY_SECONDS, MOST_PARAMETERS, WRITING_SHARE, Keeping, KeptWeights
from training.optim.saved import optimizer_tensors
from training.recipe import parse_recipe
from training.swarm.epoch.strategies import strategy_of
from training.swarm.run.lineage import Lineage
from training.swarm.state.alignment import AlignmentState, Event
from training.tasks.known import task_of

shards = test_peer.shards
RECIPE = test_peer.tiny_recipe()
RUN, LINEAGE, EPOCH = parse_recipe(RECIPE), Lineage(id="a" * 16), 7


@pytest.fixture(scope="module")
def model():
    return task_of(RUN).build_trained_part()


@pytest.fixture
def optimizer(model):
    """Optimizer of a peer that has made some updates."""
    master = strategy_of(RUN.swarm).make_master(model, RUN)
    for parameter in master.parameters:
        parameter.grad = torch.ones_like(parameter)
    master.update(EPOCH - 1)
    return SimpleNamespace(master=master, alignment=AlignmentState(), run=RUN)


@pytest.fixture
def kept(tmp_path, shards):
    return KeptWeights(folder=tmp_path / "kept", recipe_toml=RECIPE, shards=str(shards), codec_digest="c" * 16)


def test_all_of_a_peers_state_comes_back(kept, optimizer, model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # the last update has not reached the model yet
    path = kept.keep(optimizer, model, LINEAGE)
    assert kept.newest(LINEAGE) == (path, EPOCH)
    read = load_checkpoint(path, recipe=RUN, computes=False)
    groups = strategy_of(RUN.swarm).groups(read.model, RUN)
    for group, own in zip(groups, optimizer.master.optimizer.param_groups, strict=True):
        for parameter, copy in zip(group["params"], own["params"], strict=True):
            assert torch.equal(parameter, copy)
    moments = optimizer_tensors(optimizer.master.optimizer)
    assert read.extra_tensors.keys() == moments.keys() and moments
    assert all(torch.equal(read.extra_tensors[name], moments[name]) for name in moments)
    assert (read.lineage, read.epoch) == (LINEAGE.id, EPOCH) and read.codec_digest == kept.codec_digest


def test_only_the_newest_stays(kept, optimizer, model):
    first = kept.keep(optimizer, model, LINEAGE)
    optimizer.master.update(EPOCH)
    second = kept.keep(optimizer, model, LINEAGE)
    assert list(kept.folder.iterdir()) == [second] != [first]
    assert kept.keep(optimizer, model, LINEAGE) == second  # again, of the same epoch


@pytest.mark.parametrize("event", [Event.AVERAGE_TORN, Event.OVERTAKEN])
def test_weights_that_differ_from_the_others_are_not_kept(kept, optimizer, model, event):
    optimizer.alignment.note(event)
    assert kept.keep(optimizer, model, LINEAGE) is None and not kept.folder.exists()


def updates_alone(alignment):
    alignment.updated_alone()


def lacks_moments(alignment):
    alignment.note(Event.SKIPPED_EPOCHS)
    alignment.note(Event.PARAMETERS_AVERAGED)


@pytest.mark.parametrize("happens", [updates_alone, lacks_moments])
def test_weights_that_may_differ_from_the_others_are_marked(kept, optimizer, model, happens):
    assert not kept.may_differ(kept.keep(optimizer, model, LINEAGE))
    happens(optimizer.alignment)
    assert kept.may_differ(kept.keep(optimizer, model, LINEAGE))


def test_nothing_is_kept_of_weights_without_an_update_without_a_recipe_and_without_room(
    kept, optimizer, model, monkeypatch
):
    nameless = replace(kept, recipe_toml="")
    assert nameless.keep(optimizer, model, LINEAGE) is None
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200_000))
        assert kept.keep(optimizer, model, LINEAGE) is None
    optimizer.master.epoch = 0
    assert kept.keep(optimizer, model, LINEAGE) is None and not kept.folder.exists()


def test_weights_of_another_training_and_damaged_facts_are_nothing(kept, optimizer, model):
    assert kept.newest(LINEAGE) == (None, 0)
    path = kept.keep(optimizer, model, LINEAGE)
    assert kept.newest(Lineage(id="b" * 16)) == (None, 0)
    assert kept.newest(Lineage(id="b" * 16, ancestors=((LINEAGE.id, EPOCH),))) == (path, EPOCH)
    assert kept.newest(Lineage(id="b" * 16, ancestors=((LINEAGE.id, EPOCH - 1),))) == (None, 0)
    (path / "checkpoint.json").write_text("{")
    assert kept.newest(LINEAGE) == (None, 0)


def test_weights_from_before_a_branch_began_are_not_those_of_the_branch(kept, optimizer, model):
    """A volunteer has kept the first epoch, and the maintainer goes back to a later one."""
    path = kept.keep(optimizer, model, LINEAGE)
    branch = LINEAGE.branch(EPOCH + 1)
    assert kept.newest(branch) == kept.newest(branch.branch(EPOCH + 3)) == (None, 0)
    assert kept.newest(LINEAGE) == kept.newest(LINEAGE.branch(EPOCH)) == (path, EPOCH)


def test_a_full_disk_leaves_what_was_kept_before(kept, optimizer, model, monkeypatch):
    first = kept.keep(optimizer, model, LINEAGE)
    optimizer.master.update(EPOCH)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("training.checkpoints.keep.save_checkpoint", full)
    assert kept.keep(optimizer, model, LINEAGE) is None
    assert list(kept.folder.iterdir()) == [first]


class Played:
    """A clock, and what keeps no weights but notes when, and how long that took."""

    def __init__(self, seconds=0.0):
        self.now, self.seconds, self.kept, self.left = 0.0, seconds, [], []
        self.keeping = Keeping(self, clock=lambda: self.now)
        self.is_the_runs = lambda optimizer: optimizer != "drifted"

    def keep(self, optimizer, model, lineage):
        self.kept.append(self.now)
        self.now += self.seconds

    def train(self, seconds, epoch_seconds, optimizer="good"):
        """Epochs end; each writing ends before the next one does."""
        until = self.now + seconds
        while self.now < until:
            self.now += epoch_seconds
            self.keeping.look(optimizer, None, None)
            self.keeping.finish()


@pytest.mark.parametrize("epoch_seconds", [1.0, 45.0, 599.0, 3600.0])
@pytest.mark.parametrize("seconds", [0.0, 2.0, 11.9])
def test_weights_are_kept_after_the_first_epoch_and_every_ten_minutes(epoch_seconds, seconds):
    """Between two updates the weights do not change, so a longer epoch loses nothing that could be kept."""
    played = Played(seconds)
    played.train(36_000, epoch_seconds)
    assert played.kept[0] == epoch_seconds
    pauses = [later - earlier for earlier, later in zip(played.kept, played.kept[1:], strict=False)]
    assert len(pauses) >= 9 and min(pauses) >= EVERY_SECONDS
    assert max(pauses) <= EVERY_SECONDS + seconds + epoch_seconds


@pytest.mark.parametrize("seconds", [0.5, 12.0, 40.0, 600.0])
def test_at_most_a_fiftieth_of_a_peers_time_goes_to_keeping(seconds):
    played = Played(seconds)
    played.train(1_000_000, 30.0)
    assert len(played.kept) * seconds <= WRITING_SHARE * played.now + seconds


def test_weights_that_are_not_the_runs_are_kept_at_the_next_epoch_that_has_better_ones():
    played = Played()
    played.train(1000, 10.0, optimizer="drifted")
    assert not played.kept
    played.train(10, 10.0)
    assert played.kept == [1010.0]


def test_training_goes_on_while_the_weights_are_written(kept, optimizer, model, monkeypatch):
    """Only while they are copied is an update held up; what is written is all of one epoch."""
    began, may_end = threading.Event(), threading.Event()

    def slowly(*arguments, **facts):
        began.set()
        assert may_end.wait(60)
        return save_checkpoint(*arguments, **facts)

    monkeypatch.setattr("training.checkpoints.keep.save_checkpoint", slowly)
    before = [parameter.detach().clone() for parameter in optimizer.master.parameters]
    moments = {name: one.clone() for name, one in optimizer_tensors(optimizer.master.optimizer).items()}
    keeping = Keeping(kept)
    keeping.look(optimizer, model, LINEAGE)
    assert began.wait(60)
    optimizer.master.update(EPOCH)
    keeping.look(optimizer, model, LINEAGE)  # one is under way
    may_end.set()
    keeping.finish()
    path, epoch = kept.newest(LINEAGE)
    assert epoch == EPOCH and list(kept.folder.iterdir()) == [path]
    read = load_checkpoint(path, recipe=RUN, computes=False)
    written = [parameter for group in strategy_of(RUN.swarm).groups(read.model, RUN) for parameter in group["params"]]
    assert all(torch.equal(one, other) for one, other in zip(written, before, strict=True))
    assert not any(map(torch.equal, written, optimizer.master.parameters))
    assert all(torch.equal(read.extra_tensors[name], one) for name, one in moments.items())


@pytest.mark.parametrize("parameters, is_kept", [(MOST_PARAMETERS, True), (MOST_PARAMETERS + 1, False)])
def test_a_peer_that_leaves_writes_no_more_than_it_has_time_for(monkeypatch, parameters, is_kept):
    monkeypatch.setattr("training.checkpoints.keep.count_trained", lambda model: parameters)
    played = Played()
    played.keeping.leave("good", None, None)
    assert bool(played.kept) == is_kept
