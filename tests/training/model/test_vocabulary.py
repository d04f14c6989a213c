"""The two ends of the vocabulary: losses and gradients as by torch's own functions, and one gradient of each matrix."""

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from training.model import vocabulary
from training.model.transformer import build_model
from training.model.vocabulary import TiedGradient, embed_tied, output_losses
from training.recipe import load_recipe

TEXT_ROWS, IMAGE_ROWS, WIDTH = 11, 7, 5


@pytest.fixture
def given(monkeypatch):
    """Weights, bias, text and codes; logits are handled a few rows at a time."""
    monkeypatch.setattr(vocabulary, "CHUNK_BYTES", 3 * 8 * TEXT_ROWS)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(TEXT_ROWS + IMAGE_ROWS, WIDTH, generator=generator, dtype=torch.float64)
    bias = torch.randn(TEXT_ROWS + IMAGE_ROWS, generator=generator, dtype=torch.float64)
    text = torch.randint(0, TEXT_ROWS, (2, 4), generator=generator)
    codes = torch.randint(0, IMAGE_ROWS, (2, 6), generator=generator)
    return weight.requires_grad_(), bias.requires_grad_(), text, codes


def plain(weight, bias, text, codes):
    """Embedding, something in between, and the losses, by autograd."""
    ids = torch.cat([torch.zeros_like(text[:, :1]), text, codes + TEXT_ROWS], dim=1)
    hidden = functional.embedding(ids, weight).sin()
    logits = hidden[:, :-1] @ weight.t() + bias
    text_loss = functional.cross_entropy(logits[:, :4, :TEXT_ROWS].flatten(0, 1), text.flatten())
    return text_loss, functional.cross_entropy(logits[:, 4:, TEXT_ROWS:].flatten(0, 1), codes.flatten())


def ours(weight, bias, text, codes):
    tied = TiedGradient()
    ids = torch.cat([torch.zeros_like(text[:, :1]), text, codes + TEXT_ROWS], dim=1)
    hidden = embed_tied(ids, weight, tied).sin()
    return output_losses(hidden, weight, bias, text, codes, text_rows=TEXT_ROWS, dtype=torch.float64, tied=tied)


@pytest.mark.parametrize("shares", [(1.0, 7.0), (0.0, 1.0), (-2.0, 0.5)])
def test_losses_and_gradients_are_those_of_autograd(given, shares):
    weight, bias = given[:2]
    results = []
    for losses in (ours(*given), plain(*given)):
        gradients = torch.autograd.grad(sum(s * loss for s, loss in zip(shares, losses, strict=True)), (weight, bias))
        results.append((*losses, *gradients))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_large_logits_do_not_overflow(given):
    with torch.no_grad():
        given[0].mul_(1e4)
    for mine, theirs in zip(ours(*given), plain(*given), strict=True):
        assert torch.isfinite(mine) and mine.item() == pytest.approx(theirs.item(), rel=1e-12)


def test_a_second_backward_pass_is_refused(given):
    """The buffer of logits has become their gradient: to use it again would be wrong."""
    loss = sum(ours(*given))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_one_gradient_of_the_vocabulary_is_made():
    """A backward pass takes memory of the matrix' size once, where two ends and two parts could each take it."""
    config = load_recipe("demo").model.model_copy(update=dict(text_vocab_size=20_000))
    model = build_model(config, seed=0)
    text, codes = torch.ones(1, config.text_seq_len, dtype=torch.long), torch.zeros(1, config.image_seq_len).long()
    loss = model(text, codes).loss
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        loss.backward()
    events = profiled.profiler.kineto_results.events()
    taken = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert sum(nbytes >= model.output.weight.nbytes for nbytes in taken) == 1
