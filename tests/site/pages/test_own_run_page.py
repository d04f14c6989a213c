"""The commands of the page "Make your own run", in its order, on a few short texts and a small model to fine-tune.

`NOT_RUN` in tests/site/guide.py names those that do not run; data of the hub have tests/training/new/test_new_hub.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil

import httpx
import pytest
from typer.testing import CliRunner

from tests.site.guide import TRAINER, Guide, Machine, check_sentences, commands_in_sentences, environment
from tests.support.programs import ROOT, run_program
from training.checkpoints.checkpoint import list_checkpoints
from training.cli import build_app
from training.data.demo.draw import draw_set
from training.data.store.text_tokenizer import TextTokenizer
from training.publish.invitation import PROGRAM
from training.recipe import load_recipe

PAGE = (ROOT / "site" / "make-your-own-run.md").read_text(encoding="utf-8")
MOST_WORDS = 1200
LONGEST = 400
"""Seconds for an epoch of 256 samples on a busy machine."""
TEXT = "Ada has a red key and goes to the library. Max has a black kite and sees a small house by the sea. "


def test_the_page_is_short():
    assert len(PAGE.split()) <= MOST_WORDS


def test_questions_and_flags_are_those_of_the_command():
    from training.new.questions import HOW_LONG, WHERE, WHO

    table = PAGE.split("## What it asks\n")[1].split("\n## ")[0]
    asked = re.findall(r"^\| ([^|]+\?) \|", table, re.MULTILINE)
    assert [question.split("?")[0] for question in (WHO, HOW_LONG, WHERE)] == [words.rstrip("?") for words in asked]


def test_commands_in_sentences_are_understood_or_named_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_sentences(PAGE)


@pytest.mark.programs
def test_each_kind_of_data_on_this_machine_makes_a_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("training.new.make.FEW_STEPS", 5)
    monkeypatch.setattr("training.new.make.STEPS_PER_PICTURE", 0)
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts" / "1.txt").write_text(TEXT * 200)
    draw_set(tmp_path / "my-pictures", count=200, seed=0)
    captions = map(json.loads, (tmp_path / "my-pictures" / "captions.jsonl").read_text().splitlines())
    rows = ["file,caption", *(f'{one["file"]},"{one["caption"]}"' for one in captions)]
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    made = []
    for command in commands_in_sentences(PAGE):
        _, data, *flags = shlex.split(command)
        if not command.startswith("new ") or "hf://" in command:
            continue
        if data == "shards":
            shutil.copytree(tmp_path / "runs" / "my-texts" / "shards", tmp_path / "shards")
        if "--captions" in flags:
            flags += ["--run-dir", "runs/captions"]
        words = ["new", data, *flags, "--volunteers", "2:cpu", "--yes", "--no-serve"]
        ended = CliRunner().invoke(build_app(), words)
        assert ended.exit_code == 0, (ended.output, ended.exception)
        made.append(data)
    assert made == ["my-texts", "my-pictures", "my-pictures", "shards", "runs/my-texts/shards"]
    assert {path.parent.name for path in tmp_path.glob("runs/*/recipe.toml")} == {
        *("my-texts", "my-pictures", "captions", "shards", "second")
    }


def small_model(folder):
    """Writes a small language model as `transformers` saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = LlamaConfig(vocab_size=300, max_position_embeddings=64, eos_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    TextTokenizer.train([TEXT], 300).save(folder / "tokenizer.json")


@pytest.mark.swarm
@pytest.mark.timeout(1200)
def test_the_pages_commands_make_a_run(programs, tmp_path):
    (tmp_path / "my-texts").mkdir()
    for number in range(60):
        (tmp_path / "my-texts" / f"{number}.txt").write_text(f"Story {number}. {TEXT * 4}")
    guide = Guide(tmp_path, PAGE)
    machine = Machine(programs, guide)
    run_dir = tmp_path / "runs" / "my-texts"

    first = machine.serve(guide.take(f"{TRAINER}new my-texts"), tmp_path)
    assert "30 × Tesla T4" in guide.run(f"{TRAINER}new my-texts")
    assert (tmp_path / "runs" / "large" / "recipe.toml").is_file()
    # Otherwise a volunteer leaves a busy machine to other programs, and its epochs last for minutes.
    others = ["--state-dir", tmp_path / "volunteer", "--threads", "1", "--normal-priority", "--precision", "float32"]
    printed = tmp_path / "volunteer.log"
    volunteer = machine.start([*guide.take(f"{TRAINER}join"), *others], printed, tmp_path)
    machine.until_epoch(1, printed, within=LONGEST)
    guide.run(f"{TRAINER}plan")
    guide.run(f"{TRAINER}simulate")

    machine.end()
    assert list_checkpoints(run_dir / "checkpoints"), machine.log.read_text()
    readme = (run_dir / "README.md").read_text()
    assert first["join_command"].removeprefix(PROGRAM) in readme
    table = PAGE.split("## What it writes\n")[1].split("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)/?`", row)
    }
    there = {path.name for path in run_dir.iterdir() if not path.name.endswith((".lock", ".log", "-wal", "-shm"))}
    assert named - {"pictures", "backups"} <= there <= named

    manifest = run_dir / "shards" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    again = machine.serve(guide.take(f"{TRAINER}new runs/my-texts"), tmp_path)
    assert (again["url"], again["initial_peers"]) == (first["url"], first["initial_peers"])
    assert manifest.stat().st_mtime_ns == before
    shown = httpx.get(f"http://127.0.0.1:{guide.port}/live/run.json").json()
    assert shown["title"] == "My texts"
    epoch = machine.state()["epoch"] or 0
    machine.until_epoch(epoch + 1, printed, within=LONGEST)
    assert volunteer.poll() is None, printed.read_text()
    assert guide.run(f"{TRAINER}generate").strip()
    guide.run(f"{TRAINER}convert")
    assert (tmp_path / "my-model" / "config.json").is_file()
    (tmp_path / "site").mkdir()
    guide.run(f"{TRAINER}monitor")
    machine.end()
    small_model(tmp_path / "base")
    command = guide.take(f"{TRAINER}new my-texts --from")
    command[command.index("--from") + 1] = "base"
    made = run_program(command, cwd=tmp_path, env=environment())
    assert made.returncode == 0, made.stdout + made.stderr
    assert load_recipe(str(tmp_path / "runs" / "tuned" / "recipe.toml")).adapter.base_digest
    assert guide.commands == []
