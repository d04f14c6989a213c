"""Each optimizer that a recipe may name: its state goes to a newcomer and to the monitor, and training goes on."""

import pytest
import torch
from hivemind.optim.state_averager import dump_optimizer_state
from hivemind.utils import MSGPackSerializer

from training.model.transformer import build_model
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.groups import parameter_groups
from training.optim.muon import MOMENTUM
from training.recipe import load_recipe
from training.swarm.engine.bounds import unpack
from training.swarm.epoch.strategies import Awaited, LocalUpdates, SparseUpdates
from training.swarm.state.download import most_state_bytes
from training.swarm.state.master_weights import load_optimizer_state

NAMES = ("lamb8bit", "lamb", "adamw8bit", "adamw", "muon")


def run_with(name, **swarm):
    demo = load_recipe("demo")
    swarm = demo.swarm.model_copy(update=swarm)
    return demo.model_copy(update={"optimizer": OptimizerConfig(name=name), "swarm": swarm})


def host_of(run, seed):
    return Awaited.make_master(build_model(run.model, seed), run)


def update(master, epoch):
    generator = torch.Generator().manual_seed(epoch)
    master.use_gradients([1e-3 * torch.randn(shape, generator=generator) for shape in master.shapes])
    master.update(epoch)


def sent(master):
    """Tensors and metadata as they leave a donor, the metadata through the bytes on the way."""
    metadata, moments = dump_optimizer_state(master.optimizer)
    tensors = [tensor.detach().clone() for tensor in (*master.parameters, *moments)]
    return tensors, unpack(MSGPackSerializer.dumps(metadata))


@pytest.mark.parametrize("aggregation", ["mean", "centered-clip"])
@pytest.mark.parametrize("name", NAMES)
def test_a_newcomer_goes_on_bit_for_bit(name, aggregation):
    run = run_with(name, aggregation=aggregation)
    donor, newcomer = host_of(run, 0), host_of(run, 1)
    for epoch in range(3):
        update(donor, epoch)
    tensors, metadata = sent(donor)
    assert sum(tensor.nbytes for tensor in tensors) < most_state_bytes(donor.shapes)
    newcomer.load_state(tensors, metadata, 3)
    for epoch in (3, 4):
        update(donor, epoch), update(newcomer, epoch)
    assert all(torch.equal(own, theirs) for own, theirs in zip(donor.parameters, newcomer.parameters, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_monitor_reads_the_state_of_peers_with_momentum_of_their_own(name):
    """It builds the recipe's optimizer, the peers the one without momentum."""
    run = run_with(name, aggregation="centered-clip")
    master = host_of(run, 0)
    update(master, 0)
    model = build_model(run.model, 1)
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=1e-3)
    tensors, metadata = sent(master)
    load_optimizer_state(optimizer, metadata, tensors[len(master.parameters) :])
    own, theirs = optimizer.state_dict()["state"], master.optimizer.state_dict()["state"]
    assert all(torch.equal(own[place]["moment1"], theirs[place]["moment1"]) for place in theirs)
    assert any(theirs[place]["moment1"].any() for place in theirs)


def test_with_centered_clip_muon_adds_no_momentum_to_that_of_the_peers():
    """It steps further from the last average of theirs to the next; what came before has no part in it."""
    run = run_with("muon", aggregation="centered-clip")
    once, twice = host_of(run, 0), host_of(run, 0)
    assert (once.optimizer.momentum, once.optimizer.given_momentum) == (0.0, MOMENTUM)
    assert host_of(run_with("muon"), 0).optimizer.given_momentum == 0.0
    update(once, 7)
    update(twice, 6), update(twice, 7)
    for weights, others in zip(twice.parameters, once.parameters, strict=True):
        weights.data.copy_(others)
    update(once, 8), update(twice, 8)
    (hidden, *_) = once.optimizer.param_groups
    assert hidden["hidden"]
    for own, other in zip(once.parameters, twice.parameters[: len(hidden["params"])], strict=False):
        assert torch.equal(own, other)


@pytest.mark.parametrize("name", NAMES)
def test_hosts_of_both_modes_have_the_parameters_in_one_order_and_decay_them_once(name):
    """Checkpoints number parameters in this order."""
    run = run_with(name)
    model = build_model(run.model, 0)
    awaited, local = (strategy.make_master(model, run) for strategy in (Awaited, LocalUpdates))
    groups = parameter_groups(model, run.optimizer)
    for master in (awaited, local):
        expected = [parameter for group in groups for parameter in group["params"]]
        assert all(own is other for own, other in zip(master.model_parameters, expected, strict=True))
    assert not any(group["weight_decay"] for group in local.optimizer.param_groups)
    assert any(group["weight_decay"] for group in awaited.optimizer.param_groups)


@pytest.mark.parametrize("spoiled", [{"type": "value", "value": "none"}, {"type": "tensor", "index": 1}])
def test_local_updates_take_no_momentum_that_they_could_not_compute_with(spoiled):
    """torch's SGD would take it, and the next update would fail."""
    run = run_with("lamb", mode="diloco")
    donor, newcomer = (LocalUpdates.make_master(build_model(run.model, seed), run) for seed in (0, 1))
    tensors, metadata = sent(donor)
    assert len({tensor.shape for tensor in tensors[len(donor.parameters) :][:2]}) == 2
    place = next(place for place, entry in enumerate(metadata) if entry["type"] == "tensor")
    with pytest.raises(ValueError, match="other tensors"):
        newcomer.load_state(tensors, [*metadata[:place], spoiled, *metadata[place + 1 :]], 3)
    assert newcomer.epoch == 0
    newcomer.load_state(tensors, metadata, 3)
    assert newcomer.epoch == 3


def test_sparse_updates_have_no_moments_to_send():
    run = run_with("lamb", mode="sparse")
    donor, newcomer = (SparseUpdates.make_master(build_model(run.model, seed), run) for seed in (0, 1))
    tensors, metadata = sent(donor)
    assert len(tensors) == len(donor.parameters)
    newcomer.load_state(tensors, metadata, 3)
    assert newcomer.epoch == 3
    assert all(torch.equal(*both) for both in zip(donor.parameters, newcomer.parameters, strict=True))
