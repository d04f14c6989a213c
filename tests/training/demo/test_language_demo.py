"""The demo with a recipe that trains a language model: stories, shards, a real swarm, and what people do with it."""

import json
import re
import sys

import pytest
import torch
from typer.testing import CliRunner

from tests.support.ports import free_port
from tests.support.programs import run_program
from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint
from training.cli import build_app
from training.data.store.sets import open_shards
from training.errors import BadInput
from training.model.language.adapters import digest_of
from training.publish.history.history import HistoryReader
from training.publish.pictures import PictureDrawer
from training.recipe import RECIPES
from training.tasks.held_out import MOST_SAMPLES

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]
OPENING = "Kate has a red key. She puts it in the drawer."


def train(*arguments: object) -> None:
    """Runs the demo, with all its programs, at a port that no demo of another test takes."""
    port = ("--port", free_port())
    done = run_program([sys.executable, "-m", "training", *map(str, (*arguments, *port))], within=500)
    assert done.returncode == 0, done.stdout + done.stderr


def call(*arguments: object) -> str:
    """What a command prints. It runs in this process: each program would load PyTorch and transformers for itself."""
    done = CliRunner().invoke(build_app(), [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of some epochs by two volunteers."""
    folder = tmp_path_factory.mktemp("stories")
    text = (RECIPES / "stories.toml").read_text()
    for before, after in {
        "hidden_size = 128": "hidden_size = 32",
        "num_hidden_layers = 3": "num_hidden_layers = 1",
        "target_batch_size = 128": "target_batch_size = 96",
        "_every_epochs = 10": "_every_epochs = 2",
        "max_epochs_alone = 10": "max_epochs_alone = 0",
        "continuation_tokens = 64": "continuation_tokens = 12",
    }.items():
        assert before in text
        text = text.replace(before, after)
    (folder / "recipe.toml").write_text(text)
    asked = {"--recipe": folder / "recipe.toml", "--run-dir": folder / "run", "--epochs": 5}
    train("demo", *(word for flag in asked.items() for word in flag), "--volunteers", 2, "--stories", 2000)
    return folder / "run"


@pytest.mark.smoke
def test_two_volunteers_train_it_and_the_monitor_shows_what_it_writes(run_dir):
    history = HistoryReader(run_dir / "history.sqlite")
    assert history.last_epoch()["epoch"] >= 5 and len(history.leaderboard()) == 2
    with (run_dir / "pictures.log").open("ab") as log:
        drawer = PictureDrawer(str(run_dir / "shards"), log)
        texts = drawer.draw(find_checkpoint(run_dir), run_dir / "pictures")
        drawer.close()
    assert len(texts) == 4 and texts[0].prompt == OPENING
    assert all(one.file is None and one.text and one.good is False for one in texts), (
        "after five updates, none is right"
    )


def test_the_monitors_process_and_the_command_measure_the_same_on_held_out_blocks(run_dir):
    checkpoint = find_checkpoint(run_dir)
    with (run_dir / "pictures.log").open("ab") as log:
        drawer = PictureDrawer(str(run_dir / "shards"), log)
        measured = drawer.measure(checkpoint)
        drawer.close()
    facts = json.loads(call("evaluate", "--checkpoint", checkpoint, "--count", 0, "--json"))
    blocks = open_shards(run_dir / "shards", "held-out", kind="text").samples
    assert measured.samples == facts["held_out"]["samples"] == min(MOST_SAMPLES, blocks)
    assert measured.tokens == facts["held_out"]["tokens"] > 50 * measured.samples
    assert measured.loss == pytest.approx(facts["held_out"]["loss"], rel=1e-5)
    assert 1 < facts["held_out"]["perplexity"] < 640 and facts["kinds"] == {}
    said = call("evaluate", "--checkpoint", checkpoint, "--count", 0)
    (printed,) = re.findall(rf"^Held-out loss of epoch {facts['epoch']}: (\S+) nats per token", said)
    assert float(printed) == pytest.approx(measured.loss, abs=1e-3)
    known = HistoryReader(run_dir / "history.sqlite").held_out()  # a monitor that ends soon may have measured none
    assert all(0 < one["loss"] < 7 and one["samples"] == measured.samples for one in known)


def test_its_checkpoint_writes_and_is_judged(run_dir):
    written = call("generate", OPENING, "--checkpoint", run_dir, "--tokens", 5)
    assert written.startswith(OPENING) and len(written) > len(OPENING) + 1
    found = json.loads(call("evaluate", "--checkpoint", run_dir, "--count", 5, "--json"))
    assert (
        found["run_id"] == "stories"
        and found["held_out"]["loss"] > 0
        and set(found["kinds"]) == {"seen", "unseen", "never combined"}
    )
    assert all(one["count"] == 5 and one["right"] == 0 for one in found["kinds"].values())


def test_it_goes_to_transformers(run_dir, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    call("convert", run_dir, tmp_path / "theirs")
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    ids = AutoTokenizer.from_pretrained(tmp_path / "theirs")(OPENING, return_tensors="pt")["input_ids"]
    ours = load_checkpoint(find_checkpoint(run_dir))
    with torch.no_grad():
        torch.testing.assert_close(network(ids).logits, ours.model.logits(ids), rtol=1e-5, atol=1e-6)


def test_two_volunteers_train_adapters_for_it(run_dir, tmp_path):
    """A second run fine-tunes what the first one has made: only the adapters travel and are saved."""
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    call("convert", run_dir, base)
    before = (find_checkpoint(run_dir) / "recipe.toml").read_text()
    first, _, rest = before.partition("[model.architecture]")
    digest = digest_of(load_file(base / "model.safetensors"))
    (tmp_path / "recipe.toml").write_text(
        first.replace("[model]", f'[model]\nfrom = "{base}"').replace('run_id = "stories"', 'run_id = "adapted"')
        + "[adapter]\nrank = 2\nalpha = 4.0\nfrozen_bits = 32\nfreeze_a = true\n"
        + f'base_digest = "{digest}"\n[data]'
        + rest.partition("[data]")[2].replace("peak_learning_rate = 1e-2", "peak_learning_rate = 1e-1")
    )
    asked = {"--recipe": tmp_path / "recipe.toml", "--run-dir": tmp_path / "run", "--epochs": 5}
    train("demo", *(word for flag in asked.items() for word in flag), "--volunteers", 2, "--stories", 2000)
    history = HistoryReader(tmp_path / "run" / "history.sqlite")
    assert history.last_epoch()["epoch"] >= 5 and len(history.leaderboard()) == 2
    path = find_checkpoint(tmp_path / "run")
    saved = load_file(path / "model.safetensors")
    assert len(saved) == 7 and all("lora_B" in name for name in saved)
    assert any(tensor.any() for tensor in saved.values()), "nothing was trained"
    assert path.joinpath("optimizer.safetensors").stat().st_size < 100_000
    assert call("generate", OPENING, "--checkpoint", path, "--tokens", 5).startswith(OPENING)
    call("convert", path, tmp_path / "whole")
    call("convert", path, tmp_path / "adapters", "--adapters")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters").eval()
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    ids = torch.randint(640, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = load_checkpoint(path).model.logits(ids)
        torch.testing.assert_close(theirs(ids).logits, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(whole(ids).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("generate", OPENING, "--clip", "x"), "makes text, for which --clip means nothing"),
        (("generate", "word " * 200), "tokens; the model takes 1 to 127"),
        (("evaluate", "--judge", "clip"), "makes text, for which --judge means nothing"),
    ],
)
def test_what_means_nothing_for_texts_is_refused_in_one_sentence(run_dir, arguments, said):
    refused = CliRunner().invoke(build_app(), [*arguments, "--checkpoint", str(run_dir)])
    assert isinstance(refused.exception, BadInput) and said in str(refused.exception)
