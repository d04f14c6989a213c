"""`generate` and `evaluate` from a shell's point of view, on shards and a checkpoint that are really there."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from training.cli import build_app, main
from training.data.demo.draw import draw_set
from training.data.prepare.pictures import Input, prepare
from training.data.store.sets import open_shards
from training.data.store.shards import read_manifest
from training.errors import BadInput, TrainingError
from training.generate.evaluate import captions_of
from training.generate.pictures import Sampling, draw_prompts, load_codec_and_tokenizer
from training.model.codecs.codec import digest_of
from training.model.transformer import build_model
from training.publish.keeper import codec_of_run
from training.publish.pictures import PictureDrawer
from training.publish.prompts import CLIP_PICTURES
from training.recipe import RECIPES, parse_recipe

RECIPE = (RECIPES / "demo.toml").read_text()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run's folder: shards from drawn pictures, and a checkpoint of first weights."""
    folder = tmp_path_factory.mktemp("run")
    config = parse_recipe(RECIPE)
    draw_set(folder / "pictures", count=200, seed=0, size=64)
    captions = folder / "pictures" / "captions.jsonl"
    drawn = Input(images=folder / "pictures", captions=captions)
    manifest, _ = prepare(drawn, folder / "shards", config, codec_steps=2)
    model = build_model(config.model, seed=config.seed)
    for epoch in (3, 12):
        save_checkpoint(
            folder / "checkpoints",
            model=model,
            recipe_toml=RECIPE,
            epoch=epoch,
            metrics={"loss": 5.0},
            shards=str(folder / "shards"),
            codec_digest=manifest.codec_digest,
        )
    return folder


@pytest.fixture(scope="module")
def other_shards(tmp_path_factory):
    """Shards of the same recipe with another codec: all numbers fit, and mean other pictures."""
    folder = tmp_path_factory.mktemp("other")
    draw_set(folder / "pictures", count=40, seed=0, size=64)
    captions = folder / "pictures" / "captions.jsonl"
    drawn = Input(images=folder / "pictures", captions=captions)
    prepare(drawn, folder / "shards", parse_recipe(RECIPE), codec_steps=1)
    return folder / "shards"


def command(*arguments):
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
    if isinstance(result.exception, BadInput):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_generate_writes_pictures_and_their_facts(run_dir, tmp_path):
    prompt = "a red circle above a blue square"
    command("generate", prompt, "../Évil/ prompt", "--checkpoint", run_dir, "--out", tmp_path / "a", "--count", 2)
    facts = json.loads((tmp_path / "a" / "pictures.json").read_text())
    assert facts["epoch"] == 12 and facts["run_id"] == "demo" and facts["sampling"]["temperature"] == 1.0
    assert [entry["prompt"] for entry in facts["pictures"]] == [prompt, prompt, "../Évil/ prompt", "../Évil/ prompt"]
    assert [entry["seed"] for entry in facts["pictures"]] == [0, 1, 2, 3]
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {entry["file"] for entry in facts["pictures"]} | {"pictures.json", "index.html", "gallery.html"}
    assert "002-evil-prompt.png" in names
    for entry in facts["pictures"]:
        assert Image.open(tmp_path / "a" / entry["file"]).size == (64, 64)
    command("generate", prompt, "--checkpoint", run_dir, "--out", tmp_path / "b", "--count", 1, "--seed", 1)
    first, again = (tmp_path / "a" / "001-a-red-circle-above-a-blue-square.png"), next((tmp_path / "b").glob("*.png"))
    difference = np.asarray(Image.open(first), dtype=int) - np.asarray(Image.open(again), dtype=int)
    assert np.abs(difference).max() <= 1  # alone or with others: but for rounding
    command("generate", prompt, "--checkpoint", run_dir, "--out", tmp_path / "c", "--count", 1, "--seed", 1)
    assert again.read_bytes() == next((tmp_path / "c").glob("*.png")).read_bytes()


