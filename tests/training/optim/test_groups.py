"""Which parameters are hidden matrices: named by hand for each model."""

import pytest
import torch
from torch import nn

from training.errors import BadInput
from training.model.transformer import build_model
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.groups import parameter_groups
from training.recipe import load_recipe

MUON = OptimizerConfig(name="muon", weight_decay=0.1)


def grouped(model, config=MUON):
    """Names of the parameters of each group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in parameter_groups(model, config)]


def text_to_image(**changes):
    return build_model(load_recipe("demo").model.model_copy(update=changes), seed=0)


@pytest.mark.parametrize("tied", [True, False])
def test_of_the_text_to_image_model_the_shared_matrices_are_hidden(tied):
    hidden, tables, rest = grouped(text_to_image(tied_embeddings=tied, rotary=False))
    matrices = ("attention.{}.qkv.weight", "attention.{}.out.weight")
    matrices += ("feed_forward.{}.inner.weight", "feed_forward.{}.out.weight")
    assert sorted(hidden) == sorted(name.format(group) for name in matrices for group in range(5))
    positions = {"text_positions", "row_positions", "column_positions"}
    embeddings = set() if tied else {"text_embedding.weight", "image_embedding.weight"}
    assert set(tables) == {"output.weight"} | positions | embeddings
    assert "output.bias" in rest and all("weight" not in name or "norm" in name for name in rest)


@pytest.mark.parametrize("tied", [True, False])
def test_of_llama_embeddings_and_head_are_not_hidden(tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=40)
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, **sizes))
    hidden, tables, norms = grouped(model)
    parts = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    assert sorted(hidden) == sorted(f"model.layers.{layer}.{part}.weight" for layer in range(2) for part in parts)
    assert tables == ["model.embed_tokens.weight"] + ([] if tied else ["lm_head.weight"])
    assert len(norms) == 5
    assert grouped(nn.ModuleDict({"inner": model}))[1] == [f"inner.{name}" for name in tables]


def test_of_gpt2_transposed_matrices_are_hidden():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=8))
    hidden, tables, rest = grouped(model)
    parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert sorted(hidden) == sorted(f"transformer.h.{layer}.{part}.weight" for layer in range(2) for part in parts)
    assert tables == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert len(rest) == 2 * 8 + 2


def test_other_optimizers_have_the_same_two_groups_as_ever():
    model = text_to_image()
    for name in ("lamb8bit", "lamb", "adamw8bit", "adamw"):
        decaying, exempt = parameter_groups(model, OptimizerConfig(name=name, weight_decay=0.1))
        assert all(
            p is q for p, q in zip(decaying["params"], (p for p in model.parameters() if p.ndim > 1), strict=True)
        )
        assert all(p is q for p, q in zip(exempt["params"], (p for p in model.parameters() if p.ndim < 2), strict=True))
        assert (decaying["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
        assert "hidden" not in decaying | exempt


def test_what_is_not_trained_is_in_no_group():
    model = text_to_image()
    model.attention.requires_grad_(False)
    assert not any(name.startswith("attention.") for names in grouped(model) for name in names)


def test_a_model_that_does_not_tell_its_output_layer_is_refused():
    with pytest.raises(BadInput, match="get_output_embeddings"):
        parameter_groups(nn.Sequential(nn.Linear(4, 4)), MUON)
    assert parameter_groups(nn.Sequential(nn.Linear(4, 4)), OptimizerConfig(name="adamw"))


def test_a_training_step_with_muon_lowers_the_loss_of_the_model():
    model, run = text_to_image(), load_recipe("demo")
    torch.manual_seed(0)
    text = torch.randint(1, 60, (2, run.model.text_seq_len))
    codes = torch.randint(0, 250, (2, run.model.image_seq_len))
    optimizer = build_optimizer(MUON, parameter_groups(model, MUON), lr=3e-3)
    losses = []
    for _ in range(6):
        loss = model(text, codes).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert losses[-1] < 0.8 * losses[0]
