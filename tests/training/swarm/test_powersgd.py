"""PowerSGD's averager: its start, and what it keeps when a round fails; test_averaging.py has two peers that use it."""

import hivemind
import pytest
import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException

from training.config import load_recipe
from training.swarm.averaging import SwarmGradientAverager
from training.swarm.coroutine import wait_for_result
from training.swarm.powersgd import SwarmPowerSGDAverager, gradient_averager


@pytest.fixture(scope="module")
def dht():
    node = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    yield node
    node.shutdown()


def averager_of(dht, seed):
    torch.manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in ((64, 64), (64,), (128, 96))]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)
    return SwarmPowerSGDAverager(parameters, 2, dht=dht, prefix="failing", start=False)


@pytest.mark.swarm
def test_all_peers_begin_with_the_same_directions(dht):
    first, second = averager_of(dht, seed=0), averager_of(dht, seed=1)
    assert len(first._qs) == 2
    assert all(torch.equal(a, b) for a, b in zip(first._qs, second._qs, strict=True))


@pytest.mark.swarm
def test_a_round_that_fails_leaves_what_was_kept_as_it_was(dht):
    """hivemind's has then added the gradient to it, and adds it again in the next try."""
    averager = averager_of(dht, seed=0)
    for kept in averager._ms:
        kept.copy_(torch.randn(kept.shape))
    before = [kept.clone() for kept in averager._ms]
    own = averager.serializer.dumps((1.0, AveragingMode.NODE.value, averager.serializer.dumps(0)))
    group = GroupInfo(group_id=b"group", peer_ids=(dht.peer_id,), gathered=(own,))
    with pytest.raises(MatchmakingException):  # it was not started, so there is no network to send to
        wait_for_result(averager._aggregate_with_group(group, min_vector_size=1, weight=1.0))
    assert averager._added
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(averager._ms, before, strict=True))


def test_the_recipe_chooses():
    swarm = load_recipe("dalle-2021").swarm
    assert gradient_averager(swarm.powersgd_rank) is SwarmGradientAverager
    assert gradient_averager(8).func is SwarmPowerSGDAverager and gradient_averager(8).keywords == {"averager_rank": 8}
