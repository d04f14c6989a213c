"""Checkpoints: the same bits come back, or a sentence says why not."""

import json
import resource
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from training.checkpoints.checkpoint import (
    codec_of,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from training.errors import BadInput, TrainingError
from training.model.transformer import build_model
from training.recipe import RECIPES, load_recipe, parse_recipe

RECIPE = (RECIPES / "demo.toml").read_text()


@pytest.fixture(scope="module")
def model():
    return build_model(load_recipe("demo").model, seed=7)


def save(folder, model, epoch=40, **more):
    facts = dict(recipe_toml=RECIPE, epoch=epoch, metrics={"loss": 1.5}, shards="runs/demo/shards", clock=lambda: 99.0)
    return save_checkpoint(folder, model=model, **(facts | more))


def test_what_was_saved_is_loaded(tmp_path, model):
    extra = {"moment/0": torch.arange(7, dtype=torch.uint8), "step": torch.tensor(3.5)}
    path = save(tmp_path, model, extra_tensors=extra)
    assert path == tmp_path / "epoch-000040"
    loaded = load_checkpoint(path, recipe=load_recipe("demo"))
    assert (loaded.epoch, loaded.metrics, loaded.shards) == (40, {"loss": 1.5}, "runs/demo/shards")
    assert loaded.codec_digest == codec_of(path) is None
    assert loaded.config == load_recipe("demo") and loaded.recipe_toml == RECIPE
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert loaded.extra_tensors.keys() == extra.keys()
    assert all(torch.equal(loaded.extra_tensors[name], extra[name]) for name in extra)
    facts = json.loads((path / "checkpoint.json").read_text())
    assert facts["written_at"] == 99.0 and facts["parameters"] == sum(p.numel() for p in model.parameters())


def test_latest_is_the_highest_epoch(tmp_path, model):
    assert latest_checkpoint(tmp_path / "nowhere") is None
    for epoch in (9, 100, 30, 1_000_000):
        save(tmp_path, model, epoch)
    (tmp_path / "epoch-abc").mkdir()
    (tmp_path / "epoch-2000000").mkdir()  # without facts: no checkpoint
    assert latest_checkpoint(tmp_path).name == "epoch-1000000"
    names = ["epoch-000009", "epoch-000030", "epoch-000100", "epoch-1000000"]
    assert [path.name for path in list_checkpoints(tmp_path)] == names


def test_the_same_epoch_is_replaced(tmp_path, model):
    save(tmp_path, model)
    path = save(tmp_path, model, metrics={"loss": 1.25})
    assert load_checkpoint(path).metrics == {"loss": 1.25}
    assert [entry.name for entry in tmp_path.iterdir()] == ["epoch-000040"]


@pytest.mark.parametrize("name", ["model.safetensors", "recipe.toml"])
def test_damage_is_noticed(tmp_path, model, name):
    path = save(tmp_path, model)
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(BadInput, match=f"{name} is damaged"):
        load_checkpoint(path)


def test_weights_of_another_recipe_are_refused(tmp_path, model):
    path = save(tmp_path, model)
    other = parse_recipe(RECIPE.replace("image_grid = 8", "image_grid = 8\nshift_tokens = false"))
    with pytest.raises(BadInput, match="holds weights of the recipe demo"):
        load_checkpoint(path, recipe=other)
    wider = RECIPE.replace("hidden_size = 128", "hidden_size = 132")
    with pytest.raises(BadInput, match="sizes differ"):
        save(tmp_path, model, recipe_toml=wider)


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": {"../recipe.toml": {"sha256": "0" * 64, "bytes": 1}}},
        {"files": {"model.safetensors": "x", "recipe.toml": "x"}},
        {"files": {}},
        {"epoch": "40"},
        {"epoch": -1},
        {"epoch": 10**30},
        {"metrics": None},
        {"shards": 7},
        {"lineage": ["a"]},
        {"ancestors": 3},
        "[" * 100_000,
        '{"format": ' + "1" * 5000 + "}",
    ],
    ids=lambda change: str(change)[:40],
)
def test_facts_in_another_form_are_refused_in_one_sentence(tmp_path, model, change):
    """A site sends them to newcomers; each of these ended the program by an error of Python's, or passed."""
    facts = save(tmp_path, model) / "checkpoint.json"
    if isinstance(change, dict):
        change = json.dumps(json.loads(facts.read_text()) | change)
    facts.write_text(change)
    with pytest.raises(BadInput) as refused:
        load_checkpoint(facts.parent)
    assert "is no checkpoint: " in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.programs
def test_a_killed_writer_leaves_whole_checkpoints_only(tmp_path, programs):
    """A process that saves without end is killed at odd moments; whatever lies there afterwards loads."""
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from training.recipe import RECIPES, load_recipe
        from training.model.transformer import build_model
        from training.checkpoints.checkpoint import save_checkpoint
        model = build_model(load_recipe("demo").model, seed=0)
        text = (RECIPES / "demo.toml").read_text()
        while True:
            for epoch in (1, 2):
                save_checkpoint(Path(sys.argv[1]), model=model, recipe_toml=text, epoch=epoch, metrics={}, shards="s")
                print("saved", flush=True)
    """)
    process = programs.start([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        assert process.stdout.readline() == "saved\n"
    time.sleep(0.013)
    process.kill()
    process.wait()
    assert list_checkpoints(tmp_path)
    for path in list_checkpoints(tmp_path):
        load_checkpoint(path)


def test_a_full_disk_is_an_error_that_the_keeper_knows(tmp_path, model):
    """A limit on the size of files stands for the disk; with room again the next checkpoint is whole."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
        with pytest.raises(TrainingError, match=r"model\.safetensors cannot be written"):
            save(tmp_path, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert list_checkpoints(tmp_path) == []
    assert [path.name for path in save(tmp_path, model).parent.iterdir()] == ["epoch-000040"]
