"""Sampling with caches draws what the whole model, run anew for each token, would draw."""

import numpy as np
import pytest
import torch

from training.errors import BadInput
from training.model.config import ModelConfig
from training.model.sampling import LEAST_TEMPERATURE, draw_codes, sample_codes
from training.model.transformer import build_model

SIZES = dict(
    hidden_size=32,
    num_layers=5,
    num_heads=2,
    head_dim=16,
    text_vocab_size=11,
    text_seq_len=5,
    image_grid=6,
    image_vocab_size=13,
)
VARIANTS = {
    "as the paper": {},
    "sequential": dict(reversible=False),
    "full": dict(attention_cycle=("full",), last_attention="full"),
    "conv everywhere": dict(attention_cycle=("conv",)),
    "columns": dict(attention_cycle=("column",), last_attention="column"),
    "no shift": dict(shift_tokens=False),
    "no rotary": dict(rotary=False),
    "untied": dict(tied_embeddings=False),
    "padding as in 2021": dict(text_padding_id=1),
    "padding mask, full": dict(text_padding_id=1, attention_cycle=("full", "row")),
    "nothing shared": dict(shared_groups=None),
}


def make(**changes):
    """A small model in float64 whose layer scales are large, so that every layer matters."""
    model = build_model(ModelConfig(**(SIZES | changes)), seed=2).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("scale"):
                parameter.copy_(torch.linspace(0.5, 1.5, parameter.numel()))
            elif "position" not in name:
                parameter.mul_(2.0)
    return model


def some_text(rows):
    generator = torch.Generator().manual_seed(rows)
    text = torch.randint(1, SIZES["text_vocab_size"], (rows, SIZES["text_seq_len"]), generator=generator)
    text[0, 3:] = 0
    return text


def sample_without_cache(model, text, seeds, **settings):
    """The definition: one whole forward pass for each token."""
    total = model.config.image_seq_len
    uniform = torch.stack([torch.rand(total, generator=torch.Generator().manual_seed(one)) for one in seeds])
    codes = torch.zeros(len(text), total, dtype=torch.long)
    for position in range(total):
        at = model.config.text_seq_len + position
        with torch.no_grad():
            logits = model.logits(text, codes)[:, at, model.text_rows :]
        codes[:, position] = draw_codes(logits, uniform[:, position], **settings)
    return codes


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_equals_uncached(variant):
    model, text = make(**VARIANTS[variant]), some_text(3)
    settings = dict(top_k=9, top_p=0.95, temperature=1.2)
    cached = sample_codes(model, text, seed=[4, 5, 99], **settings)
    assert torch.equal(cached, sample_without_cache(model, text, [4, 5, 99], **settings))
    assert len(set(cached.flatten().tolist())) > 5


def test_seeds_reproduce_in_any_batch():
    model, text = make(), some_text(4)
    together = sample_codes(model, text, seed=10)
    assert torch.equal(together, sample_codes(model, text, seed=10))
    for row in range(4):
        assert torch.equal(together[row : row + 1], sample_codes(model, text[row : row + 1], seed=10 + row))
    assert not torch.equal(together, sample_codes(model, text, seed=11))


def test_progress_counts_every_token():
    seen = []
    sample_codes(make(), some_text(1), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 36) for done in range(1, 37)]


@pytest.mark.parametrize(
    "settings",
    [
        dict(top_k=None, top_p=None, temperature=1.0),
        dict(top_k=None, top_p=None, temperature=0.5),
        dict(top_k=3, top_p=None, temperature=2.0),
        dict(top_k=None, top_p=0.75, temperature=1.0),
        dict(top_k=5, top_p=0.6, temperature=1.5),
        dict(top_k=1, top_p=None, temperature=1.0),
    ],
)
def test_frequencies_are_the_truncated_softmax(settings):
    """Over a fine grid of uniform numbers, codes are drawn as often as a numpy softmax with the limits says."""
    logits = np.array([0.3, 2.0, -1.0, 1.7, 0.0, -2.0, 1.0])
    scaled = logits / settings["temperature"]
    order = np.argsort(-scaled)
    kept = order[: settings["top_k"]]
    weights = np.exp(scaled[kept]) / np.exp(scaled[kept]).sum()
    if settings["top_p"] is not None:
        enough = int(np.searchsorted(np.cumsum(weights), settings["top_p"])) + 1
        kept, weights = kept[:enough], weights[:enough] / weights[:enough].sum()
    expected = np.zeros(len(logits))
    expected[kept] = weights

    steps = 20_000
    uniform = (torch.arange(steps) + 0.5) / steps
    drawn = draw_codes(torch.tensor(logits).repeat(steps, 1), uniform, **settings)
    frequencies = np.bincount(drawn.numpy(), minlength=len(logits)) / steps
    np.testing.assert_allclose(frequencies, expected, atol=2e-4)


def test_the_last_uniform_number_draws_an_allowed_code():
    uniform = torch.full((1,), 1 - 2**-24)
    logits = torch.tensor([[5.0, 4.0, -40.0]])
    assert draw_codes(logits, uniform, top_k=2, top_p=None, temperature=1.0).item() == 1
    assert draw_codes(logits, uniform, top_k=None, top_p=0.5, temperature=1.0).item() == 0


@pytest.mark.parametrize(
    "setting, message",
    [
        (dict(top_k=0), "top-k is 0"),
        (dict(top_p=0.0), "top-p is 0"),
        (dict(temperature=0.0), "temperature is 0"),
        (dict(temperature=1e-300), "temperature is 1e-300"),
        (dict(temperature=float("inf")), "temperature is inf"),
        (dict(seed=10**20), "seed of 100000000000000000000 is too large"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(BadInput, match=message):
        sample_codes(make(), some_text(1), **setting)


def test_the_least_temperature_still_draws():
    settings = dict(top_k=None, top_p=None, temperature=LEAST_TEMPERATURE)
    assert draw_codes(torch.tensor([[-90.0, 90.0]]), torch.tensor([0.999]), **settings).item() == 1


def test_seeds_must_fit_the_rows():
    with pytest.raises(BadInput, match="2 seeds"):
        sample_codes(make(), some_text(1), seed=[1, 2])
