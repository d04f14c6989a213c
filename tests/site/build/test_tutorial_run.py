"""The tutorial's last section: its figures, and its commands in order, from C4's kind of files to two volunteers."""

from __future__ import annotations

import gzip
import json
import random
import re
import shlex
import sys
from pathlib import Path

import httpx
import pytest

from builder.learn import tutorial
from calculator.choose.devices import DEVICES, device_named
from calculator.swarm.exchange import USUAL_GROUP
from tests.support.programs import until
from tests.site.guide import TRAINER, Guide, Machine
from training.compute import plan
from training.data.store.shards import MANIFEST_FILE
from training.publish.history.history import HistoryReader
from training.recipe import RECIPES, load_recipe
from training.tasks.known import task_of

SECTION = tutorial.SOURCE.read_text(encoding="utf-8").partition(tutorial.TOGETHER)[2]
TINY = {
    "run_id": '"my-run"',
    "block_length": 32,
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32,
    "peak_learning_rate": 3e-3,
    "warmup_epochs": 1,
    "inner_batch_size": 8,
    "target_batch_size": 128,
    "matchmaking_seconds": 1.5,
    "max_epochs_alone": 0,
    "compression_threshold": 512,  # so that there are tensors that travel in 8 bits
    "metrics_every_seconds": 1.0,
}
SENTENCE = "the cat sat on a warm stone while rain fell over small green hills and nobody spoke of trains"


def tiny_recipe() -> str:
    text = (RECIPES / f"{tutorial.RECIPE}.toml").read_text()
    for name, value in TINY.items():
        text, changed = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value}", text)
        assert changed == 1, name
    return text


def write_c4(folder: Path) -> None:
    """Two files in C4's layout and with its names, whose pages repeat parts of a sentence."""
    folder.mkdir()
    chance, words = random.Random(0), SENTENCE.split()
    for number in range(2):
        with gzip.open(folder / f"c4-train.0000{number}-of-01024.json.gz", "wt", encoding="utf-8") as file:
            for page in range(400):
                text = " ".join((words * 5)[chance.randrange(len(words)) :])
                line = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://example.org/{page}"}
                file.write(json.dumps(line) + "\n")


def with_values(command: str, **values: str) -> str:
    """A command of the page with other values of some of its flags."""
    for flag, value in values.items():
        command, changed = re.subn(rf"--{flag.replace('_', '-')} \S+", f"--{flag.replace('_', '-')} {value}", command)
        assert changed == 1, flag
    return command


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_the_sections_commands_train_a_language_model_with_two_volunteers(programs, tmp_path):
    (tmp_path / "my-run.toml").write_text(tiny_recipe())
    (tmp_path / "public").mkdir()
    write_c4(tmp_path / "c4")
    guide = Guide(tmp_path, SECTION)
    guide.commands[0] = with_values(guide.commands[0], vocabulary="400", block_length="32")
    guide.run(f"{TRAINER}prepare")
    manifest = json.loads((tmp_path / "shards" / MANIFEST_FILE).read_text())
    assert manifest["documents"] == 800 and manifest["left_out"] == {}
    assert "Tesla T4" in guide.run(f"{TRAINER}plan")
    assert "30 volunteers" in guide.run(f"{TRAINER}simulate")
    machine = Machine(programs, guide)
    machine.serve(guide.take(f"{TRAINER}serve"), tmp_path)
    command = shlex.join(guide.take(f"{TRAINER}join")[3:]).replace("https://run.example", f"http://127.0.0.1:{guide.port}")
    assert guide.commands == []
    here = "--host-maddrs /ip4/127.0.0.1/tcp/0 --threads 1 --micro-batch-size 8 --precision float32"
    logs = []
    for name in ("ada", "bob"):
        words = [*shlex.split(f"{with_values(command, name=name)} {here}"), "--state-dir", tmp_path / name]
        logs.append(tmp_path / f"{name}.log")
        machine.start([sys.executable, "-m", "training", *words], logs[-1], tmp_path)

    def said() -> str:
        return "\n".join(log.read_text() for log in (machine.log, *logs))

    until(lambda: machine.state().get("active_peers") == 2, said=said)
    epoch = machine.state()["epoch"] or 0
    until(lambda: (machine.state().get("epoch") or 0) >= epoch + 4, said=said)
    assert httpx.get(f"http://127.0.0.1:{guide.port}/live/run.json").json()["title"] == load_recipe("llama-150m").title
    machine.end()
    epochs = HistoryReader(tmp_path / "runs" / "my-run" / "history.sqlite").epochs()
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.3


@pytest.mark.parametrize("name", tutorial.runs_together())
def test_what_a_volunteer_needs_is_what_plan_and_simulate_say(name):
    run, gpu = tutorial.runs_together()[name], device_named(tutorial.VOLUNTEER_GPU)
    made = plan.make_plan(task_of(run), gpu, micro_batch_size=1, activation_budget_bytes=0)
    weights, memory, smallest, at_once, host, joining, sent, minutes = tutorial.volunteer_needs(run).values()
    assert memory == tutorial.show_bytes(made.need_bytes) and host == tutorial.show_bytes(made.host_bytes)
    assert at_once == str(plan.make_plan(task_of(run), gpu, activation_budget_bytes=0).advised_micro_batch)
    ours = tutorial.exchange_of(run)
    assert ours.parameters == made.parameters and weights == f"{made.parameters / 1e6:.0f} million"
    # Of the vector, and of the part that a peer has averaged, 8 bits and a scale of 32 for 512 values each; of the
    # parameters, 16 bits each, once in some epochs. A peer sends itself nothing.
    bits = (2 * (8 + 32 / 512) + 2 * 16 / run.swarm.average_state_every) * (1 - 1 / USUAL_GROUP)
    sent_bytes = round(ours.sent_bytes())
    assert sent_bytes == pytest.approx(ours.parameters * bits / 8, rel=0.01)
    assert float(minutes.split()[0]) == pytest.approx(sent_bytes * 8 / 50e6 / 60, abs=0.05)
    assert sent == tutorial.show_bytes(sent_bytes)
    assert joining == tutorial.show_bytes(ours.newcomer_bytes)
    assert any(device.title.endswith(smallest) for device in DEVICES.values())


def test_sizes_of_the_two_models():
    llama, gpt2 = tutorial.runs_together().values()
    layer = 4 * 896 * 16 * 64 + 3 * 896 * 2432 + 2 * 896
    assert tutorial.exchange_of(llama).parameters == 32_000 * 896 + 12 * layer + 896
    assert tutorial.exchange_of(gpt2).parameters == 774_030_080  # of openai-community/gpt2-large's safetensors
