"""A traced step holds what a real step measurably holds, for any number of samples, and says that it was traced."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from calculator import estimate
from calculator.choose.devices import device_named
from calculator.choose.largest import HOST_SHARE, peer_step
from tests.profiled import highest_bytes
from training.cli import build_app
from training.compute import choices as module
from training.compute.choices import Wishes, choose
from training.compute.machine import this_machine
from training.compute.plan import PRECISIONS, make_plan, peer_of, training_of
from training.compute.traced import TracedSteps
from training.errors import BadInput
from training.model.language.architecture import FAMILIES
from training.model.language.config import LanguageModelConfig
from training.recipe import load_recipe, read_recipe
from training.tasks.known import task_of

SIZES = dict(vocab_size=640, hidden_size=128, intermediate_size=336, num_hidden_layers=3, num_attention_heads=4)
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Attention with dropout is not fused.
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
FURTHER = {
    "gemma": {"head_dim": 32, "num_key_value_heads": 4},
    "qwen3": {"head_dim": 32, "num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 4},
    "gemma2": {"head_dim": 32, "num_key_value_heads": 4},
    "gemma3_text": {"head_dim": 32, "num_key_value_heads": 4},
    "mistral": {"num_key_value_heads": 4},
    "smollm3": ENDS | {"num_key_value_heads": 4},
    "phi3": ENDS,
    "gpt2": NO_DROPOUT,
    "gptj": NO_DROPOUT | {"rotary_dim": 16},
}
UNKNOWN = ("gemma", "gpt_neox", "olmo2")
"""Families of the trainer that the calculator does not know."""
SAMPLES = 5
"""Neither of the two numbers that are traced."""


def language(family: str, length: int = 128, **changes):
    architecture = {"model_type": family, "max_position_embeddings": length} | SIZES | FURTHER.get(family, {}) | changes
    if family in ("gpt2", "gptj"):
        del architecture["intermediate_size"]
    model = LanguageModelConfig(architecture=architecture, block_length=length)
    return load_recipe("stories").model_copy(update={"model": model})


def pictures(**changes):
    run = load_recipe("demo")
    return run.model_copy(update={"model": run.model.model_copy(update=changes)})


RUNS = {family: language(family) for family in (*UNKNOWN, "llama", "gpt2")} | {
    # No word of the calculator for this one.
    "pictures": pictures(rotary=False),
    "pictures, not reversible": pictures(rotary=False, reversible=False),
}


def profiled_peak(task, samples: int, stored_layers: int, dtype: torch.dtype) -> int:
    """The most bytes that the operations of a real step take and give back on the processor, above the weights."""
    model, inputs = task.build_model(), task.example(samples).inputs

    def step():
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = model(*inputs, stored_layers=stored_layers).loss
        loss.backward()

    step()
    model.zero_grad()
    return highest_bytes(step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", ["all", "one", "none"])
@pytest.mark.parametrize("name", RUNS)
def test_a_traced_step_takes_what_a_real_one_takes(name, kept, dtype):
    task = task_of(RUNS[name])
    stored_layers = {"all": task.num_layers, "one": 1, "none": 0}[kept]
    step = TracedSteps(task).peak(SAMPLES, stored_layers, dtype)
    inputs = sum(tensor.nbytes for tensor in task.example(SAMPLES).inputs)
    measured = profiled_peak(task, SAMPLES, stored_layers, dtype) + inputs
    # In 16 bits, some operations on a processor use 32-bit buffers of their own.
    assert step.total - step.weights == pytest.approx(measured, rel=0.02 if dtype == torch.float32 else 0.07)
    model = task.on_paper()
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert step.weights == pytest.approx(sum(p.nbytes for p in model.parameters()) + buffers, rel=0.01)


def test_the_two_traced_steps_determine_all_others(monkeypatch):
    """Where the peak is at another operation with more samples, and where a loss has more pieces."""
    task = task_of(language("gpt_neox", length=64, vocab_size=8000))
    found = [TracedSteps(task).peak(samples, 0, torch.float32) for samples in (2, 6, 40)]
    assert len({(step.phase, step.operation) for step in found}) > 1
    for samples, step in zip((2, 6, 40), found, strict=True):
        monkeypatch.setattr("training.compute.traced.FEW", samples)
        monkeypatch.setattr("training.compute.traced.MORE", samples + 1)
        assert TracedSteps(task).peak(samples, 0, torch.float32).total == pytest.approx(step.total, rel=0.002)


@pytest.mark.parametrize(
    "family, dtype",
    [
        *[(family, dtype) for family in ("llama", "qwen3", "gemma2") for dtype in (torch.float32, torch.bfloat16)],
        ("gpt2", torch.float32),  # autocast of CPUs leaves its powers in 16 bits, which that of GPUs does not
    ],
)
@pytest.mark.parametrize("words", [64, 32_000])
def test_where_the_calculator_knows_the_model_it_says_nearly_the_same(family, dtype, words):
    """With many words, most of a step is the loss in pieces.

    No matrix is at both ends: fake tensors add its two gradients in new memory, PyTorch adds one to the other.
    """
    run = language(family, vocab_size=words, tie_word_embeddings=False)
    device, precision = this_machine("cpu"), PRECISIONS[str(dtype).removeprefix("torch.")]
    for checkpointing, stored in ((False, 3), (True, 0)):
        known = estimate(training_of(run).setup(device, 8, precision=precision, checkpointing=checkpointing)).gpu
        traced = TracedSteps(task_of(run)).peak(8, stored, dtype)
        assert traced.total == pytest.approx(known.total, rel=0.1)
        assert known.weights == pytest.approx(traced.weights, rel=0.01)


def test_a_model_larger_than_any_memory_is_traced():
    run = language("gemma", hidden_size=8192, intermediate_size=500_000, num_hidden_layers=2, num_attention_heads=8)
    step = TracedSteps(task_of(run)).peak(4, 0, torch.float32)
    assert step.weights > 90e9 and step.total > 2 * step.weights


def test_the_calculator_knows_all_families_but_these():
    def step_of(family):
        task = task_of(language(family))
        return peer_step(peer_of(task, task.on_paper()), device_named("t4"), 1, 0)

    steps = {family: step_of(family) for family in FAMILIES}
    refused = [family for family, step in steps.items() if step.refusal is not None]
    assert sorted(refused) == sorted(UNKNOWN)


@pytest.mark.parametrize("optimizer", ["muon", "lamb8bit", "adamw"])
def test_what_the_host_keeps_is_counted_by_tensors(optimizer, monkeypatch):
    """The same sums as the calculator's for a model that it knows."""
    run = language("llama")
    run = run.model_copy(update={"optimizer": run.optimizer.model_copy(update={"name": optimizer})})
    for device in (device_named("t4"), this_machine("cpu")):
        known = make_plan(task_of(run), device, micro_batch_size=2)
        refused = partial(replace, config={"model_type": "none"})
        monkeypatch.setattr("calculator.choose.largest.estimate", lambda setup, to=refused: estimate(to(setup)))
        traced = make_plan(task_of(run), device, micro_batch_size=2)
        monkeypatch.undo()
        assert known.refusal is None and "none" in traced.refusal
        assert (traced.host_bytes, traced.parameters) == (known.host_bytes, known.parameters)
        assert traced.estimate.overhead == known.estimate.overhead
        on_top = traced.need_bytes - traced.estimate.gpu.total
        assert on_top == known.need_bytes - known.estimate.gpu.total


