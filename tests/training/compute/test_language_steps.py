"""What a language model's step takes, and the layers that keep their activations, as real steps measure it."""

from dataclasses import replace

import pytest
import torch

from calculator.choose.largest import HOST_SHARE, peer_step
from tests.support.profiled import highest_bytes
from training.compute import choices as module
from training.compute.choices import Wishes, choose
from training.compute.machine import this_machine
from training.compute.plan import make_plan, peer_of
from training.errors import BadInput
from training.model.language.architecture import FAMILIES
from training.model.language.config import LanguageModelConfig
from training.recipe import load_recipe
from training.tasks.known import task_of

SIZES = dict(vocab_size=640, hidden_size=128, intermediate_size=336, num_hidden_layers=3, num_attention_heads=4)
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Attention with dropout is not fused.
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
FURTHER = {
    "qwen3": {"head_dim": 32, "num_key_value_heads": 4},
    "qwen2": {"num_key_value_heads": 4},
    "gemma": {"head_dim": 32, "num_key_value_heads": 4},
    "gemma2": {"head_dim": 32, "num_key_value_heads": 4},
    "gemma3_text": {"head_dim": 32, "num_key_value_heads": 4},
    "mistral": {"num_key_value_heads": 4},
    "smollm3": ENDS | {"num_key_value_heads": 4},
    "phi3": ENDS,
    "olmo2": ENDS,
    "gpt2": NO_DROPOUT,
    "gptj": NO_DROPOUT | {"rotary_dim": 16},
}


def language(family: str, length: int = 128, **changes):
    architecture = {"model_type": family, "max_position_embeddings": length} | SIZES | FURTHER.get(family, {}) | changes
    if family in ("gpt2", "gptj"):
        del architecture["intermediate_size"]
    model = LanguageModelConfig(architecture=architecture, block_length=length)
    return load_recipe("stories").model_copy(update={"model": model})


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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_calculator_knows_all_families(family):
    assert make_plan(task_of(language(family)), this_machine("cpu"), micro_batch_size=1).need_bytes > 0


def test_a_model_that_the_calculator_does_not_know_is_refused():
    run = load_recipe("demo")
    run = run.model_copy(update={"model": run.model.model_copy(update={"rotary": False})})
    for plans in (lambda task: make_plan(task, this_machine("cpu")), lambda task: choose(task, Wishes(device="cpu"))):
        with pytest.raises(BadInput, match="The model cannot be planned"):
            plans(task_of(run))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_as_many_layers_keep_their_activations_as_there_is_room_for(family, monkeypatch):
    run = language(family, num_hidden_layers=6)
    paper, device = task_of(run).on_paper(), this_machine("cpu")
    weights = sum(parameter.nbytes for parameter in paper.parameters())
    peer = peer_of(task_of(run), lambda: paper)
    least, most = (peer_step(peer, device, 4, kept, precision="fp32").need_bytes(device) for kept in (0, None))
    kept = []
    for share in (0.1, 0.4, 0.8):
        room = int((least + share * (most - least)) / HOST_SHARE)
        monkeypatch.setattr(module, "this_machine", lambda name, room=room: replace(device, usable_bytes=room))
        chosen = choose(task_of(run), Wishes(device="cpu", micro_batch_size=4, precision="float32"))
        kept.append(paper.stored_layers(4, chosen.activation_budget_bytes, torch.float32))
        measured = profiled_peak(task_of(run), 4, kept[-1], torch.float32)
        assert weights + measured <= chosen.need_bytes <= HOST_SHARE * room + 1
        words = {setting.name: setting.value for setting in chosen.settings}["activations"]
        assert words == f"kept for {kept[-1]} layers, recomputed for {6 - kept[-1]}"
    assert kept == [0, 2, 4]
