"""Each setting of the recipe's swarm reaches the parts of a peer; tests with real peers use them in the others."""

from dataclasses import replace

import pytest
import torch
from hivemind.compression import Float16Compression, Uniform8BitQuantization
from hivemind.utils import get_dht_time

from tests.support.programs import until
from training.recipe import load_recipe
from training.swarm.engine.codecs import BlockwiseCodec
from training.swarm.engine.process import DHT
from training.swarm.epoch.powersgd import PowerSgd
from training.swarm.epoch.strategies import (
    Awaited,
    Delayed,
    LocalUpdates,
    OverlappedSparse,
    OverlappedUpdates,
    SparseUpdates,
)
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.peers.progress import Progress
from training.swarm.peers.times import LIVELY_WINDOWS
from training.swarm.round.averager import Averager

DEMO = load_recipe("demo")


@pytest.fixture(scope="module")
def node():
    dht = DHT(start=True)
    yield dht
    dht.shutdown()


@pytest.fixture
def optimizer_with(node, monkeypatch):
    """The optimizer of a recipe with these settings of the swarm; its averagers' processes are not started."""
    monkeypatch.setattr(Averager, "start", lambda self: None)
    monkeypatch.setattr(Averager, "_send", lambda self, message: None)

    def make(run_id=DEMO.run_id, **changes):
        assert not any(value == getattr(DEMO.swarm, name) for name, value in changes.items())
        run = DEMO.model_copy(update={"run_id": run_id, "swarm": DEMO.swarm.model_copy(update=changes)})
        optimizer = SwarmOptimizer(torch.nn.Linear(300, 300), run, dht=node, micro_batch_size=4)
        optimizer.progress.shutdown()
        return optimizer

    return make


@pytest.mark.swarm
def test_numbers_reach_the_averagers_and_the_progress(optimizer_with, monkeypatch):
    made = optimizer_with(
        target_batch_size=999, matchmaking_seconds=2.25, allreduce_timeout_seconds=22.0, next_chunk_timeout_seconds=7.0,
        mode="delayed", max_group_size=9,
    )  # fmt: skip
    for averager in (made.gradients, made.parameters):
        settings = averager.settings
        assert (settings.matchmaking_seconds, settings.request_timeout_seconds) == (2.25, 1.5)
        assert (settings.allreduce_timeout_seconds, settings.next_chunk_timeout_seconds) == (22.0, 7.0)
    assert (made.gradients.settings.epochs_apart, made.parameters.settings.epochs_apart) == (1, 0)
    assert made.parameters.settings.round_own_parts and not made.gradients.settings.round_own_parts
    assert made.progress.target_batch_size == 999 and made.progress.lively_seconds == LIVELY_WINDOWS * 2.25
    monkeypatch.setattr(Progress, "awaited_peers", 50)
    assert made.exchange.expected_peers == 9
    rounds = []
    made.gradients.begin_round = lambda told, **settings: rounds.append(settings)
    made.exchange.look_for_group_early(0)
    assert not rounds, "the epoch has only begun"
    made.progress.report(0, 999)
    made.exchange.look_for_group_early(0)
    assert rounds == [{"seconds": 31.0, "expected_peers": 9}]


def passes(progress, seconds):
    """Makes the last count of this peer's samples so much older."""
    local = progress._local
    progress._local = local.copy(update={"counted_at": local.counted_at - seconds})


@pytest.mark.swarm
def test_the_wait_at_an_epochs_end_is_not_taken_for_a_micro_batch(optimizer_with):
    """By the length of the last micro-batch a peer sees when it must begin to look for its next group."""
    made, rounds = optimizer_with(matchmaking_seconds=2.5), []
    made.gradients.begin_round = lambda told, **settings: rounds.append(settings)
    with made.progress.pause():
        passes(made.progress, seconds=1000)
        made._begin_epoch(1)
    made.progress._global = replace(made.progress._global, full_at=get_dht_time() + 100)
    made.progress.report(1, 4)
    made.exchange.look_for_group_early(1)
    assert not rounds, "100 seconds before the end, after a micro-batch of no time"
    passes(made.progress, seconds=1000)
    made.progress.report(1, 8)
    made.exchange.look_for_group_early(1)
    assert len(rounds) == 1, "the next look would come 900 seconds too late"


