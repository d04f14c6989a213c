"""The model computes what dalle-pytorch 1.6.6 computed (the fixtures say what), weights, gradients and all.

A second oracle, for constructions that dalle-pytorch has not, is the slow model in `test_transformer`.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from training.model.convert import from_dalle_pytorch, to_dalle_pytorch
from training.model.kernels import product
from training.model.sampling import sample_codes
from training.model.transformer import build_model

_spec = importlib.util.spec_from_file_location("parity_fixtures", Path(__file__).parent / "parity_fixtures.py")
fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fixtures)


@pytest.fixture(scope="module", params=fixtures.paths(), ids=lambda path: path.stem)
def case(request):
    fixture = fixtures.read_fixture(request.param)
    model = build_model(fixture.config, seed=1)
    model.load_state_dict(from_dalle_pytorch(fixture.state, model))
    return fixture, model


def test_logits(case):
    """Within 2e-5 of the spread of the logits, masked ones exactly so."""
    fixture, model = case
    with torch.no_grad():
        logits = model.logits(fixture.text, fixture.image)
    expected = torch.from_numpy(fixture.arrays["logits"])
    at = logits[:, fixture.arrays["positions"]]
    masked = expected == -torch.finfo(torch.float32).max
    assert torch.equal(at == -torch.finfo(torch.float32).max, masked)
    spread = expected[~masked].std()
    assert ((at - expected)[~masked].abs().max() / spread) < 2e-5
    normalizer = torch.logsumexp(logits.double(), dim=-1)
    assert (normalizer - torch.from_numpy(fixture.arrays["logsumexp"])).abs().max() < 1e-5


def test_losses_and_gradient_norms(case):
    """Loss and its parts within 1e-5, the norm of every parameter's gradient within 1e-4."""
    fixture, model = case
    model.zero_grad()
    losses = model(fixture.text, fixture.image)
    losses.loss.backward()
    assert losses.loss.item() == pytest.approx(fixture.facts["loss"], abs=1e-5)
    assert losses.text_loss.item() == pytest.approx(fixture.facts["loss_text"], abs=1e-5)
    assert losses.image_loss.item() == pytest.approx(fixture.facts["loss_img"], abs=1e-5)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    named = from_dalle_pytorch(to_dalle_pytorch_gradients(model, gradients), model)
    assert named.keys() == gradients.keys()
    theirs = to_dalle_pytorch_gradients(model, gradients)
    for name, norm in fixture.facts["grad_norms"].items():
        assert theirs[name].double().norm().item() == pytest.approx(norm, rel=1e-4), name


def to_dalle_pytorch_gradients(model, gradients):
    """The gradients under dalle-pytorch's names: those of a copy whose weights they are."""
    copy = build_model(model.config, seed=0)
    copy.load_state_dict(gradients)
    return to_dalle_pytorch(copy)


def test_greedy_tokens(case, monkeypatch):
    """The same codes as dalle-pytorch's cached and uncached sampling, where they were recorded."""
    fixture, model = case
    if "greedy_cached" not in fixture.arrays:
        assert fixture.facts["greedy_cached_equals_uncached"] is None
        return
    for loop in (product._loop(), None):  # as compiled, where there is a compiler, and in PyTorch alone
        monkeypatch.setattr(product, "_loop", lambda loop=loop: loop)
        codes = sample_codes(model, fixture.text, top_k=1)
        assert np.array_equal(codes.numpy(), fixture.arrays["greedy_cached"])


def test_conversion_there_and_back(case):
    """The same names in the same order, and the same bits, angles included."""
    fixture, model = case
    back = to_dalle_pytorch(model)
    assert list(back) == fixture.facts["state_dict_keys_in_order"]
    for name, tensor in fixture.state.items():
        assert torch.equal(back[name], tensor), name


def test_names_of_a_later_positional_library_are_read():
    """axial-positional-embedding numbers its weights with a dot since 0.3."""
    fixture = fixtures.read_fixture(fixtures.OWN / "nothing-shared.json")
    model = build_model(fixture.config, seed=1)
    renamed = {name.replace(".weights_", ".weights."): tensor for name, tensor in fixture.state.items()}
    assert renamed.keys() != fixture.state.keys()
    expected = from_dalle_pytorch(fixture.state, model)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in from_dalle_pytorch(renamed, model).items())


def test_as_many_parameters(case):
    fixture, model = case
    assert sum(p.numel() for p in model.parameters()) == fixture.facts["unique_params"]
