"""The tutorial's blocks run, cell by cell as the notebook has them, and its memory is as predicted."""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builder.learn import tutorial
from builder.steps import fill
from calculator.choose.devices import DEVICES
from calculator.choose.fit import verdict
from tests.support.programs import run_program

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[3]
TOLERANCE = 0.01
"""Largest error, relative to the measured peak: on a processor an operation's own buffers are not quite those of CUDA's
kernels."""

SENTENCE = "the cat sat on a warm stone while rain fell over small green hills and nobody spoke of trains"
WORDS = SENTENCE.split()

RUNNER = """
import json, sys
from tests.support.programs import run_program
cells, changes = json.loads(sys.stdin.read())
names = {"__name__": "__main__"}
for number, cell in enumerate(cells):
    exec(compile(cell["source"], f"cell {number}", "exec"), names)
    if "parameters" in cell["metadata"].get("tags", ()):
        names.update(changes)
setup = {name: getattr(names["setup"], name) for name in names["setup"].__slots__ if name != "config"}
print("FACTS", json.dumps({"predicted": names["predicted"].gpu.total, "measured": names["measured"], "setup": setup}))
"""


@pytest.fixture(scope="module")
def notebook():
    return json.loads(fill.tutorial_notebook())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a small GPT-2 and its tokenizer, and shards in C4's layout."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tutorial")
    texts = [" ".join(WORDS[(7 * i * j) % len(WORDS)] for j in range(1, 60)) + "." for i in range(1, 81)]
    for shard in range(2):
        with gzip.open(folder / f"c4-train.0000{shard}-of-00002.json.gz", "wt", encoding="utf-8") as file:
            for i, text in enumerate(texts[shard::2]):
                line = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://example.org/{shard}/{i}"}
                file.write(json.dumps(line) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    fast.save_pretrained(folder / "model")
    config = GPT2Config(
        vocab_size=1000, n_embd=128, n_layer=3, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def run(notebook, tiny):
    """What the notebook prints, and its prediction and measurement, on a small model."""
    changes = {
        "model_name": str(tiny / "model"),
        "data_files": str(tiny / "c4-train.*.json.gz"),
        "sequence_length": 128,
        "accumulation_steps": 2,
        "updates": 6,
        "learning_rate": 3e-3,
        "shuffle_buffer": 50,
        "output": str(tiny / "result"),
    }
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and not cell["source"].startswith("%")]
    done = run_program(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([cells, changes]),
        within=500,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tiny / "cache"),
             "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown, facts = done.stdout.split("FACTS ")
    return shown, json.loads(facts), changes


@pytest.mark.programs
def test_every_cell_runs_and_the_model_learns(run, tiny):
    shown, _, changes = run
    losses = [float(loss) for loss in re.findall(r"^update +\d+  loss ([\d.]+)$", shown, re.MULTILINE)]
    first = float(re.search(r"^loss ([\d.]+)$", shown, re.MULTILINE)[1])
    assert losses and losses[-1] < first - 0.3
    assert "Training on the processor in fp32." in shown and "The weather in the mountains" in shown
    assert (Path(changes["output"]) / "model.safetensors").is_file()


@pytest.mark.programs
def test_memory_measured_is_memory_predicted(run):
    shown, facts, _ = run
    assert facts["measured"] == pytest.approx(facts["predicted"], rel=TOLERANCE)
    assert re.search(r"^predicted 0\.\d{3} GiB\nmeasured  0\.\d{3} GiB, error [+-]0\.\d%$", shown, re.MULTILINE)


@pytest.mark.programs
def test_the_pages_figures_are_of_the_setup_that_the_blocks_train(run):
    _, facts, changes = run
    theirs = {**facts["setup"], "model": "gpt2-large", "precision": "amp-fp16"}
    ours = {name: getattr(tutorial.TUTORIAL_SETUP, name) for name in theirs}
    ours |= {"sequence_length": changes["sequence_length"], "accumulation_steps": changes["accumulation_steps"]}
    assert theirs == ours
    settings = next(
        code for language, code in tutorial.code_blocks(tutorial.SOURCE.read_text()) if language == "python"
    )
    assert f"accumulation_steps = {tutorial.TUTORIAL_SETUP.accumulation_steps}\n" in settings
    assert "sequence_length = 1024\n" in settings  # what the preset has


def test_the_notebook_is_the_page(notebook):
    """Every block of the page is a cell, in order, and nothing else is."""
    made = fill.fill(tutorial.SOURCE.read_text())
    blocks = tutorial.code_blocks(made)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["source"].lstrip("%").strip() for cell in code] == [block.strip() for _, block in blocks]
    alone = made.partition(tutorial.TOGETHER)[0]
    assert alone != made and len(re.findall(r"^```\w", alone, re.MULTILINE)) == len(blocks)
    assert "nox -s training -- join" in notebook["cells"][-1]["source"], "the last section is text"
    assert [cell["metadata"].get("tags") for cell in code[:3]] == [None, ["parameters"], None]
    assert notebook["nbformat"] == 4 and len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    prose = "".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert (
        "{{" not in prose and ".md)" not in prose and "# Fine-tune GPT-2 Large" in prose and "---\ntitle" not in prose
    )


def test_packages_that_the_page_installs_are_those_that_it_imports():
    blocks = tutorial.code_blocks(tutorial.SOURCE.read_text())
    (command,) = (code for language, code in blocks if language == "bash")
    imported = set()
    for language, code in blocks:
        for node in ast.walk(ast.parse(code)) if language == "python" else ():
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    named, package = command.split(maxsplit=2)[2].strip().split(' "')
    assert imported - {"calculator"} == set(named.split()) and "calculator" in imported
    assert package == '{{ tutorial.package }}"'
    for name in imported:
        assert importlib.util.find_spec(name), name


def test_the_smallest_gpu_of_the_table_is_the_smallest():
    setup, named = tutorial.TUTORIAL_SETUP, tutorial._smallest(tutorial.TUTORIAL_SETUP)
    assert verdict(setup, next(d for d in DEVICES.values() if d.title == named)).standing == "fits"
    assert tutorial._smallest(replace(setup, checkpointing=False, optimizer="adamw")) != named
    assert not verdict(tutorial.BASELINE, DEVICES["t4"]).fits and verdict(setup, DEVICES["t4"]).fits


def test_what_was_measured_at_full_size_is_what_is_predicted():
    facts = tutorial.record("tutorial")
    assert tutorial.predicted_of(facts) == pytest.approx(facts["results"][0]["peer"], rel=TOLERANCE)
