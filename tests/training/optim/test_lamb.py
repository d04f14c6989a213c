"""8-bit LAMB against a float64 LAMB written down here from the paper, without sharing any code with it."""

import copy
import math
import sys

import pytest
import torch
from torch import nn

from training.errors import BadInput
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.groups import parameter_groups
from training.optim.lamb import Lamb8bit

SETTINGS = dict(betas=(0.9, 0.96), eps=1e-6, weight_decay=0.045, max_grad_norm=4.0)


class Lamb64:
    """LAMB of You et al. 2020 in float64, one tensor at a time."""

    def __init__(self, weights, *, lr, betas, eps, weight_decay, max_grad_norm, clamp=1e4):
        self.weights = [w.detach().double().clone() for w in weights]
        self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.weights]
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, weight_decay
        self.max_norm, self.clamp = max_grad_norm, clamp

    def step(self, gradients):
        gradients = [g.double() for g in gradients]
        total = math.sqrt(sum(float((g * g).sum()) for g in gradients))
        gradients = [g * min(1.0, self.max_norm / total) for g in gradients]
        updates = []
        for i, (w, g) in enumerate(zip(self.weights, gradients, strict=True)):
            m = self.betas[0] * self.moments[i][0] + (1 - self.betas[0]) * g
            v = self.betas[1] * self.moments[i][1] + (1 - self.betas[1]) * g * g
            self.moments[i] = (m, v)
            u = m / (v.sqrt() + self.eps) + self.decay * w
            w_norm, u_norm = float(w.norm()), float(u.norm())
            ratio = min(w_norm, self.clamp) / u_norm if w_norm > 0 and u_norm > 0 else 1.0
            updates.append(-self.lr * ratio * u)
            self.weights[i] = w + updates[-1]
        return updates


def tensors(*shapes, seed=0, std=0.02):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) * std for shape in shapes]


def gradients_at(step, shapes):
    """Noise upon a part that stays the same from step to step; rows differ a hundredfold."""
    steady, fresh = tensors(*shapes, seed=1, std=1.0), tensors(*shapes, seed=100 + step, std=1.0)
    sums = [0.3 * s + f for s, f in zip(steady, fresh, strict=True)]
    return [1e-2 * torch.logspace(-2, 0, len(total)).view(-1, *[1] * (total.ndim - 1)) * total for total in sums]


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_grad_norm": math.inf}, {"trust_clamp": 0.5}, {"weight_decay": 0.0}],
    ids=lambda changes: next(iter(changes), "defaults"),
)
def test_32_bit_state_equals_float64_lamb(changes, monkeypatch):
    shapes = [(300, 300), (70_001,), (5,), (1,)]
    settings = {**SETTINGS, "lr": 2.5e-3, **changes}
    weights = tensors(*shapes)
    clamp = settings.pop("trust_clamp", 1e4)
    monkeypatch.setattr("training.optim.lamb.TRUST_CLAMP", clamp)
    oracle = Lamb64(weights, clamp=clamp, **settings)
    ours = Lamb8bit(
        weights,
        min_8bit_size=sys.maxsize,
        **settings,
    )
    for step in range(200):
        gradients = [(1 + step % 5) * gradient for gradient in gradients_at(step, shapes)]  # three of five are clipped
        oracle.step(gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        ours.step()
    for weight, expected in zip(weights, oracle.weights, strict=True):
        assert float((weight.double() - expected).norm() / expected.norm()) < 1e-6


class RoundingNoise:
    """How far block-wise 8-bit moments may lead LAMB astray, from the type's definition alone.

    A stored number is off by a random part of the gap g between its two borders: variance g^2/12. A moment hands its
    errors on with its decay. To first order the direction m/(sqrt(v)+eps) then has the variance

        var(m) / (sqrt(v)+eps)^2  +  var(v) m^2 / (4 v (sqrt(v)+eps)^4)
    """

    def __init__(self, size, *, block_size, betas, eps, **_):
        self.block_size, self.betas, self.eps = block_size, betas, eps
        self.tables = []
        for signed in (True, False):
            values = [0.0, 1.0]
            for decade in range(7):
                steps = (1 if signed else 2) * 2**decade
                means = [10.0 ** (decade - 6) * (0.1 + 0.9 * (i + 0.5) / steps) for i in range(steps)]
                values += means + ([-mean for mean in means] if signed else [])
            self.tables.append(torch.tensor(sorted(values), dtype=torch.float64))
        self.variances = [torch.zeros(size, dtype=torch.float64) for _ in range(2)]

    def relative_error(self, moments, direction):
        """Expected |error| / |direction| of the update that makes these exact moments; call it once an update."""
        (m, v), root = moments, moments[1].sqrt()
        of_m, of_v = (beta**2 * old for beta, old in zip(self.betas, self.variances, strict=True))
        variance = of_m / (root + self.eps) ** 2 + of_v * m**2 / (4 * v * (root + self.eps) ** 4)
        stored = [self.of_storing(moment, table) for moment, table in zip(moments, self.tables, strict=True)]
        self.variances = [of_m + stored[0], of_v + stored[1]]
        return float(variance.sum().sqrt() / direction.norm())

    def of_storing(self, values, table):
        middles = (table[1:] + table[:-1]) / 2
        borders = torch.cat([table[:1], middles, table[-1:]])
        blocks = []
        for block in values.split(self.block_size):
            scale = block.abs().max()
            index = torch.bucketize(block / scale, middles)
            blocks.append(((borders[index + 1] - borders[index]) * scale) ** 2 / 12)
        return torch.cat(blocks)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "PyTorch"])
