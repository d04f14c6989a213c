"""PowerSGD: where it starts, and what it keeps if a round fails; test_averaging.py has two peers that use it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from tests.training.swarm.played import averaged
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.epoch.powersgd import PowerSgd
from training.swarm.peers.groups import Delay


@dataclass
class Group:
    """All-reduces of a group, as one of its peers sees them."""

    reduce: Callable
    weight: float = 1.0

    @property
    def contribution(self):
        return SimpleNamespace(weight=self.weight)

    async def __call__(self, tensors, infos=None, *, phase=b""):
        return await self.reduce(tensors, infos, phase)


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
        wait_for_result(method.average(gradients, None, Group(all_reduce)))
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

    gradients = [torch.randn(shape) for shape in SHAPES]
    report = wait_for_result(PowerSgd(SHAPES, 2).average(gradients, None, Group(all_reduce)))
    assert report.spoiled_by == {"eve": 1.0, "bob": 1.0}
    assert report.delays == {"bob": Delay(3.0, 0.25), "alan": Delay(0.5, 0.25)}


async def alone(tensors, infos, phase):
    return averaged().report


def of_rank_two(seed=0):
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(64, 2, generator=dice) @ torch.randn(2, 64, generator=dice)


@pytest.mark.parametrize("length", [1e-3, 1e-6, 1e-9])
def test_small_gradients_are_averaged_like_large_ones(length):
    """hivemind takes columns shorter than 1e-8 for zeros; P becomes as short as the square of the gradient."""
    method, wanted = PowerSgd(SHAPES[:1], 2), of_rank_two()
    wanted *= length / wanted.norm()
    for _ in range(4):
        got = wanted.clone()
        wait_for_result(method.average([got], None, Group(alone)))
    assert (got - wanted).norm() < 1e-3 * length


def test_gradients_that_were_zero_once_are_averaged_afterwards():
    """As those of the first matrix of a LoRA, whose second one begins at zero."""
    method, wanted = PowerSgd(SHAPES[:1], 2), of_rank_two()
    for gradient in (torch.zeros(64, 64), wanted):
        got = gradient.clone()
        wait_for_result(method.average([got], None, Group(alone)))
    assert (got - wanted).norm() < 1e-3 * wanted.norm()


def test_who_takes_the_average_without_a_share_in_it_takes_nothing_back_later():
    """Its next gradient is averaged as it is; it had taken the average for something that it had sent too much."""
    methods, waiting = {"ada": PowerSgd(SHAPES[:1], 2), "bob": PowerSgd(SHAPES[:1], 2)}, []

    async def average(weights):
        gradients = {name: of_rank_two() if weight else torch.zeros(64, 64) for name, weight in weights.items()}

        async def mean(tensors, infos, phase):
            waiting.append((weights[asyncio.current_task().get_name()], tensors, come := asyncio.Event()))
            if len(waiting) == len(weights):
                for same in zip(*(sent for _, sent, _ in waiting), strict=True):
                    total = sum(weight * one for (weight, _, _), one in zip(waiting, same, strict=True))
                    for one in same:
                        one.copy_(total / sum(weights.values()))
                for _, _, there in waiting:
                    there.set()
                waiting.clear()
            await come.wait()
            return averaged().report

        async with asyncio.TaskGroup() as tasks:
            for name, weight in weights.items():
                work = methods[name].average([gradients[name]], None, Group(mean, weight))
                tasks.create_task(work, name=name)
        return gradients

    for weights in ({"ada": 8.0, "bob": 0.0}, {"ada": 8.0, "bob": 8.0}):
        got = asyncio.run(average(weights))
        for gradient in got.values():
            assert (gradient - of_rank_two()).norm() < 1e-3 * gradient.norm()


@pytest.mark.parametrize("rank", [2, 4])
def test_gradients_of_a_lower_rank_are_averaged_exactly(rank):
    """hivemind makes directions of rounding errors, and what they have in common with the others counts twice."""
    dice = torch.Generator().manual_seed(1)
    method, wanted = PowerSgd(SHAPES[:1], 3 * rank // 2), torch.zeros(64, 64)
    for _ in range(rank - 1):
        wanted += torch.randn(64, 1, generator=dice) @ torch.randn(1, 64, generator=dice)
    for _ in range(5):
        got = wanted.clone()
        wait_for_result(method.average([got], None, Group(alone)))
        assert (got - wanted).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize("sent", [3e38, 1e30])
def test_one_huge_average_does_not_spoil_all_later_ones(sent):
    """A hostile peer's; once it has been banned, the others go on."""
    method, wanted = PowerSgd(SHAPES[:1], 2), of_rank_two()

    async def spoilt(tensors, infos, phase):
        if phase == b"Q":
            tensors[0].fill_(sent)
        return averaged().report

    for all_reduce in (alone, spoilt, *[alone] * 20):
        got = wanted.clone()
        wait_for_result(method.average([got], None, Group(all_reduce)))
    assert (got - wanted).norm() < 1e-3 * wanted.norm()
