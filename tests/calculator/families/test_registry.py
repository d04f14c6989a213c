"""The registry: a family is one file, and what it does not name is refused for its models."""

import sys

import pytest

from calculator import Architecture, BadSetup, Setup, estimate
from calculator.choose.flops import forward_flops
from calculator.choose.inference import inference_memory
from calculator.families import language
from calculator.families.registry import FAMILIES, found_families
from calculator.models.architectures import PRESETS

TOY = """
from calculator.families.blocks.losses import head_and_loss
from calculator.families.family import Family
from calculator.models.architecture import ParameterGroup


def parameters(a):
    inner = {
        "feed_forward.in.weight": (a.intermediate_size, a.hidden_size),
        "feed_forward.out.weight": (a.hidden_size, a.intermediate_size),
    }
    outside = {"embedding.tokens": (a.vocab_size, a.hidden_size)}
    return [ParameterGroup("", outside), ParameterGroup("layers", inner)]


def forward(c):
    hidden = c.tape.embedding(c.weights["embedding.tokens"], c.batch * c.length)
    for layer in c.stacks["layers"]:
        hidden = c.run(layer, block, hidden)
    c.tape.enter("head")
    return head_and_loss(c, hidden)


def block(c, w, hidden):
    inner = c.tape.activation(c.tape.linear(hidden, w["feed_forward.in.weight"]), c.architecture.activation)
    return c.tape.add(hidden, c.tape.linear(inner, w["feed_forward.out.weight"]))


FAMILY = Family(name="toy", models=("Toy",), parameters=parameters, forward=forward, generates=True)
"""
MODEL = Architecture(
    name="toy-1",
    family="toy",
    hidden_size=64,
    num_layers=3,
    num_heads=2,
    head_dim=32,
    intermediate_size=128,
    vocab_size=1000,
    sequence_length=32,
    activation="relu",
)
PARAMETERS = 1000 * 64 + 3 * 2 * 64 * 128
REFUSED = {
    "LoRA is counted for": {"lora_rank": 8},
    "fp8 is counted for": {"fp8": True, "precision": "bf16"},
    "packed is counted for": {"packed": True},
    "The loss liger is counted for": {"loss": "liger"},
    "GaLore is counted for": {"optimizer": "galore"},
    "offload_activations is counted for": {"offload_activations": True},
    "Tensor parallelism is counted for": {"gpus": 2, "sharding": "tensor"},
    "Reversible layers exist for": {"reversible": True},
}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A family in a file of its own, beside those of the language models."""
    (tmp_path / "toy_of_a_test.py").write_text(TOY)
    monkeypatch.setattr(language, "__path__", [*language.__path__, str(tmp_path)])
    monkeypatch.setitem(FAMILIES, "toy", {family.name: family for family in found_families()}["toy"])
    monkeypatch.setitem(PRESETS, MODEL.name, MODEL)
    yield
    del sys.modules["calculator.families.language.toy_of_a_test"]


def test_a_family_from_one_file_has_an_estimate(toy):
    result = estimate(Setup(model="toy-1", precision="fp32", optimizer="adamw"))
    assert result.parameters == PARAMETERS
    assert result.saved_activations > 0


def test_a_family_from_one_file_has_the_memory_of_inference(toy):
    answer = inference_memory(MODEL, length=32, weights="bf16")
    assert answer.weights >= 2 * PARAMETERS
    assert answer.cache == 3 * 32 * 2 * 64 * 2


@pytest.mark.parametrize(("message", "values"), REFUSED.items())
def test_what_a_family_does_not_name_is_refused(toy, message, values):
    with pytest.raises(BadSetup, match=f"^{message}") as refused:
        estimate(Setup(model="toy-1", **values))
    assert "toy-1" in str(refused.value)


def test_operations_are_counted_for_families_that_count_them(toy):
    with pytest.raises(BadSetup, match="not for toy-1"):
        forward_flops(MODEL)


def test_each_file_defines_a_family_of_its_own():
    assert len({family.name for family in found_families()}) == len(list(found_families())) == len(FAMILIES)