def test_prompts_come_from_a_file_too(run_dir, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red ring\n\n a blue star \n", encoding="utf-8-sig")  # as Windows' editors write
    command("generate", "--prompts", prompts, "--checkpoint", run_dir, "--out", tmp_path / "out", "--count", 1)
    facts = json.loads((tmp_path / "out" / "pictures.json").read_text())
    assert [entry["prompt"] for entry in facts["pictures"]] == ["a red ring", "a blue star"]


def test_candidates_are_ranked_by_the_runs_own_clip(run_dir, tmp_path, monkeypatch):
    """Trained once, kept in the run's folder, and used again by `neighbours`."""
    monkeypatch.setattr("training.generate.small_clip.STEPS", 3)
    arguments = ("--checkpoint", run_dir, "--out", tmp_path / "out", "--candidates", 5, "--keep", 2)
    command("generate", "a red ring", "a blue star", *arguments)
    facts = json.loads((tmp_path / "out" / "pictures.json").read_text())
    assert facts["candidates"] == 5 and facts["clip"] == str(run_dir / "clip")
    assert [entry["prompt"] for entry in facts["pictures"]] == ["a red ring"] * 2 + ["a blue star"] * 2
    for prompt, first_seed in ((0, 0), (1, 5)):
        scores = facts["scores"][prompt]["scores"]
        kept = facts["pictures"][2 * prompt : 2 * prompt + 2]
        assert [entry["score"] for entry in kept] == sorted(scores, reverse=True)[:2]
        assert all(scores[entry["seed"] - first_seed] == entry["score"] for entry in kept)
    trained = (run_dir / "clip" / "model.safetensors").stat().st_mtime_ns
    near = tmp_path / "near"
    said = command("neighbours", tmp_path / "out", "--checkpoint", run_dir, "--count", 3, "--out", near, "--json")
    found = json.loads(said.stdout)
    assert (run_dir / "clip" / "model.safetensors").stat().st_mtime_ns == trained
    assert len(found["pictures"]) == 4 and found["samples"] > 100
    assert found == json.loads((near / "neighbours.json").read_text())
    for one in found["pictures"]:
        assert len(one["pictures"]) == len(one["captions"]) == 3
        assert all((near / f"training-{neighbour['index']:06d}.png").is_file() for neighbour in one["pictures"])
    with pytest.raises(BadInput, match="4 of 2 candidates"):
        command("generate", "a red ring", "--checkpoint", run_dir, "--candidates", 2)
    with pytest.raises(BadInput, match="No CLIP model"):
        command("generate", "a red ring", "--checkpoint", run_dir, "--candidates", 4, "--clip", tmp_path)


def test_what_cannot_be_drawn_or_written_is_said_before_anything_is_drawn(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("training.generate.pictures.sample_codes", None)
    (tmp_path / "file").touch()
    (tmp_path / "captions.txt").write_text("a red circle\na lighthouse\n")
    drawing = ("generate", "a red ring", "--checkpoint", run_dir, "--out")
    with pytest.raises(BadInput, match=r"cannot be written to .*file: file exists"):
        command(*drawing, tmp_path / "file")
    with pytest.raises(BadInput, match="is no text"):
        command(*drawing, tmp_path / "out", "a \udcff ring")
    with pytest.raises(BadInput, match="'a lighthouse' cannot be drawn or judged"):
        asked = ("--captions", tmp_path / "captions.txt", "--count", 2, "--judge", "rule")
        command("evaluate", "--checkpoint", run_dir, *asked)


def test_a_file_that_fails_is_said_in_a_sentence(run_dir, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["training", "convert", str(run_dir), str(tmp_path / "file" / "theirs.pt")])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 1 and said.count("\n") == 2 and "file cannot be read or written: " in said


def test_evaluate_prints_shares_beside_chance(run_dir, tmp_path):
    result = command(
        "evaluate", "--checkpoint", run_dir, "--count", 12, "--json", "--out", tmp_path, "--temperature", 0.7
    )
    facts = json.loads(result.stdout)
    assert facts["count"] == 12 and facts["epoch"] == 12 and facts["captions"] == "held-out"
    assert facts["sampling"]["temperature"] == 0.7
    assert 0 <= facts["matched"] <= min(facts["shape"], facts["colour"]) <= 1
    low, high = facts["matched_interval"]
    assert low <= facts["matched"] <= high and set(facts["chance"]) == {"shape", "colour", "matched", "exact"}
    kept = json.loads((tmp_path / "pictures.json").read_text())["pictures"]
    assert sum(entry["matched"] for entry in kept) == round(12 * facts["matched"])
    table = command("evaluate", "--checkpoint", run_dir, "--count", 2, "--captions", "train").stdout
    assert "shape and colour" in table and "by chance" in table
    assert facts["clip_score"] is None and "No CLIP model is given" in table


def test_evaluate_measures_held_out_pictures(run_dir):
    asked = ("evaluate", "--checkpoint", run_dir, "--count", 0)
    facts = json.loads(command(*asked, "--json").stdout)
    held_out, manifest = facts["held_out"], read_manifest(run_dir / "shards")
    assert held_out["samples"] == manifest.splits["held-out"].samples > 0
    assert held_out["tokens"] == held_out["samples"] * 64 and held_out["perplexity"] is None
    assert 0 < held_out["image_loss"] < 2 * np.log(256) and 0 < held_out["loss"] < 2 * np.log(256)
    assert facts["reconstruction_error"] == manifest.reconstruction_error > 0 and "count" not in facts
    said = command(*asked).stdout
    assert f"{held_out['loss']:.4f} nats as in training" in said and "Reconstruction error of the codec: 0." in said


def test_evaluate_says_how_to_hold_samples_out(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    file = tmp_path / "run" / "shards" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["splits"]["held-out"] = {"samples": 0, "shards": []}
    file.write_text(json.dumps(manifest))
    asked = ("evaluate", "--checkpoint", tmp_path / "run", "--shards", tmp_path / "run" / "shards", "--count", 0)
    assert "Nothing is held out of training" in (said := command(*asked).stdout) and "`validation`" in said
    assert json.loads(command(*asked, "--json").stdout)["held_out"] is None


def test_evaluate_judges_the_candidates_that_clip_finds_nearest(run_dir, tmp_path, monkeypatch):
    """The same ones as `generate` keeps."""
    monkeypatch.setattr("training.generate.small_clip.STEPS", 3)
    ranked = ("--checkpoint", run_dir, "--candidates", 4, "--seed", 5)
    found = json.loads(command("evaluate", *ranked, "--count", 2, "--json", "--out", tmp_path / "judged").stdout)
    assert found["candidates"] == 4 and found["count"] == 2 and -1 <= found["clip_score"] <= 1 and found["clip"]
    judged = json.loads((tmp_path / "judged" / "pictures.json").read_text())["pictures"]
    prompts = [entry["prompt"] for entry in judged]
    command("generate", *prompts, *ranked, "--keep", 1, "--out", tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "pictures.json").read_text())["pictures"]
    assert [entry["seed"] for entry in judged] == [entry["seed"] for entry in kept] != [5, 9]


@pytest.mark.programs
def test_the_monitors_process_scores_pictures_of_held_out_captions_as_evaluate_does(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("training.generate.small_clip.STEPS", 3)
    seed, known = parse_recipe(RECIPE).seed, captions_of(open_shards(run_dir / "shards", "held-out"))
    asked = ("--checkpoint", run_dir, "--judge", "clip", "--seed", seed, "--count", min(len(set(known)), CLIP_PICTURES))
    facts = json.loads(command("evaluate", *asked, "--json").stdout)
    with (tmp_path / "log").open("wb") as log:
        drawer = PictureDrawer(str(run_dir / "shards"), log)
        found = drawer.score(find_checkpoint(run_dir), str(run_dir / "clip"))
        with pytest.raises(TrainingError, match="CLIP score"):
            drawer.score(find_checkpoint(run_dir), str(tmp_path))
        drawer.close()
    assert facts["captions"] == "held-out" and found == pytest.approx(facts["clip_score"], abs=1e-5)


def test_no_checkpoint_is_said_in_a_sentence(tmp_path):
    with pytest.raises(BadInput, match=r"has no checkpoint yet\. Train first"):
        command("generate", "a red circle", "--checkpoint", tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        command("evaluate", "--checkpoint", tmp_path / "nowhere")
    with pytest.raises(BadInput, match="Nothing to draw"):
        command("generate", "--checkpoint", tmp_path)


OTHER_CODEC = r"tokens of .*other.* are of the codec \w{12}, .*epoch-000012 was trained on .* \w{12}, .* --shards"


def test_shards_of_another_codec_draw_nothing(run_dir, other_shards, tmp_path, monkeypatch):
    monkeypatch.setattr("training.generate.pictures.sample_codes", None)
    picture = next((run_dir / "pictures").rglob("*.png"))
    for drawing in (("generate", "a red ring"), ("evaluate",), ("neighbours", picture)):
        with pytest.raises(BadInput, match=OTHER_CODEC):
            command(*drawing, "--checkpoint", run_dir, "--shards", other_shards)


def test_a_monitor_keeps_a_run_on_one_codec(run_dir, other_shards, tmp_path, capsys):
    run = parse_recipe(RECIPE)
    digest = codec_of_run(run, str(run_dir / "shards"), run_dir)
    assert digest == digest_of((run_dir / "shards" / "codec.safetensors").read_bytes())
    with pytest.raises(BadInput, match=OTHER_CODEC):
        codec_of_run(run, str(other_shards), run_dir)
    assert codec_of_run(run, "nowhere", run_dir) == digest and capsys.readouterr().out == ""
    assert codec_of_run(run, "nowhere", tmp_path) is None
    assert "will not say which codec" in capsys.readouterr().out


def test_a_picture_is_the_decoded_sample_of_its_own_seed(run_dir):
    """In any batch size; and the pixels are the codec's, rounded to bytes."""
    checkpoint = load_checkpoint(run_dir / "checkpoints" / "epoch-000012")
    codec, tokenizer = load_codec_and_tokenizer(checkpoint)
    prompts, seen = ["a red ring", "a blue star", "a pink heart"], []
    both = [
        draw_prompts(
            checkpoint.model,
            codec,
            tokenizer,
            prompts,
            sampling=Sampling(top_k=50),
            seed=4,
            batch_size=size,
            progress=lambda done, total: seen.append(done / total),
        )
        for size in (3, 2)
    ]
    for one, other in zip(*both, strict=True):
        assert (one.prompt, one.seed) == (other.prompt, other.seed)
        np.testing.assert_allclose(one.pixels.astype(int), other.pixels, atol=1)
    decoded = codec.decode(torch.from_numpy(both[0][1].codes.astype(np.int64))[None])[0]
    np.testing.assert_allclose(both[0][1].pixels, 255 * decoded.permute(1, 2, 0).numpy(), atol=0.5 + 1e-4)
    assert len(seen) == 3 * 64 and seen[63] == seen[-1] == 1.0 and seen[:64] == sorted(set(seen[:64]))


def test_convert_there_and_back(run_dir, tmp_path):
    """A checkpoint to dalle-pytorch's file and back is the same checkpoint, through both kinds of file."""
    source = run_dir / "checkpoints" / "epoch-000012"
    weights = load_file(source / "model.safetensors")
    for name in ("theirs.safetensors", "theirs.pt"):
        command("convert", source, tmp_path / name)
        command(
            "convert", tmp_path / name, tmp_path / f"back-{name}", "--recipe", "demo", "--shards", run_dir / "shards"
        )
        (path,) = (tmp_path / f"back-{name}").iterdir()
        back = load_checkpoint(path)
        assert back.shards == str(run_dir / "shards")
        assert back.codec_digest == json.loads((run_dir / "shards" / "codec.json").read_text())["digest"]
        assert all(torch.equal(back.model.state_dict()[key], tensor) for key, tensor in weights.items())
    state = torch.load(tmp_path / "theirs.pt", weights_only=True)
    assert state["transformer.layers.blocks.4.f.net.fn.fn.fn.fn.fn.to_qkv.weight"].shape == (384, 128)


def test_convert_refuses_what_does_not_fit(run_dir, tmp_path):
    source = run_dir / "checkpoints" / "epoch-000012"
    command("convert", source, tmp_path / "theirs.safetensors")
    state = load_file(tmp_path / "theirs.safetensors")
    state["transformer.layers.blocks.9.f.net.scale"] = state["transformer.layers.blocks.0.f.net.scale"].clone()
    save_file(state, tmp_path / "deeper.safetensors")
    with pytest.raises(BadInput, match=r"blocks\.9\.f\.net\.scale has no place"):
        command("convert", tmp_path / "deeper.safetensors", tmp_path / "out", "--recipe", "demo")
    del state["transformer.layers.blocks.9.f.net.scale"], state["to_logits.0.bias"]
    save_file(state, tmp_path / "less.safetensors")
    with pytest.raises(BadInput, match=r"1 weights are missing, the first is final_norm\.bias"):
        command("convert", tmp_path / "less.safetensors", tmp_path / "out", "--recipe", "demo")
    state = load_file(tmp_path / "theirs.safetensors")
    shared = next(name for name in state if name.endswith("to_qkv.weight"))
    for change, words in (
        (lambda weight: weight.t().contiguous(), "this recipe's attention"),  # as many values, in another order
        (lambda weight: weight.long(), "values of the type torch.int64"),
        (lambda weight: weight / 0, "infinite numbers"),
    ):
        save_file({**state, shared: change(state[shared])}, tmp_path / "odd.safetensors")
        with pytest.raises(BadInput, match=words):
            command("convert", tmp_path / "odd.safetensors", tmp_path / "out", "--recipe", "demo")
    (tmp_path / "no.pt").write_bytes(b"no weights")
    (tmp_path / "empty.pt").touch()
    for name, words in (
        ("no.pt", "it is not a file of tensors"),
        ("empty.pt", "cannot be read"),
        ("none.pt", "not exist"),
    ):
        with pytest.raises(BadInput, match=words):
            command("convert", tmp_path / name, tmp_path / "out", "--recipe", "demo")
    with pytest.raises(BadInput, match="--recipe"):
        command("convert", tmp_path / "theirs.safetensors", tmp_path / "out")
    assert not Path(tmp_path / "out").exists()