@pytest.mark.swarm
@pytest.mark.parametrize("is_known", [False, True])
def test_a_peer_that_finds_no_state_of_a_newer_epoch_trains_on_and_asks_again_later(is_known, optimizer_with, node):
    """The other one reports it, and offers no state; whether or not it has averaged with this one before."""
    theirs = DHT(initial_peers=[str(address) for address in node.get_visible_maddrs()], start=True)
    settings = {"target_batch_size": DEMO.swarm.target_batch_size, "matchmaking_seconds": 50.0}
    prefix = f"overtaken_{is_known}"
    own, other = (Progress(dht=dht, prefix=prefix, **settings) for dht in (node, theirs))
    other.start()
    try:
        other.report(9, 4)
        until(lambda: own.look_around() == (9, 1))
        made = optimizer_with(run_id=prefix, matchmaking_seconds=50.0)  # so long that nobody is taken for dead
        if is_known:
            made.progress.peers.brought(theirs.peer_id.to_bytes(), 4.0)
        downloads = []
        made.catching_up.load_state_from_peers = lambda *_, **__: downloads.append(made.alignment.behind) or False
        for _ in range(3):
            made.step()
        assert downloads == [True] and made.gradients.samples == 12 and made.local_epoch == 0, "no sample is lost"
        assert made.alignment.drifted  # it is no witness that the run is no further
        made.progress.peers._doubted_until = 0.0
        made.progress._global = made.progress._combine(made.progress._look())
        made.step()
        assert len(downloads) == 2
    finally:
        other.shutdown()
        theirs.shutdown()


@pytest.mark.swarm
def test_parameters_are_averaged_as_often_as_the_recipe_says(optimizer_with):
    made, due = optimizer_with(average_state_every=3), []
    made.updates.begin = lambda epoch, *, average_parameters, expected_peers: due.append(average_parameters)
    made.progress._global = replace(made.progress._global, num_peers=2)
    for epoch in range(7):
        made._begin_update(epoch)
    assert due == [False, False, True, False, False, True, False]
    made.exchange.parameters_wanted_at = 8
    made._begin_update(7)
    made.progress._global = replace(made.progress._global, num_peers=1)
    made._begin_update(8)
    assert due[7:] == [True, False], "for a newcomer's sake, and not without others"


@pytest.mark.swarm
def test_codecs_are_those_that_the_recipe_names(optimizer_with):
    plain = optimizer_with()
    assert isinstance(plain.gradients.settings.compression.greater_equal, BlockwiseCodec)
    assert isinstance(plain.parameters.settings.compression, Float16Compression)
    made = optimizer_with(gradient_codec="uniform8", state_bits=8, compression_threshold=777)
    for averager in (made.gradients, made.parameters):
        codec = averager.settings.compression
        assert codec.threshold == 777 and isinstance(codec.greater_equal, Uniform8BitQuantization)
    assert made.parameters._packed(None)[2][0][1] == 2 * 300 * 300  # newcomers get 16 bit


@pytest.mark.swarm
def test_powersgd_has_the_rank_that_the_recipe_says(optimizer_with):
    method = optimizer_with(powersgd_rank=3).gradients.method
    assert isinstance(method, PowerSgd) and method.rank == 3
    assert not isinstance(optimizer_with().gradients.method, PowerSgd)


@pytest.mark.swarm
def test_the_recipe_chooses_the_strategy(optimizer_with):
    local = [{"mode": mode, "inner_batch_size": 8} for mode in ("diloco", "sparse")]
    overlapped = [{**swarm, "delay_outer_step": True} for swarm in local]
    kinds = [type(optimizer_with(**swarm).strategy) for swarm in ({}, {"mode": "delayed"}, *local, *overlapped)]
    assert kinds == [Awaited, Delayed, LocalUpdates, SparseUpdates, OverlappedUpdates, OverlappedSparse]