@pytest.mark.parametrize("block_size", [256, 4096])
def test_8_bit_state_errs_by_what_rounding_explains_for_200_steps(block_size, native):
    """Each update of the 8-bit path is off by the expected rounding noise, 2.5 and 3 %, no more and no less."""
    shapes = [(300, 300)]
    weights = tensors(*shapes)
    settings = {**SETTINGS, "lr": 2.5e-3}
    oracle, noise = Lamb64(weights, **settings), RoundingNoise(90_000, block_size=block_size, **settings)
    ours = Lamb8bit(weights, block_size=block_size, native=native, **settings)
    assert ours.state[weights[0]]["moment1"].dtype == torch.uint8
    measured, predicted = [], []
    for step in range(200):
        gradients = gradients_at(step, shapes)
        before = weights[0].double()
        oracle.weights[0] = before.clone()
        expected = oracle.step(gradients)[0]
        m, v = (moment.flatten() for moment in oracle.moments[0])
        direction = m / (v.sqrt() + settings["eps"]) + settings["weight_decay"] * before.flatten()
        predicted.append(noise.relative_error((m, v), direction))
        weights[0].grad = gradients[0]
        ours.step()
        update = weights[0].double() - before
        measured.append(float((update - expected).norm() / expected.norm()))
        assert float((update * expected).sum() / (update.norm() * expected.norm())) >= 0.999
    assert all(error <= 1.1 * bound + 2e-4 for error, bound in zip(measured, predicted, strict=True))
    assert 0.9 <= math.hypot(*measured) / math.hypot(*predicted) <= 1.05
    assert max(measured) <= 0.033


@pytest.mark.parametrize("block_size", [256, 4096])
def test_200_free_steps_in_8_bit_end_where_float64_ends(block_size):
    """Errors of single updates do not add up: the way is off by no more than one update is."""
    shapes = [(300, 300)]
    weights = tensors(*shapes)
    start = weights[0].double().clone()
    settings = {**SETTINGS, "lr": 2.5e-3}
    oracle = Lamb64(weights, **settings)
    ours = Lamb8bit(weights, block_size=block_size, **settings)
    for step in range(200):
        gradients = gradients_at(step, shapes)
        oracle.step(gradients)
        weights[0].grad = gradients[0]
        ours.step()
    way = oracle.weights[0] - start
    assert float((weights[0].double() - oracle.weights[0]).norm() / way.norm()) <= 0.033


def test_small_tensors_keep_32_bit_moments_and_large_ones_two_bytes_a_value():
    large, small = tensors((256, 256), (256,))
    state = Lamb8bit([large, small], lr=1e-3).state
    assert state[small]["moment1"].dtype == torch.float32
    bytes_of_large = sum(t.numel() * t.element_size() for t in state[large].values() if isinstance(t, torch.Tensor))
    assert bytes_of_large / large.numel() <= 2.07


@pytest.mark.parametrize("size", [1_000_000, 4_000_000])
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "PyTorch"])
def test_temporary_memory_does_not_grow_with_the_tensor(size, native):
    """torch counts what it allocates and frees; at no time is more in use than a few chunks."""
    weight = torch.zeros(size)
    weight.grad = torch.ones_like(weight)
    optimizer = Lamb8bit([weight], lr=1e-3, native=native)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert events
    in_use = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        in_use += event.nbytes()
        most = max(most, in_use)
    assert 0 < most <= 1_200_000


def test_state_dict_round_trip_continues_exactly():
    shapes = [(300, 300), (40,)]
    weights = tensors(*shapes)
    first = Lamb8bit(weights, lr=1e-3)
    for step in range(3):
        for weight, gradient in zip(weights, gradients_at(step, shapes), strict=True):
            weight.grad = gradient
        first.step()
    twins = [weight.clone() for weight in weights]
    second = Lamb8bit(twins, lr=1e-3)
    for _ in range(2):  # a peer takes the state more than once
        second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state[twins[0]]["moment1"].dtype == torch.uint8
    for weight, twin, gradient in zip(weights, twins, gradients_at(3, shapes), strict=True):
        weight.grad, twin.grad = gradient.clone(), gradient.clone()
    first.step(), second.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, twins, strict=True))


