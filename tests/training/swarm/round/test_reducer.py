"""What a reducer makes of its senders' parts: the clipping one; the others are in test_allreduce.py."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from hivemind.compression import NoCompression

from training.recipe import load_recipe
from training.swarm.defence.clipping import Clipping, centered_clip
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.parts import LARGEST_HELD_BYTES, shortened_part_bytes
from training.swarm.optimizer import _averager_settings
from training.swarm.round.allreduce import Travel
from training.swarm.round.reducer import Reducer, WeightedMean

CLIPPING = Clipping(radius=1.0, iterations=5, weight_over_median=2.0)
SHAPES = (torch.Size([64]), torch.Size([32]))


def part_of(sender: int, number: int) -> torch.Tensor:
    return torch.randn(SHAPES[number], generator=torch.Generator().manual_seed(10 * sender + number)) + 1


def reduce(senders, *, weights=None, part=part_of, clipping=CLIPPING):
    """What each sender has with the answers, in the order of senders, and the reducer; parts come in a random order."""
    made = []

    async def send(sender):
        answers = []
        for number in range(len(SHAPES)):
            await asyncio.sleep(random.random() / 100)
            weight = 1.0 if weights is None else weights[sender]
            sent = part(sender, number)
            answers.append(part_of(sender, number) + await made[0].take(sender, sent, weight))
        return answers

    async def all_send():
        made.append(Reducer([shape.numel() for shape in SHAPES], range(senders), clipping))
        return await asyncio.gather(*map(send, range(senders)))

    return wait_for_result(all_send()), made[0]


def test_all_senders_get_the_clipped_average_of_each_part_whoever_is_first():
    for _ in range(3):
        answers, made = reduce(7, weights=[1.0, 2.0, 3.0, 4.0, 2.0, 2.0, 2.0])
        for number in range(len(SHAPES)):
            expected = centered_clip([part_of(n, number) for n in range(7)], [1, 2, 3, 4, 2, 2, 2], CLIPPING)
            assert all(torch.allclose(answer[number], expected, atol=1e-6) for answer in answers)
        assert made.is_done and not made.refused and not made.has_overflowed


@pytest.mark.parametrize("fault", ["not a number", "infinite", "shape", "too large for 32 bits"])
def test_a_part_that_is_not_sound_is_left_out_and_its_sender_is_named(fault):
    def faulty(sender, number):
        part = part_of(sender, number)
        if sender == 2 and fault == "shape":
            return part[:1]
        if sender == 2:
            part = part.double()
            part[3] = {"not a number": torch.nan, "infinite": torch.inf}.get(fault, 1e39)
        return part

    answers, made = reduce(5, part=faulty)
    sound = centered_clip([part_of(n, 0) for n in (0, 1, 3, 4)], [1.0] * 4, CLIPPING)
    assert all(torch.allclose(answers[n][0], sound, atol=1e-6) for n in (0, 1, 3, 4))
    assert made.refused == {2: 2}


def test_a_mean_leaves_out_a_part_of_a_wrong_shape_too():
    """Added up, a part of one number would count for all of a part's."""

    async def average():
        made = Reducer([2], range(3), WeightedMean())
        parts = [torch.tensor([1.0, 2.0]), torch.tensor([9.0]), torch.tensor([3.0, 4.0])]
        answers = await asyncio.gather(*(made.take(n, part, 1.0) for n, part in enumerate(parts)))
        return answers[0].tolist(), dict(made.refused)

    assert wait_for_result(average()) == ([1.0, 1.0], {1: 1})


def test_in_a_mean_no_weight_counts_as_more_than_one_peer_can_have():
    mean = WeightedMean(most_weight=512.0)

    async def average():
        made = Reducer([1], range(3), mean)
        parts = [(1.0, 128.0), (2.0, 384.0), (9.0, 1e9)]
        coming = (made.take(n, torch.tensor([value]), weight) for n, (value, weight) in enumerate(parts))
        answers = await asyncio.gather(*coming)
        return 1.0 + answers[0].item(), mean.counted([128.0, 384.0, 1e9])

    found, counted = wait_for_result(average())
    assert counted == [128.0, 384.0, 512.0]
    assert found == pytest.approx((128 + 2 * 384 + 9 * 512) / 1024)


def test_a_peer_of_a_run_averages_with_such_weights():
    run = load_recipe("demo")
    settings = _averager_settings(run, "demo", client_mode=False)
    assert settings.reduction.most_weight == 2 * run.swarm.target_batch_size


def test_huge_but_finite_parts_with_huge_weights_spoil_nothing():
    """In a mean, their sum would be infinite."""

    def huge(sender, number):
        return torch.full(SHAPES[number], 3e38) if sender == 0 else part_of(sender, number)

    answers, made = reduce(5, part=huge, weights=[1e300, 1.0, 1.0, 1.0, 1.0])
    assert not made.has_overflowed
    honest = torch.stack([part_of(n, 0) for n in range(1, 5)])
    assert (answers[1][0] - honest.mean(0)).norm() < (honest - honest.mean(0)).norm(dim=1).max()


def test_who_has_no_weight_has_no_say():
    answers, _ = reduce(7, weights=[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    expected = centered_clip([part_of(n, 0) for n in range(3)], [1.0] * 3, CLIPPING)
    torch.testing.assert_close(answers[6][0], expected)


def test_where_nobody_has_any_weight_all_keep_their_own():
    answers, _ = reduce(3, weights=[0.0] * 3)
    assert all(torch.equal(answers[n][0], part_of(n, 0)) for n in range(3))


def test_what_it_holds_does_not_grow_with_the_group():
    for senders in (2, 16, 25, 53, 256):
        values_in_8_bit = shortened_part_bytes(1 << 19, senders)
        assert 4 * values_in_8_bit * senders <= LARGEST_HELD_BYTES < 100e6
    travel = Travel(codec=NoCompression(), part_bytes=1 << 19, reduction=WeightedMean())
    assert travel.part_bytes_among(256) == 1 << 19  # a mean adds the parts up as they come
    assert replace(travel, reduction=CLIPPING).part_bytes_among(256) == shortened_part_bytes(1 << 19, 256)
