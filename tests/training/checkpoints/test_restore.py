"""Going back to an earlier checkpoint: what is ordered, what a maintainer is told, and what becomes of the files."""

from __future__ import annotations

import json

import pytest

from training.checkpoints.branches import folder_name, set_aside, set_aside_damaged
from training.checkpoints.checkpoint import (
    FACTS_FILE,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from training.checkpoints.folders import STATE_FOLDER
from training.checkpoints.restore import order_restore
from training.errors import BadInput
from training.model.transformer import build_model
from training.recipe import RECIPES, parse_recipe
from training.swarm.node.identity import Identity
from training.swarm.run.lineage import BRANCH_FILE, Lineage, LineageMessage, keep, read_kept

OLD = Lineage(id="a" * 16)
RECIPE = (RECIPES / "demo.toml").read_text().replace("hidden_size = 128", "hidden_size = 32")
RECIPE = RECIPE.replace("num_heads = 4", "num_heads = 1")


@pytest.fixture(scope="module")
def model():
    return build_model(parse_recipe(RECIPE).model, seed=0)


@pytest.fixture
def run_dir(tmp_path, model):
    """A run of 30 epochs, with a checkpoint of every tenth."""
    for epoch in (10, 20, 30):
        save(tmp_path, model, epoch, OLD)
    (tmp_path / STATE_FOLDER).mkdir()
    keep(tmp_path / STATE_FOLDER, LineageMessage(lineage=OLD, epoch=30))
    return tmp_path


def save(run_dir, model, epoch, lineage):
    facts = {"metrics": {"loss": 3.456} if epoch == 10 else {}, "shards": "s", "lineage": lineage}
    return save_checkpoint(run_dir / "checkpoints", model=model, recipe_toml=RECIPE, epoch=epoch, **facts)


def names(folder):
    return [path.name for path in list_checkpoints(folder / "checkpoints")]


@pytest.mark.parametrize("place", ["bootstrap", "elsewhere"], ids=["of `serve`", "another one"])
def test_an_order_changes_nothing_but_says_who_takes_it(run_dir, tmp_path, place):
    bootstrap = tmp_path / place
    identity = Identity(bootstrap)
    keep(bootstrap, LineageMessage(lineage=OLD, epoch=29))
    before = names(run_dir)
    said = " ".join(order_restore(run_dir, 20, state_dirs=[bootstrap] if place == "elsewhere" else []))
    assert names(run_dir) == before and read_kept(run_dir / STATE_FOLDER).lineage == OLD
    ordered = read_kept(run_dir / STATE_FOLDER, BRANCH_FILE)
    assert ordered.lineage.ancestors == ((OLD.id, 20),) and ordered.epoch == 20
    assert read_kept(bootstrap, BRANCH_FILE) == ordered
    assert f"The bootstrap peer of {bootstrap} is running and announces it" in said
    assert "monitor is not running; it announces it as soon as you start it" in said
    assert identity.peer_id


def test_volunteers_that_know_only_a_bootstrap_peer_are_thought_of(run_dir):
    assert "--state-dir" in order_restore(run_dir, 0)[-1]


@pytest.mark.parametrize(
    "epoch, words",
    [(15, r"no checkpoint of epoch 15, only those of epochs 10 \(loss 3.46\), 20, 30"), (20, "is damaged")],
)
def test_a_checkpoint_that_is_not_there_or_damaged_is_refused(run_dir, epoch, words):
    (run_dir / "checkpoints" / "epoch-000020" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match=words):
        order_restore(run_dir, epoch)
    assert read_kept(run_dir / STATE_FOLDER, BRANCH_FILE) is None


def test_folders_of_something_else_are_refused(run_dir, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="not the state folder of a bootstrap peer"):
        order_restore(run_dir, 20, state_dirs=[tmp_path / "empty"])
    with pytest.raises(BadInput, match="does not say which lineage"):
        order_restore(tmp_path / "empty", 0)


def test_later_checkpoints_are_set_aside_once(run_dir, model):
    branch = OLD.branch(20)
    moved = set_aside(run_dir / "checkpoints", branch)
    assert [path.relative_to(run_dir).as_posix() for path in moved] == [f"branches/{OLD.id}/000030"]
    assert names(run_dir) == ["epoch-000010", "epoch-000020"]
    assert find_checkpoint(run_dir).name == "epoch-000020"
    assert load_checkpoint(run_dir / "checkpoints" / "epoch-000020").lineage == branch.id
    assert load_checkpoint(run_dir / "checkpoints" / "epoch-000010").lineage == OLD.id
    assert load_checkpoint(moved[0]).epoch == 30
    save(run_dir, model, 30, branch)
    assert set_aside(run_dir / "checkpoints", branch) == [] and len(names(run_dir)) == 3
    (again,) = set_aside(run_dir / "checkpoints", branch.branch(20))
    assert again.parent.name == branch.id


def test_pictures_of_a_branch_do_not_replace_those_of_before(run_dir, model):
    branch = OLD.branch(20)
    before = list_checkpoints(run_dir / "checkpoints")
    assert [folder_name(path) for path in before] == ["000010", "000020", "000030"]
    set_aside(run_dir / "checkpoints", branch)
    again = save(run_dir, model, 30, branch)
    assert folder_name(again) == f"000030-{branch.id[:8]}"


def test_what_was_set_aside_before_is_not_replaced(run_dir, model):
    set_aside(run_dir / "checkpoints", OLD.branch(20))
    save(run_dir, model, 30, OLD)  # by a monitor that had not heard of it
    (moved,) = set_aside(run_dir / "checkpoints", OLD.branch(20))
    assert moved.name == "000030-2"


def test_a_run_without_branches_and_damaged_folders_stay_as_they_are(run_dir):
    assert set_aside(run_dir / "checkpoints", OLD) == []
    (run_dir / "checkpoints" / "epoch-000030" / FACTS_FILE).write_text(json.dumps({"format": 99}))
    assert set_aside(run_dir / "checkpoints", OLD.branch(20)) == []


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "truncated": lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-7]),
    "emptied": lambda path: (path / "model.safetensors").write_bytes(b""),
    "a flipped bit": lambda path: flip(path / "model.safetensors"),
    "a flipped bit of the recipe": lambda path: flip(path / "recipe.toml"),
    "without weights": lambda path: (path / "model.safetensors").unlink(),
    "without facts": lambda path: (path / "checkpoint.json").unlink(),
    "garbled facts": lambda path: (path / "checkpoint.json").write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_named_and_the_newest_sound_one_is_the_latest(run_dir, damage):
    folder = run_dir / "checkpoints"
    assert set_aside_damaged(folder) == []
    damage(folder / "epoch-000030")
    (said,) = set_aside_damaged(folder)
    assert said.startswith(f"The checkpoint {folder / 'epoch-000030'} is not used: it")
    assert said.endswith(f". It is now {run_dir / 'damaged' / 'epoch-000030'}.")
    assert (run_dir / "damaged" / "epoch-000030").is_dir()
    assert names(run_dir) == ["epoch-000010", "epoch-000020"]
    assert set_aside_damaged(folder) == []


def test_older_checkpoints_are_looked_at_apart(run_dir):
    folder = run_dir / "checkpoints"
    flip(folder / "epoch-000010" / "model.safetensors")
    assert set_aside_damaged(folder) == []  # the newest one is sound
    assert "differs from the digest" in set_aside_damaged(folder, older=True)[0]
    assert names(run_dir) == ["epoch-000020", "epoch-000030"]
