"""Fused kernels are used where they compute the same, and only there."""

import math

import pytest
import torch

from training.model.config import ModelConfig
from training.model.kernels import kernel_choice
from training.model.kernels.fused import FusedPattern
from training.model.kernels.kernel_choice import choose_kernels, compare
from training.model.layout import Layout
from training.model.sampling import sample_codes
from training.model.transformer import build_model

LAYOUT = Layout(text_len=9, grid=14)
KINDS = ("row", "column", "conv", "full")
SIZES = dict(
    hidden_size=24,
    num_layers=3,
    num_heads=2,
    head_dim=16,
    text_vocab_size=11,
    text_seq_len=5,
    image_grid=4,
    image_vocab_size=13,
    text_padding_id=1,
)


@pytest.fixture
def tried_here(monkeypatch):
    """Fused kernels are tried on the processor, too, and any time is good."""
    monkeypatch.setattr(kernel_choice, "FUSED_DEVICES", ("cpu",))
    monkeypatch.setattr(kernel_choice, "AS_FAST", math.inf)


def choose(dtype, kinds=KINDS):
    return choose_kernels(torch.empty((), dtype=dtype), kinds, LAYOUT, num_heads=2, head_dim=8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, error", [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_both_ways_are_as_exact_as_their_type(kind, dtype, error):
    """On padded samples, whose image goes through in four bands; outputs and gradients together."""
    trial = compare(torch.empty((), dtype=dtype), kind, LAYOUT, 2, 8)
    assert trial.fused_error < error and trial.products_error < error
    assert trial.fused_seconds > 0 and trial.products_seconds > 0


def test_a_processor_takes_single_products():
    assert choose(torch.float32).kernels == "products"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_fused_kernels_are_as_exact_they_are_taken(tried_here, dtype):
    found = choose(dtype)
    assert found.kernels == "fused", found.reason
    assert "ms against" in found.reason


@pytest.mark.parametrize("at_fault", ["attend", "backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_that_compute_something_else_are_not_taken(tried_here, monkeypatch, at_fault, kind):
    """A single value, in outputs or gradients, that is off by as much as it is large."""
    right = getattr(FusedPattern, at_fault)

    def wrong(*arguments):
        text, *others = right(*arguments)
        text[0, -1, -1] *= 2  # the last token; the first one sees itself alone
        return text, *others

    monkeypatch.setattr(FusedPattern, at_fault, wrong)
    found = choose(torch.float32, [kind])
    assert found.kernels == "products" and f"in {kind} layers" in found.reason


def test_a_model_trains_with_what_was_found_also_after_sampling(tried_here):
    """Sampling runs in inference mode, whose tensors autograd does not take."""
    model = build_model(ModelConfig(**SIZES), seed=0)
    text, codes = torch.tensor([[1, 2, 3, 0, 0]]), torch.arange(16)[None] % 13
    sampled = sample_codes(model, text, top_k=1)
    model(text, codes).loss.backward()
    assert type(model.patterns(torch.float32)["row"]) is FusedPattern
    fused = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.attention_kernels = "products"
    assert torch.equal(sample_codes(model, text, top_k=1), sampled)
    model(text, codes).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, fused[name], rtol=1e-4, atol=1e-6, msg=name)