def test_state_of_another_block_size_is_refused():
    (weight,) = tensors((300, 300))
    state = Lamb8bit([weight], lr=1e-3, block_size=256).state_dict()
    with pytest.raises(BadInput, match="block_size"):
        Lamb8bit([weight.clone()], lr=1e-3, block_size=4096).load_state_dict(state)


@pytest.mark.parametrize(
    "damage, told",
    [
        (lambda saved: saved.pop("state"), "not the state of an optimizer"),
        (lambda saved: saved.update(param_groups=None), "not the state of an optimizer"),
        (lambda saved: saved.update(param_groups=[]), "groups of parameters"),
        (lambda saved: saved["param_groups"][0].pop("eps"), "groups of parameters"),
        (lambda saved: saved["state"].update({0: 5}), "not the state of an optimizer"),
        (lambda saved: saved["state"][0]["moment1_scales"].fill_(math.nan), "damaged: moment1_scales of parameter 0"),
        (lambda saved: saved["state"][1]["moment2"][3:].fill_(-1e-9), "damaged: moment2 of parameter 1"),
        (lambda saved: saved["state"][1].update(step=-1), "damaged: step"),
    ],
    ids=["no state", "no groups", "other groups", "a setting missing", "no moments", "NaN", "negative square", "step"],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage, told):
    weights = tensors((300, 300), (40,))
    optimizer = Lamb8bit(weights, lr=1e-3)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    before, saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(optimizer.state_dict())
    damage(saved)
    with pytest.raises(BadInput, match=told):
        optimizer.load_state_dict(saved)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for own, old in zip(after["state"].values(), before["state"].values(), strict=True):
        assert all(torch.equal(torch.as_tensor(own[name]), torch.as_tensor(old[name])) for name in old)


def test_gradients_that_are_not_finite_change_nothing():
    (weight,) = tensors((300, 300))
    optimizer = Lamb8bit([weight], lr=1e-3)
    before, moment = weight.clone(), optimizer.state[weight]["moment1"].clone()
    weight.grad = torch.full_like(weight, math.nan)
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert torch.equal(weight, before) and torch.equal(optimizer.state[weight]["moment1"], moment)


def test_all_state_exists_before_the_first_step():
    """hivemind else makes it by a step with zero gradients, and that step would decay the weights."""
    (weight,) = tensors((300, 300))
    optimizer = Lamb8bit([weight], lr=1e-3)
    names = set(optimizer.state[weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert names == set(optimizer.state[weight])


def test_each_setting_of_the_recipe_reaches_the_optimizer():
    config = OptimizerConfig(name="lamb8bit", betas=(0.8, 0.9), eps=1e-5, weight_decay=0.1, max_grad_norm=2.0)
    elsewhere = {"name"}
    assert not any(value == getattr(OptimizerConfig(), name) for name, value in config if name not in elsewhere)
    (weight,) = tensors((1000,))
    optimizer = build_optimizer(config, [weight], lr=0.5, min_8bit_size=1000)
    used = vars(optimizer) | optimizer.param_groups[0]
    assert {name: used[name] for name, _ in config if name not in elsewhere} == config.model_dump(exclude=elsewhere)
    assert used["lr"] == 0.5 and optimizer.state[weight]["moment1"].dtype == torch.uint8
    whole = build_optimizer(config.model_copy(update={"name": "lamb"}), [weight], lr=0.5)
    assert whole.state[weight]["moment1"].dtype == torch.float32


def test_biases_norms_and_scales_do_not_decay():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Embedding(3, 4))
    model.scale = nn.Parameter(torch.tensor(1.0))
    decaying, exempt = parameter_groups(model, OptimizerConfig(weight_decay=0.045))
    assert {id(p) for p in decaying["params"]} == {id(model[0].weight), id(model[2].weight)}
    assert decaying["weight_decay"] == 0.045 and exempt["weight_decay"] == 0.0
    assert len(decaying["params"]) + len(exempt["params"]) == len(list(model.parameters()))


def test_a_parameter_shared_by_layers_is_updated_once():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    groups = parameter_groups(nn.Sequential(first, second), OptimizerConfig())
    assert len(groups[0]["params"]) == 1


def test_settings_out_of_range_are_refused():
    with pytest.raises(BadInput, match="betas"):
        Lamb8bit([torch.zeros(3)], lr=1e-3, betas=(0.9, 1.0))
    with pytest.raises(BadInput, match="float32"):
        Lamb8bit([torch.zeros(3, dtype=torch.bfloat16)], lr=1e-3)
