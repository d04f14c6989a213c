"""`new` of a data set of the hub, from a server that answers as the hub does."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.support.hub_server import Repository, hub_server
from tests.support.programs import ROOT, run_program
from training.data.store.shards import read_manifest
from training.recipe import load_recipe


@pytest.mark.programs
def test_a_data_set_of_the_hub_is_prepared_and_named(tmp_path):
    lines = "".join(
        json.dumps({"text": f"Story {number}. " + "Ada has a red key. " * 40}) + "\n" for number in range(60)
    )
    with hub_server(
        {"us/stories": Repository({"train.jsonl": lines.encode(), "test.jsonl": lines[:900].encode()})}
    ) as hub:
        environment = {**os.environ, **hub.environment(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "training", "new", "hf://us/stories", "--yes", "--no-serve", "--days", "0.01"]
        ended = run_program([*command, "--volunteers", "2:cpu"], env=environment, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "hf://us/stories: a data set of text on the Hugging Face Hub." in ended.stdout
    made = tmp_path / "runs" / "stories"
    run, manifest = load_recipe(str(made / "recipe.toml")), read_manifest(made / "shards")
    assert run.run_id == "stories" and manifest.splits["train"].samples
    assert run.model.architecture["vocab_size"] == manifest.vocab_size
