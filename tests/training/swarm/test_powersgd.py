"""PowerSGD: where it starts, and what it keeps if a round fails; test_averaging.py has two peers that use it."""

import pytest
import torch
from played import averaged

from training.swarm.coroutine import wait_for_result
from training.swarm.groups import Delay
from training.swarm.powersgd import PowerSgd

SHAPES = [torch.Size(shape) for shape in ((64, 64), (64,), (128, 96))]


def test_all_peers_begin_with_the_same_directions():
    methods = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        methods.append(PowerSgd(SHAPES, 2))
    first, second = methods
    assert len(first.q) == 2
    assert all(torch.equal(a, b) for a, b in zip(first.q, second.q, strict=True))


@pytest.mark.parametrize("phase", PowerSgd.phases)
def test_a_round_that_fails_leaves_everything_as_it_was(phase):
    """hivemind's has then added the gradient to what it keeps, and adds it again in the next try."""
    method = PowerSgd(SHAPES, 2)
    for kept in method.kept:
        kept.copy_(torch.randn(kept.shape))
    gradients = [torch.randn(shape) for shape in SHAPES]
    before = [tensor.clone() for tensor in (*method.kept, *method.q, *gradients)]
    asked = []

    async def all_reduce(tensors, infos, phase):
        asked.append(phase)
        if phase == fails_in:
            raise ConnectionError

    fails_in = phase
    with pytest.raises(ConnectionError):
        wait_for_result(method.average(gradients, None, all_reduce))
    assert asked[-1] == phase
    after = (*method.kept, *method.q, *gradients)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(after, before, strict=True))


def test_who_spoils_or_delays_one_of_both_all_reduces_is_known_afterwards():
    """Else nobody would ever be left out of the groups of a run that averages so."""
    reports = {
        b"P": {"spoiled_by": {"eve": 1.0, "bob": 0.75}, "delays": {"bob": Delay(2.0, 0.5)}},
        b"Q": {"spoiled_by": {"bob": 1.0}, "delays": {"bob": Delay(1.0, 0.25), "alan": Delay(0.5, 0.25)}},
    }

    async def all_reduce(tensors, infos, phase):
        return averaged(**reports[phase]).report

    report = wait_for_result(PowerSgd(SHAPES, 2).average([torch.randn(shape) for shape in SHAPES], None, all_reduce))
    assert report.spoiled_by == {"eve": 1.0, "bob": 1.0}
    assert report.delays == {"bob": Delay(3.0, 0.25), "alan": Delay(0.5, 0.25)}
