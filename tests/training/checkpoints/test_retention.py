"""What is kept of a run's checkpoints: what the recipe says, within its budget, and never less than the newest."""

from __future__ import annotations

import random

import pytest
import torch

from training.checkpoints.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from training.checkpoints.retention import (
    GB,
    Stored,
    delete_from_branches,
    delete_surplus,
    stored_checkpoints,
    surplus,
)
from training.model.transformer import build_model
from training.publish.config import MonitorConfig
from training.recipe import RECIPES, load_recipe

OLD, NEW = "a" * 16, "b" * 16


def stored(epoch, loss=5.0, lineage=OLD, written_at=None, gb=1.0):
    return Stored(
        name=f"epoch-{epoch:06d}",
        epoch=epoch,
        lineage=lineage,
        loss=loss,
        written_at=float(epoch if written_at is None else written_at),
        bytes=int(gb * GB),
    )


def kept(checkpoints, needed_gb=0.0, **settings):
    """Epochs of what is kept of them."""
    config = MonitorConfig(**{"checkpoint_every_epochs": 10, "disk_budget_gb": 1000.0, **settings})
    gone = surplus(checkpoints, config, needed_bytes=int(needed_gb * GB))
    assert len(gone) == len(set(gone))
    return sorted(one.epoch for one in checkpoints if one.name not in gone)


def test_the_last_are_kept():
    run = [stored(epoch) for epoch in range(10, 101, 10)]
    assert kept(run, keep_last=3, keep_every_epochs=0, keep_best=0) == [80, 90, 100]
    assert kept(run[:2], keep_last=3, keep_every_epochs=0, keep_best=0) == [10, 20]
    assert kept([], keep_last=3) == []


def test_the_first_of_each_so_many_epochs_is_kept():
    """A checkpoint may come some epochs after it was due. Later ones do not replace the first."""
    run = [stored(epoch) for epoch in (11, 52, 99, 104, 120, 150, 199, 200, 203, 310, 320, 330)]
    assert kept(run, keep_last=1, keep_every_epochs=100, keep_best=0) == [104, 200, 310, 330]
    assert kept(run, keep_last=1, keep_best=0) == [104, 200, 310, 330]  # ten times checkpoint_every_epochs


def test_the_best_are_kept_and_unknown_losses_are_not_best():
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: float("inf"), 50: 4.0}
    run = [stored(epoch, loss) for epoch, loss in losses.items()]
    assert kept(run, keep_last=1, keep_every_epochs=0, keep_best=2) == [20, 30, 50]
    assert kept([stored(epoch, float("inf")) for epoch in losses], keep_last=1, keep_best=2) == [50]


def test_the_budget_takes_the_oldest_of_the_every_kth_first_and_never_the_newest():
    run = [stored(epoch, loss=abs(epoch - 250)) for epoch in range(50, 601, 50)]
    whole = {"keep_last": 2, "keep_every_epochs": 100, "keep_best": 1}
    assert kept(run, **whole) == [100, 200, 250, 300, 400, 500, 550, 600]
    assert kept(run, **whole, disk_budget_gb=6.5) == [250, 300, 400, 500, 550, 600]
    assert kept(run, **whole, disk_budget_gb=6.5, needed_gb=1) == [250, 400, 500, 550, 600]
    assert kept(run, **whole, disk_budget_gb=3) == [250, 550, 600]
    assert kept(run, **whole, disk_budget_gb=2) == [550, 600]
    assert kept(run, **whole, disk_budget_gb=0.1, needed_gb=1) == [600]


def test_after_going_back_the_last_are_those_of_the_new_lineage():
    """The old lineage had come further; what of it is kept for going back stays."""
    old = [stored(epoch) for epoch in (100, 200, 210, 220, 230)]
    new = [stored(epoch, lineage=NEW, written_at=1000 + epoch) for epoch in (110, 120)]
    assert kept([*old, *new], keep_last=2, keep_every_epochs=100, keep_best=0) == [100, 110, 120, 200]
    assert kept([*old, *new], keep_last=1, keep_every_epochs=0, keep_best=0) == [120]


def test_a_clock_that_was_set_back_does_not_cost_the_newest():
    run = [stored(10, written_at=500), stored(20, written_at=600), stored(30, written_at=300)]
    assert kept(run, keep_last=1, keep_every_epochs=0, keep_best=0) == [30]


def test_what_is_kept_is_kept_whatever_comes_later():
    """A run of 500 checkpoints, pruned after each: no choice depends on what was deleted before."""
    chance = random.Random(5)
    settings = {"keep_last": 3, "keep_every_epochs": 70, "keep_best": 2}
    everything, there = [], []
    for epoch in range(3, 1500, 3):
        everything.append(stored(epoch, loss=chance.uniform(1, 9)))
        there.append(everything[-1])
        epochs = kept(there, **settings)
        there = [one for one in there if one.epoch in epochs]
        assert [one.epoch for one in there] == kept(everything, **settings)
    assert len(there) <= 3 + 2 + 1500 // 70


@pytest.fixture(scope="module")
def model():
    return build_model(load_recipe("demo").model, seed=7)


def test_real_checkpoints_are_deleted_and_others_left_alone(tmp_path, model):
    text = (RECIPES / "demo.toml").read_text()
    for epoch, loss in ((10, 1.0), (20, 3.0), (30, None), (40, 2.0)):
        save_checkpoint(tmp_path, model=model, recipe_toml=text, epoch=epoch, metrics={"loss": loss}, shards="s")
    (tmp_path / "epoch-000020" / "checkpoint.json").write_text("damaged")
    (tmp_path / "notes").mkdir()
    settings = MonitorConfig(keep_last=1, keep_every_epochs=0, keep_best=1)
    assert delete_surplus(tmp_path, settings) == ["epoch-000030"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epoch-000010",
        "epoch-000020",
        "epoch-000040",
        "notes",
    ]
    assert torch.equal(*(next(load_checkpoint(list_checkpoints(tmp_path)[i]).model.parameters()) for i in (0, -1)))
    assert delete_surplus(tmp_path / "nowhere", settings) == []


def test_what_the_run_has_gone_back_from_counts_in_the_budget_and_goes_first(tmp_path, model):
    text, folder, branches = (RECIPES / "demo.toml").read_text(), tmp_path / "checkpoints", tmp_path / "branches"
    for epoch in (10, 20, 30, 40):
        save_checkpoint(folder, model=model, recipe_toml=text, epoch=epoch, metrics={}, shards="s")
    for lineage, epoch in (("a", 20), ("a", 30), ("b", 40)):
        (branches / lineage).mkdir(parents=True, exist_ok=True)
        (folder / f"epoch-{epoch:06d}").rename(branches / lineage / f"{epoch:06d}")
    (branches / "notes.txt").write_text("mine")
    one = stored_checkpoints(folder)[0].bytes

    def left(budget, **more):
        settings = MonitorConfig(disk_budget_gb=budget * one / GB)
        deleted = delete_from_branches(folder, settings, **more)
        return [path.relative_to(branches).as_posix() for path in deleted]

    assert left(4.5) == []
    assert left(4.5, needed_bytes=one) == ["a/000020"]
    assert left(0.5) == ["a/000030", "b/000040"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.parent == branches) == ["notes.txt"]
    assert [path.name for path in list_checkpoints(folder)] == ["epoch-000010"]
