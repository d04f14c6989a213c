"""The benchmark's peers of one process: they average as the trainer does; a reducer among them that lies is caught."""

from __future__ import annotations

import pytest
import torch

from benchmarks.attacks.in_process import Peers
from training.recipe import load_recipe
from training.swarm.defence.clipping import centered_clip, clipping_of_gradients
from training.swarm.engine import engine

engine.prepare()
COUNT, LIAR = 4, 3
SHAPES = ((60, 50), (700,))
MOST_UPDATES = 40


def swarm_with(share: float):
    swarm = load_recipe("demo").swarm
    return swarm.model_copy(update={"aggregation": "centered-clip", "audit_share": share})


@pytest.fixture
def peers_of():
    made = []

    def make(share=0.0, lie=lambda average, parts, place: average, **given):
        values = sum(torch.Size(shape).numel() for shape in SHAPES)
        settings = {"values": values, "smallest": 1 << 20, "update_seconds": 60.0, "seed": 0, "hides": None}
        settings |= {"audits": share > 0, "lie": lie, **given}
        made.append(Peers(COUNT, 1, swarm_with(share), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tensors_of(number: int, times: int = 1) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(number)
    return [1 + torch.randn(shape, generator=dice) for shape in SHAPES * times]


def average_once(peers, times: int = 1) -> dict[int, list[torch.Tensor]]:
    tensors = {number: tensors_of(number, times) for number in peers.group()}
    peers.average(tensors, 8.0)
    return tensors


def test_they_average_by_centered_clip_part_by_part(peers_of):
    """The second tensor is one part, since it is shorter than the shortest part."""
    averaged = average_once(peers_of())
    sent = [tensors_of(number)[1].half().float() for number in range(COUNT)]
    expected = centered_clip(sent, [8.0] * COUNT, clipping_of_gradients(swarm_with(0.0)))
    for tensors in averaged.values():
        assert torch.allclose(tensors[1], expected, atol=2e-2)


def test_a_lie_reaches_all_and_its_reducer_is_soon_left_out(peers_of):
    peers = peers_of(share=0.5, lie=lambda average, parts, place: average + 100.0)
    assert peers.group() == list(range(COUNT))
    wrong = average_once(peers)
    assert all((tensors[0].max() > 50) or (tensors[1].max() > 50) for tensors in wrong.values())
    for _ in range(MOST_UPDATES):
        if LIAR not in peers.group():
            break
        average_once(peers)
    assert peers.group() == [0, 1, 2]
    assert all(tensor.abs().max() < 50 for tensors in average_once(peers).values() for tensor in tensors)


def test_a_reducer_that_lies_and_hides_it_every_other_time_is_soon_left_out(peers_of):
    """With so many tensors, it averages some in each update, and is checked in each."""
    updates = []
    lies = lambda: len(updates) % 2 == 0  # noqa: E731
    peers = peers_of(share=0.5, lie=lambda average, parts, place: average + 100.0 * lies(), hides=lies)
    while len(updates) < MOST_UPDATES and LIAR in peers.group():
        average_once(peers, times=4)
        updates.append(None)
    assert peers.group() == [0, 1, 2] and len(updates) > 1


def test_nobody_is_left_out_who_does_not_lie(peers_of):
    peers = peers_of(share=0.5)
    for _ in range(5):
        average_once(peers)
    assert peers.group() == list(range(COUNT))
    assert all(not one.peers.take_news() for one in peers.members)
