"""AdamW against torch.optim.AdamW in float64, and in 8 bit against bitsandbytes."""

import math
import sys

import bitsandbytes
import pytest
import torch

from training.optim.adamw import AdamW8bit
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.eight_bit.codebook import codebook

SETTINGS = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SHAPES = [(300, 300), (70_001,), (5,), (1,)]


def tensors(shapes, seed, std=1.0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * std for shape in shapes]


def gradients_at(step, shapes):
    """Noise upon a part that stays the same from step to step; rows differ a hundredfold."""
    sums = [0.3 * s + f for s, f in zip(tensors(shapes, 1), tensors(shapes, 100 + step), strict=True)]
    return [1e-2 * torch.logspace(-2, 0, len(total)).view(-1, *[1] * (total.ndim - 1)) * total for total in sums]


def step(optimizer, weights, gradients):
    """How the weights move."""
    before = [weight.detach().double().clone() for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.to(weight.dtype, copy=True)
    optimizer.step()
    return [weight.detach().double() - old for weight, old in zip(weights, before, strict=True)]


def off_by(ours, expected):
    return float((ours - expected).norm() / expected.norm())


@pytest.mark.parametrize("changes", [{}, {"weight_decay": 0.0}, {"betas": (0.0, 0.95)}], ids=str)
def test_32_bit_moments_give_torchs_weights(changes):
    """torch in float64: in float32 its factor 1 - lr weight_decay is rounded once, and errs alike in each update."""
    settings = {**SETTINGS, **changes}
    weights = tensors(SHAPES, 0, 0.02)
    exact = [weight.double() for weight in weights]
    ours = AdamW8bit(
        weights,
        max_grad_norm=math.inf,
        min_8bit_size=sys.maxsize,
        **settings,
    )
    theirs = torch.optim.AdamW(exact, foreach=False, **settings)
    for number in range(100):
        gradients = gradients_at(number, SHAPES)
        step(ours, weights, gradients)
        step(theirs, exact, gradients)
        assert all(off_by(weight.double(), other) < 1e-6 for weight, other in zip(weights, exact, strict=True))


def test_an_update_is_torchs_in_float32():
    weights = tensors(SHAPES, 0, 0.02)
    ours = AdamW8bit(weights, max_grad_norm=math.inf, min_8bit_size=sys.maxsize, **SETTINGS)
    copies = [weight.clone() for weight in weights]
    theirs = torch.optim.AdamW(copies, foreach=False, **SETTINGS)
    for number in range(20):
        gradients = gradients_at(number, SHAPES)
        step(ours, weights, gradients), step(theirs, copies, gradients)
        # Two units in the last place, and as much of an update.
        assert all(torch.allclose(*both, rtol=2.4e-7, atol=5e-10) for both in zip(weights, copies, strict=True))
        for weight, copy in zip(weights, copies, strict=True):
            copy.copy_(weight)


def test_gradients_are_clipped_to_a_global_norm():
    weights, copies = tensors(SHAPES, 0, 0.02), tensors(SHAPES, 0, 0.02)
    ours = AdamW8bit(weights, max_grad_norm=0.5, min_8bit_size=sys.maxsize, **SETTINGS)
    theirs = torch.optim.AdamW(copies, foreach=False, **SETTINGS)
    for number in range(5):
        gradients = [(1 + 3 * number) * gradient for gradient in gradients_at(number, SHAPES)]
        norm = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in gradients))
        assert norm > 0.5
        step(ours, weights, gradients)
        step(theirs, copies, [gradient * 0.5 / norm for gradient in gradients])
    assert all(off_by(weight, copy) < 1e-6 for weight, copy in zip(weights, copies, strict=True))


def copy_state(theirs, ours):
    """Copies bitsandbytes' codes and scales; both libraries give the codes the same values."""
    ours["step"] = theirs["step"]
    for place, signed in ((1, True), (2, False)):
        assert torch.equal(theirs[f"qmap{place}"], codebook(signed).values)
        ours[f"moment{place}"].copy_(theirs[f"state{place}"].flatten())
        ours[f"moment{place}_scales"].copy_(theirs[f"absmax{place}"])


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "PyTorch"])
def test_an_update_from_the_same_8_bit_state_is_bitsandbytes(native):
    (weight,) = tensors([(300, 300)], 0, 0.02)
    theirs_weight = torch.nn.Parameter(weight.clone())
    ours = AdamW8bit([weight], max_grad_norm=math.inf, block_size=256, native=native, **SETTINGS)
    theirs = bitsandbytes.optim.AdamW8bit([theirs_weight], **SETTINGS)
    for number in range(30):
        if number:
            weight.copy_(theirs_weight.detach())
            copy_state(theirs.state[theirs_weight], ours.state[weight])
            assert ours.state[weight]["moment1"].dtype == torch.uint8
        gradients = gradients_at(number, [(300, 300)])
        (moved,), (expected,) = step(ours, [weight], gradients), step(theirs, [theirs_weight], gradients)
        assert off_by(moved, expected) < 1e-5


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "PyTorch"])
def test_8_bit_moments_err_no_more_than_those_of_bitsandbytes(native):
    """Each update after one's own history, compared with float64."""
    (weight,) = tensors([(300, 300)], 0, 0.02)
    exact, theirs_weight = weight.double(), torch.nn.Parameter(weight.clone())
    optimizers = [
        (AdamW8bit([weight], max_grad_norm=math.inf, block_size=256, native=native, **SETTINGS), weight),
        (bitsandbytes.optim.AdamW8bit([theirs_weight], **SETTINGS), theirs_weight),
        (torch.optim.AdamW([exact], foreach=False, **SETTINGS), exact),
    ]
    errors = []
    for number in range(40):
        gradients = gradients_at(number, [(300, 300)])
        ours, theirs, expected = (step(optimizer, [weights], gradients)[0] for optimizer, weights in optimizers)
        errors.append((off_by(ours, expected), off_by(theirs, expected)))
    own, of_bitsandbytes = (math.hypot(*column) for column in zip(*errors, strict=True))
    assert own <= 1.05 * of_bitsandbytes
    assert 0.005 < max(error for error, _ in errors) < 0.05  # it is in 8 bit, and no more than that


def test_the_number_of_threads_changes_nothing():
    """Chunks are updated in several threads at once."""
    moved = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            weights = tensors([(900_001,)], 0, 0.02)
            optimizer = AdamW8bit(weights, lr=1e-3)
            for number in range(3):
                step(optimizer, weights, gradients_at(number, [(900_001,)]))
        finally:
            torch.set_num_threads(before)
        moved.append((weights[0], optimizer.state[weights[0]]["moment1"]))
    assert all(torch.equal(one, three) for one, three in zip(*moved, strict=True))


@pytest.mark.parametrize(("name", "dtype"), [("adamw8bit", torch.uint8), ("adamw", torch.float32)])
def test_each_setting_of_the_recipe_reaches_the_optimizer(name, dtype):
    config = OptimizerConfig(name=name, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.1, max_grad_norm=2.0)
    (weight,) = tensors([(1000,)], 0)
    optimizer = build_optimizer(config, [weight], lr=0.5, min_8bit_size=1000)
    group = optimizer.param_groups[0]
    assert isinstance(optimizer, AdamW8bit)
    assert (group["betas"], group["eps"], group["weight_decay"], group["lr"]) == ((0.8, 0.9), 1e-5, 0.1, 0.5)
    assert optimizer.max_grad_norm == 2.0
    assert optimizer.state[weight]["moment1"].dtype == dtype
