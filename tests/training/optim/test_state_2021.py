"""A run of 2021 goes on: its optimizer's state, in the layout that its code wrote, is read."""

from __future__ import annotations

import copy

import pytest
import torch

from training.errors import BadInput
from training.optim.eight_bit.codebook import codebook
from training.optim.lamb import Lamb8bit
from training.optim.state_2021 import load_2021_state

SHAPES = [(300, 300), (64, 1024), (1000,), ()]
CONTENTS = [(number, name) for number in range(len(SHAPES)) for name in ("state1", "state2")]
THRESHOLD = 65_536


def saved_state(block_size=4096, step=7):
    """A state dict as `CPULAMB8Bit` of dalle-hivemind makes it, and the moments that it stands for."""
    generator = torch.Generator().manual_seed(0)
    state, moments = {}, []
    qmaps = [codebook(signed).values.clone() for signed in (True, False)]
    for number, shape in enumerate(SHAPES):
        of_parameter, meant = {"step": step}, []
        size = torch.Size(shape).numel()
        for place, qmap in enumerate(qmaps, start=1):
            if size < THRESHOLD:
                content = torch.randn(shape, generator=generator) * 1e-3
                content = content if place == 1 else content.abs()
                meant.append(content.flatten())
            else:
                content = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
                absmax = torch.rand(-(-size // block_size), generator=generator) * 1e-3
                of_parameter[f"qmap{place}"], of_parameter[f"absmax{place}"] = qmap, absmax
                block_of = torch.arange(size) // block_size
                meant.append(qmap[content.flatten().long()] * absmax[block_of])
            of_parameter[f"state{place}"] = content
        of_parameter |= {name: torch.tensor(1.0) for name in ("weight_norm", "step_norm", "trust_ratio")}
        state[number] = of_parameter
        moments.append(meant)
    group = {"lr": 2.5e-3, "betas": (0.9, 0.96), "eps": 1e-6, "weight_decay": 0.045, "params": [0, 1, 2, 3]}
    return {"state": state, "param_groups": [group]}, moments


def optimizer_for(**settings):
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return weights, Lamb8bit(weights, lr=1e-3, **{"min_8bit_size": THRESHOLD, **settings})


def moments_of(optimizer, weight):
    numbers = []
    for place, signed in ((1, True), (2, False)):
        content, scales = (optimizer.state[weight].get(f"moment{place}{suffix}") for suffix in ("", "_scales"))
        if scales is not None:
            every = scales.repeat_interleave(optimizer.block_size)[: content.numel()]
            content = codebook(signed).values[content.long()] * every
        numbers.append(content)
    return numbers


def test_moments_and_steps_are_taken_over_exactly(tmp_path):
    state_dict, meant = saved_state()
    torch.save(state_dict, tmp_path / "optimizer.pt")
    weights, optimizer = optimizer_for()
    load_2021_state(optimizer, torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for number, (weight, expected) in enumerate(zip(weights, meant, strict=True)):
        assert optimizer.state[weight]["step"] == 7
        for ours, numbers in zip(moments_of(optimizer, weight), expected, strict=True):
            assert torch.allclose(ours, numbers, rtol=1e-6, atol=0), number
    codes = optimizer.state[weights[0]]["moment1"]
    assert torch.equal(codes, state_dict["state"][0]["state1"].flatten())


def test_the_run_goes_on_as_if_its_moments_had_been_made_here():
    state_dict, meant = saved_state()
    weights, optimizer = optimizer_for(bias_correction=True)
    load_2021_state(optimizer, state_dict)
    before = weights[2].clone()
    gradient = torch.full((1000,), 1e-3)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    weights[2].grad = gradient
    optimizer.step()
    m = (0.9 * meant[2][0] + 0.1 * gradient) / (1 - 0.9**8)
    v = (0.96 * meant[2][1] + 0.04 * gradient**2) / (1 - 0.96**8)
    direction = m / (v.sqrt() + 1e-6) + 0.045 * before
    expected = before - 1e-3 * before.norm() / direction.norm() * direction
    assert torch.allclose(weights[2], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("change", ["other blocks", "other values", "32 bit here", "8 bit here", "blocks of 256 there"])
def test_moments_in_another_form_are_stored_anew(change):
    state_dict, meant = saved_state(block_size=256 if change == "blocks of 256 there" else 4096)
    here = {"other blocks": {"block_size": 256}, "32 bit here": {"min_8bit_size": 1 << 30}}
    here["8 bit here"] = {"min_8bit_size": 0}
    settings = here.get(change, {})
    if change == "other values":
        for state in state_dict["state"].values():
            if "qmap1" in state:  # the same numbers, told otherwise
                state["qmap1"], state["state1"] = state["qmap1"].flip(0), 255 - state["state1"]
    weights, optimizer = optimizer_for(**settings)
    given = copy.deepcopy(state_dict)
    load_2021_state(optimizer, state_dict)
    assert all(torch.equal(given["state"][i][name], state_dict["state"][i][name]) for i, name in CONTENTS)
    for weight, expected in zip(weights, meant, strict=True):
        for ours, numbers in zip(moments_of(optimizer, weight), expected, strict=True):
            assert float((ours - numbers).norm()) <= 0.02 * float(numbers.norm())


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda state: state.pop(3), "3 parameters' moments"),
        (lambda state: state[0].pop("absmax2"), "absmax2"),
        (lambda state: state[0].update(absmax1=torch.ones(3)), "3 scales"),
        (lambda state: state[0].update(state1=torch.zeros(5, dtype=torch.uint8)), "5 values"),
        (lambda state: state[2].update(state2=torch.full((1000,), float("nan"))), "not finite"),
        (lambda state: (state[0]["absmax1"].add_(1e38), state[0]["qmap1"].mul_(100)), "not finite"),
        (lambda state: state[2].update(state2=torch.zeros(1000, dtype=torch.int16)), "int16"),
        (lambda state: state[1].pop("step"), "step"),
        (lambda state: state[1].update(step=torch.tensor(float("inf"))), "infinity"),
        (lambda state: state[1].update(step=-3), "step is -3"),
        (lambda state: state[2].update(state1=[0.0] * 1000), "state1 is no tensor"),
        (lambda state: state.update({0: torch.zeros(3)}), "state1 is no tensor"),
        (lambda state: state[2]["state2"][7:].fill_(-1e-9), "negative"),
        (lambda state: state[0]["absmax2"].neg_(), "negative"),
    ],
    ids=[
        "parameter missing", "scales missing", "scales torn", "other size", "not finite", "not finite once scaled",
        "other type", "no step",
        "endless steps", "step below zero", "a list", "no moments", "negative squares", "negative scales",
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage, told):
    state_dict, _ = saved_state()
    damage(state_dict["state"])
    _, optimizer = optimizer_for()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(BadInput, match=told):
        load_2021_state(optimizer, state_dict)
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(before[i]["moment1"], after[i]["moment1"]) and after[i]["step"] == 0 for i in before)
