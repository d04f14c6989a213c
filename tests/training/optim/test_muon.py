"""Muon against torch.optim.Muon, which iterates in bfloat16, and against singular values in float64."""

import math

import pytest
import torch

from training.errors import BadInput
from training.optim.adamw import AdamW8bit
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.muon import Muon, orthogonal
from training.optim.saved import load_optimizer_tensors, optimizer_tensors

SHAPES = [(64, 64), (150, 40), (30, 200), (1, 50)]
OF_BFLOAT16 = 0.03
"""Five steps in bfloat16 err by 1.3 to 2.2 % of the update."""


def matrix(shape, seed, std=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std


def muon(weights, **settings):
    return Muon([dict(params=list(weights), hidden=True)], **{"max_grad_norm": math.inf, **settings})


def steps_on_singular_values(matrix):
    """The same polynomial on the singular values of a decomposition in float64."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_newton_schulz_applies_its_polynomial_to_the_singular_values(shape):
    given = matrix(shape, 1) * torch.logspace(-2, 0, shape[1])  # columns differ a hundredfold
    expected = steps_on_singular_values(given)
    assert float((orthogonal(given.clone()).double() - expected).norm() / expected.norm()) < 1e-4


def test_singular_values_come_near_one_and_zeros_stay_zeros():
    values = torch.linalg.svdvals(orthogonal(matrix((100, 100), 2)).double())
    wide = orthogonal(matrix((40, 400), 2)).double()
    assert float(values.max()) < 1.21 and float(torch.linalg.svdvals(wide).min()) > 0.68
    assert not orthogonal(torch.zeros(5, 7)).any()


@pytest.mark.parametrize("momentum", [0.95, 0.0])
def test_an_update_is_torchs_to_the_accuracy_of_bfloat16(momentum):
    """From equal weights each time; momentum has its own course in both."""
    weights = [matrix(shape, 0, 0.02) for shape in SHAPES]
    copies = [weight.clone() for weight in weights]
    settings = dict(lr=1e-2, momentum=momentum)
    ours = muon(weights, weight_decay=0.1, **settings)
    theirs = torch.optim.Muon(copies, adjust_lr_fn="match_rms_adamw", weight_decay=0.1, **settings)
    for step in range(20):
        before = [weight.clone() for weight in weights]
        for place, (weight, copy) in enumerate(zip(weights, copies, strict=True)):
            copy.copy_(weight)
            weight.grad = matrix(weight.shape, 100 * step + place)
            copy.grad = weight.grad.clone()
        ours.step(), theirs.step()
        for weight, copy, old in zip(weights, copies, before, strict=True):
            moved, expected = weight - old, copy - old
            assert float((moved - expected).norm() / expected.norm()) < OF_BFLOAT16
            momentum_of_torch = theirs.state[copy]["momentum_buffer"]
            assert torch.allclose(ours.state[weight]["moment1"], momentum_of_torch.flatten(), rtol=1e-6, atol=1e-7)


def test_an_update_is_exact_but_for_float32():
    """Momentum, Nesterov's step, decay and scale in float64, with the singular values above."""
    (weight,) = weights = [matrix((80, 50), 0, 0.02)]
    optimizer = muon(weights, lr=1e-2, weight_decay=0.1, momentum=0.9)
    exact, momentum = weight.double(), torch.zeros(80, 50, dtype=torch.float64)
    for step in range(10):
        gradient = matrix((80, 50), 10 + step)
        momentum = 0.9 * momentum + 0.1 * gradient.double()
        moved = steps_on_singular_values(0.9 * momentum + 0.1 * gradient.double())
        exact = exact * (1 - 1e-3) - 1e-2 * 0.2 * math.sqrt(80) * moved
        weight.grad = gradient
        optimizer.step()
    assert float((weight.double() - exact).norm() / exact.norm()) < 1e-4


def test_gradients_that_are_momentum_already_give_the_same_updates():
    """What peers send with CenteredClip: the mean of their momenta is the momentum of their mean."""
    (own,), (given,) = ([matrix((80, 50), 0, 0.02)] for _ in range(2))
    settings = dict(lr=1e-2, weight_decay=0.1)
    plain, told = muon([own], momentum=0.95, **settings), muon([given], momentum=0.0, given_momentum=0.95, **settings)
    momentum = torch.zeros(80, 50)
    for step in range(20):
        own.grad = matrix((80, 50), 10 + step)
        momentum = momentum.lerp(own.grad, 0.05)
        given.grad = momentum.clone()
        plain.step(), told.step()
        assert torch.allclose(told.state[given]["moment1"].view(80, 50), momentum)
    assert float((given - own).norm() / (own - matrix((80, 50), 0, 0.02)).norm()) < 1e-3


def test_the_size_of_gradients_does_not_matter_and_clipping_only_weighs_them():
    (first, second) = (matrix((40, 30), 0, 0.02) for _ in range(2))
    for weight, scale in ((first, 1.0), (second, 1e4)):
        optimizer = muon([weight], lr=1e-2, max_grad_norm=3.0)
        weight.grad = scale * matrix((40, 30), 1)
        optimizer.step()
        assert float(optimizer.state[weight]["moment1"].norm()) == pytest.approx(0.05 * 3.0, rel=1e-4)
    assert torch.allclose(first, second, rtol=1e-4, atol=1e-7)


def mixed(seed=0, **settings):
    """A hidden matrix and a table, with optimizer."""
    hidden, table = matrix((40, 30), seed, 0.02), matrix((50, 30), seed + 1, 0.02)
    groups = [dict(params=[hidden], hidden=True, weight_decay=0.1), dict(params=[table], weight_decay=0.1)]
    config = OptimizerConfig(name="muon", **settings)
    return [hidden, table], build_optimizer(config, groups, lr=1e-2)


def train(weights, optimizer, steps):
    for step in steps:
        for place, weight in enumerate(weights):
            weight.grad = 0.01 * matrix(weight.shape, 1000 * step + place)
        optimizer.step()


def test_all_but_hidden_matrices_are_updated_by_adamw():
    weights, optimizer = mixed()
    table = weights[1].clone()
    alone = AdamW8bit([table], lr=1e-2, weight_decay=0.1, min_8bit_size=10**6)
    for step in range(5):
        table.grad = 0.01 * matrix(table.shape, 1000 * step + 1)
        alone.step()
    train(weights, optimizer, range(5))
    assert torch.equal(table, weights[1])
    kept = {name: tensor.nbytes for name, tensor in optimizer_tensors(optimizer).items() if "moment" in name}
    assert kept == {"0.moment1": 4 * 40 * 30, "1.moment1": 4 * 50 * 30, "1.moment2": 4 * 50 * 30}


@pytest.mark.parametrize("way", ["file", "state dict"])
def test_a_saved_optimizer_goes_on_bit_for_bit(way):
    weights, optimizer = mixed()
    train(weights, optimizer, range(4))
    again, other = mixed(seed=7)
    for weight, twin in zip(weights, again, strict=True):
        twin.copy_(weight)
    if way == "file":
        load_optimizer_tensors(other, {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()})
    else:
        other.load_state_dict(optimizer.state_dict())
    train(weights, optimizer, range(4, 8))
    train(again, other, range(4, 8))
    assert all(torch.equal(weight, twin) for weight, twin in zip(weights, again, strict=True))


def test_the_state_of_another_optimizer_is_refused():
    weights, optimizer = mixed()
    other = AdamW8bit([weight.clone() for weight in weights], lr=1e-2, min_8bit_size=10**6)
    with pytest.raises(BadInput, match="does not fit"):
        load_optimizer_tensors(optimizer, optimizer_tensors(other))
    with pytest.raises(BadInput, match="does not fit"):
        optimizer.load_state_dict(other.state_dict())
