"""Which states may become checkpoints; the oracle is what optimizers do to weights, and what breaks them."""

from __future__ import annotations

import math

import pytest
import torch

from training.checkpoints.checkpoint import save_checkpoint
from training.checkpoints.sanity import EPOCHS, Norms, loss_fault, norms_of_latest
from training.model.transformer import build_model
from training.optim.build import build_optimizer
from training.optim.groups import parameter_groups
from training.recipe import RECIPES, load_recipe

RUN = load_recipe("demo")


def faults(good, weights, epoch):
    """All faults of weights, tensor by tensor and together."""
    found = [good.fault_of(name, tensor, epoch) for name, tensor in weights.items()]
    norm = math.sqrt(sum(float(tensor.norm()) ** 2 for tensor in weights.values()))
    return [fault for fault in [*found, good.fault_of_all(norm, epoch)] if fault]


@pytest.fixture(scope="module")
def model():
    return build_model(RUN.model, seed=3)


@pytest.fixture
def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_updates_of_the_runs_own_optimizer_are_good(weights):
    """50 updates with random gradients, at the highest rate of the schedule: from the very first weights on."""
    model = build_model(RUN.model, seed=3)
    optimizer = build_optimizer(
        RUN.optimizer, parameter_groups(model, RUN.optimizer), lr=RUN.schedule.peak_learning_rate
    )
    good = Norms(0, weights)
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    after = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert any(not torch.equal(after[name], weights[name]) for name in weights)
    assert faults(good, after, 50) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensor: tensor * 1000,
        lambda tensor: tensor * 0,
        lambda tensor: tensor * math.nan,
        lambda tensor: torch.randn_like(tensor) * 100,
    ],
)
def test_one_spoiled_tensor_is_noticed(weights, spoil):
    good = Norms(40, weights)
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name] = spoil(weights[name])
    assert any(name in fault for fault in faults(good, weights, 50))


def test_all_weights_a_little_too_large_are_noticed_together(weights):
    good = Norms(40, weights)
    assert faults(good, {name: 8 * tensor for name, tensor in weights.items()}, 50) == []
    (fault,) = faults(good, {name: 12 * tensor for name, tensor in weights.items()}, 50)
    assert fault.startswith("the norm of all weights together is")
    assert fault.endswith("10 epochs before")


def test_a_longer_time_allows_more(weights):
    """Else one false alarm would end all checkpoints for good."""
    good = Norms(40, weights)
    grown = {name: 50 * tensor for name, tensor in weights.items()}
    assert faults(good, grown, 40 + EPOCHS)
    assert faults(good, grown, 40 + 2 * EPOCHS) == []
    assert faults(good, {name: tensor * math.nan for name, tensor in weights.items()}, 10**9)


def test_norms_come_from_the_newest_readable_checkpoint(tmp_path, model, weights):
    assert norms_of_latest(tmp_path / "nowhere", list(weights)) is None
    text = (RECIPES / "demo.toml").read_text()
    for epoch in (10, 20):
        save_checkpoint(tmp_path, model=model, recipe_toml=text, epoch=epoch, metrics={}, shards="s")
    newest = norms_of_latest(tmp_path, list(weights))
    assert newest.epoch == 20
    assert newest.total == pytest.approx(math.sqrt(sum(float(tensor.norm()) ** 2 for tensor in weights.values())))
    (tmp_path / "epoch-000020" / "model.safetensors").write_bytes(b"damaged")
    assert norms_of_latest(tmp_path, list(weights)).epoch == 10


def test_a_falling_and_a_noisy_loss_are_good():
    generator = torch.Generator().manual_seed(2)
    noise = (1 + 0.2 * torch.randn(2000, generator=generator)).tolist()
    losses = [(1 + 8 * math.exp(-epoch / 300)) * factor for epoch, factor in enumerate(noise)]
    assert all(loss_fault(losses[max(0, end - 50) : end]) is None for end in range(len(losses) + 1))


def test_a_loss_that_jumps_is_noticed_and_one_bad_epoch_is_not():
    usual = [2.0] * 47
    assert loss_fault([*usual, 2.0, 2.0, 50.0]) is None
    assert loss_fault([*usual, 9.0, 9.0, 9.0]) == "its loss is 9, and 2 in the last 50 epochs"
    assert loss_fault([0.1] * 40 + [0.9] * 10) is None  # small numbers vary much
    assert loss_fault([2.0] * 6 + [9.0] * 3) is None  # too few to compare


def test_a_loss_that_stays_high_is_compared_with_the_losses_before_the_last_checkpoint():
    high, good = [9.0] * 50, [2.0] * 40
    assert loss_fault(high) is None  # nothing else is known
    assert loss_fault(high, good=good) == "its loss is 9, and 2 before its last checkpoint"
    assert loss_fault(high, good=good, rise=5.0) is None
    assert loss_fault([2.1] * 50, good=good) is None
    assert loss_fault(high, good=[2.0] * 9) is None  # too few to compare
