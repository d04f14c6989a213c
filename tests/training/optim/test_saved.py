"""An optimizer that was saved and loaded goes on as if nothing had happened."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from training.errors import BadInput
from training.optim.lamb import Lamb8bit
from training.optim.saved import load_optimizer_tensors, optimizer_tensors


def small_run(seed=0):
    torch.manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(300, 40)), torch.nn.Parameter(torch.randn(7))]
    return parameters, Lamb8bit(parameters, lr=0.01, min_8bit_size=1000, block_size=256)


def train(parameters, optimizer, steps):
    for step in range(*steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
        optimizer.step()


def test_saved_run_goes_on_bit_for_bit(tmp_path):
    parameters, optimizer = small_run()
    train(parameters, optimizer, (0, 5))
    save_file(optimizer_tensors(optimizer), tmp_path / "optimizer.safetensors")
    weights = [parameter.detach().clone() for parameter in parameters]
    train(parameters, optimizer, (5, 10))

    again, other = small_run(seed=1)
    for parameter, weight in zip(again, weights, strict=True):
        parameter.data.copy_(weight)
    load_optimizer_tensors(other, load_file(tmp_path / "optimizer.safetensors"))
    train(again, other, (5, 10))
    assert all(torch.equal(a, b) for a, b in zip(parameters, again, strict=True))
    assert all(
        torch.equal(a, b)
        for a, b in zip(optimizer_tensors(optimizer).values(), optimizer_tensors(other).values(), strict=True)
    )


def test_state_of_another_optimizer_is_refused():
    _, optimizer = small_run()
    parameters, _ = small_run()
    with pytest.raises(BadInput, match="does not fit"):
        load_optimizer_tensors(optimizer, optimizer_tensors(Lamb8bit(parameters, lr=0.01)))


def test_moments_that_no_update_leaves_are_refused():
    _, optimizer = small_run()
    damaged = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    damaged["1.moment2"][0] = float("inf")
    with pytest.raises(BadInput, match="moment2 of parameter 1 lies between 0 and inf"):
        load_optimizer_tensors(optimizer, damaged)
    assert not optimizer_tensors(optimizer)["1.moment2"].any()