def test_the_command_says_that_a_step_was_traced(tmp_path):
    recipe = tmp_path / "neox.toml"
    text = read_recipe("stories").replace('model_type = "llama"', 'model_type = "gpt_neox"')
    text = text.replace("num_key_value_heads = 8", "")
    recipe.write_text(text)
    shown = CliRunner().invoke(build_app(), ["plan", "--recipe", str(recipe), "--gpu", "t4"])
    assert shown.exit_code == 0, shown.output
    assert "The calculator does not know this model" in shown.output and "It fits" in shown.output
    assert "In forward" in shown.output or "In backward" in shown.output
    facts = json.loads(
        CliRunner().invoke(build_app(), ["plan", "--recipe", str(recipe), "--gpu", "t4", "--json"]).output
    )
    assert facts["traced"] and facts["estimate"]["gpu"]["total"] < facts["need_bytes"]
    facts = json.loads(CliRunner().invoke(build_app(), ["plan", "--recipe", "stories", "--gpu", "t4", "--json"]).output)
    assert not facts["traced"]


def test_what_does_not_fit_is_told_with_its_largest_part_and_what_fits(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(read_recipe("stories").replace('model_type = "llama"', 'model_type = "olmo2"'))
    asked = ["plan", "--recipe", str(recipe), "--gpu", "t4", "--micro-batch-size", "1000000", "--json"]
    facts = json.loads(CliRunner().invoke(build_app(), asked).stdout)
    memory, peak = facts["estimate"]["gpu"], facts["estimate"]["peak"]["instant"]
    largest = max(("weights", "gradients", "activations", "temporary"), key=memory.__getitem__)
    assert f"the largest parts are {largest} (" in peak
    shown = CliRunner().invoke(build_app(), asked[:-1]).output
    assert "It does not fit" in shown and re.search(r"A micro-batch of \d+ fits if activations are recomputed", shown)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_as_many_layers_keep_their_activations_as_there_is_room_for(family, monkeypatch):
    run = language(family, num_hidden_layers=6)
    paper, device = task_of(run).on_paper(), this_machine("cpu")
    peer = peer_of(task_of(run), paper)
    least, most = (peer_step(peer, device, 4, kept, precision="fp32").need_bytes(device) for kept in (0, None))
    kept = []
    for share in (0.1, 0.4, 0.8):
        room = int((least + share * (most - least)) / HOST_SHARE)
        monkeypatch.setattr(module, "this_machine", lambda name, room=room: replace(device, usable_bytes=room))
        chosen = choose(task_of(run), Wishes(device="cpu", micro_batch_size=4, precision="float32"))
        kept.append(paper.stored_layers(4, chosen.activation_budget_bytes, torch.float32))
        step = TracedSteps(task_of(run)).peak(4, kept[-1], torch.float32)
        assert step.total <= chosen.need_bytes <= HOST_SHARE * room + 1
        words = {setting.name: setting.value for setting in chosen.settings}["activations"]
        assert words == f"kept for {kept[-1]} layers, recomputed for {6 - kept[-1]}"
    assert kept == [0, 2, 4]


class Deciding(torch.nn.Module):
    """Computes one thing or another by the values of its tensors."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def forward(self, *inputs, stored_layers=None):
        return self.weight if self.weight.sum() > 0 else None


def test_a_model_that_cannot_be_traced_is_refused_in_one_sentence(monkeypatch):
    task = task_of(load_recipe("demo"))
    monkeypatch.setattr(task, "build_model", Deciding)
    with pytest.raises(BadInput, match="nor can a step be traced") as refused:
        TracedSteps(task).peak(1, 0, torch.float32)
    assert "Ask the author of the task" in refused.value.told and "\n" not in refused.value.told
