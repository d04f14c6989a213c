"""CenteredClip beside the figure of the site's security page, and beside byzfl; what a minority can do to it."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calculator.figures.rules import averaging
from training.swarm.defence.clipping import Clipping, centered_clip

BYZFL = json.loads((Path(__file__).parent / "byzfl.json").read_text(encoding="utf-8"))
"""What byzfl 0.0.11 (PyPI) makes of the same vectors; by `benchmarks/attacks/byzantine.py FILE`."""
ITERATIONS = 5
CLIPPING = Clipping(radius=1.0, iterations=ITERATIONS, weight_over_median=2.0)


def gradients(count, values=200, *, seed=0, scale=1.0):
    """Gradients of honest peers: a common signal and as much noise."""
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randn(values, generator=generator)
    return [scale * (signal + torch.randn(values, generator=generator)) for _ in range(count)]


@pytest.mark.parametrize("count, hostile", [(1, 0), (2, 0), (3, 1), (12, 5), (25, 5)])
def test_the_sites_clipping_is_the_trainers(count, hostile):
    """`averaging.clip_to_most`, which the site's figure of a poisoned run computes with."""
    vectors = [*gradients(count - hostile), *(-5 * one for one in gradients(hostile, seed=1))]
    weights = [8.0 + number for number in range(count - hostile)] + [1e9] * hostile
    expected = centered_clip(vectors, weights, Clipping(iterations=ITERATIONS, weight_over_median=1.0))
    found = averaging.clip_to_most([tuple(one.tolist()) for one in vectors], weights, ITERATIONS)
    assert found == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)


def majority_distance(point, vectors):
    """The distance within which more than half of the vectors lie."""
    return sorted(numpy.linalg.norm(vectors - point, axis=1))[len(vectors) // 2]


def by_the_figure(vectors, counts, radius=1.0):
    """The figure's CenteredClip in plain numbers; a vector of weight 3 is there three times."""
    vectors = numpy.array([vector.tolist() for vector in vectors])
    guess = min(vectors, key=lambda vector: majority_distance(vector, vectors))
    repeated = [tuple(vector) for vector, count in zip(vectors, counts, strict=True) for _ in range(count)]
    for _ in range(ITERATIONS):
        reach = radius * majority_distance(guess, vectors)
        guess = numpy.array(averaging.centered_clip(repeated, tuple(guess), reach, 1)[-1])
    return guess


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("counts", [[1] * 9, [1, 2, 3, 4, 1, 2, 3, 1, 2]])
def test_it_is_the_centered_clip_of_the_sites_figure(radius, counts):
    vectors = gradients(9, 30)
    vectors[4] = -10 * vectors[4]
    ours = centered_clip(vectors, counts, Clipping(radius=radius, iterations=ITERATIONS))
    numpy.testing.assert_allclose(ours, by_the_figure(vectors, counts, radius), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", BYZFL["cases"], ids=lambda case: case["attack"])
def test_byzfl_makes_the_same_of_its_own_attacks(case):
    """Its attacks on 11 honest vectors by 4 hostile ones, and its CenteredClipping from the same first estimate."""
    vectors = [torch.tensor(vector) for vector in (*BYZFL["honest"], *case["hostile"])]
    ours = centered_clip(vectors, [1.0] * len(vectors), Clipping(radius=1.0, iterations=len(case["radii"])))
    numpy.testing.assert_allclose(ours, case["estimate"], rtol=1e-4, atol=1e-5)
    honest = numpy.array(BYZFL["honest"]).mean(axis=0)
    assert numpy.linalg.norm(ours - honest) < numpy.linalg.norm(numpy.array(BYZFL["honest"]) - honest, axis=1).max()


@pytest.mark.parametrize("count", [1, 2])
def test_of_one_or_two_it_is_the_weighted_mean(count):
    """Nobody can know which of two is hostile."""
    vectors, weights = gradients(count), [8.0, 16.0][:count]
    mean = sum(weight * vector for weight, vector in zip(weights, vectors, strict=True)) / sum(weights)
    torch.testing.assert_close(centered_clip(vectors, weights, CLIPPING), mean)


def test_equal_vectors_stay_as_they_are():
    vector = gradients(1)[0]
    torch.testing.assert_close(
        centered_clip([vector.clone() for _ in range(7)], [1, 2, 3, 4, 5, 6, 7], CLIPPING), vector
    )


def test_weights_that_differ_little_are_averaged_exactly():
    """As in a round of parameters: in single precision, distances of a millionth of the size would be noise."""
    common = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 100
    vectors = [common + 1e-3 * noise for noise in gradients(8, 5000)]
    mean = torch.stack(vectors).double().mean(0).float()
    spread = max((vector - mean).norm() for vector in vectors)
    assert (centered_clip(vectors, [1.0] * 8, CLIPPING) - mean).norm() < 0.1 * spread


def test_a_majority_that_is_equal_is_not_moved_at_all():
    """As in a round of parameters, where honest peers have the same weights: 0.5 everywhere, weight 1e9."""
    honest, hostile = gradients(1)[0], torch.full((200,), 0.5)
    average = centered_clip([hostile, honest, honest.clone(), honest.clone()], [1e9, 1, 1, 1], CLIPPING)
    torch.testing.assert_close(average, honest)


def test_without_a_hostile_peer_it_is_as_near_to_the_signal_as_the_mean():
    vectors = gradients(16, 4096)
    mean = torch.stack(vectors).mean(0)
    alone = (vectors[0] - mean).norm()
    assert (centered_clip(vectors, [1.0] * 16, CLIPPING) - mean).norm() < 0.02 * alone


def test_a_weight_counts_up_to_a_multiple_of_the_median():
    assert CLIPPING.counted([1.0, 2.0, 3.0, 1e9, 0.0]) == [1.0, 2.0, 3.0, 4.0, 0.0]
    assert Clipping(radius=1, iterations=1, most_weight=1.0).counted([1e-6, 1e-6, 1.0, 1e9]) == [1e-6, 1e-6, 1.0, 1.0]
    assert CLIPPING.counted([0.0, 0.0]) == [0.0, 0.0]


def test_nobody_gains_by_weight():
    vectors = [*gradients(6), -1000 * gradients(1)[0]]
    heavy = centered_clip(vectors, [8.0] * 6 + [1e9], CLIPPING)
    clamped = centered_clip(vectors, [8.0] * 6 + [16.0], CLIPPING)
    torch.testing.assert_close(heavy, clamped)


NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    honest=st.integers(2, 8).flatmap(lambda n: st.lists(st.floats(-10, 10, width=32), min_size=3 * n, max_size=3 * n)),
    hostile=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=7),
)
@example(honest=[0.0] * 6, hostile=[(3e38, 3e38, 3e38)])
@settings(max_examples=200, deadline=None)
def test_no_minority_carries_it_far_away(honest, hostile):
    """Not even with finite vectors of any size, which know the others'.

    Let D be the honest vectors' largest distance from each other. The first estimate is within 2 D of all of them. A
    move takes it at most 1.5 times as far away, since the hostile ones have less than half of the weight.
    """
    honest = torch.tensor(honest).view(-1, 3)
    hostile = torch.tensor(hostile[: len(honest) - 1], dtype=torch.float32)
    average = centered_clip([*honest, *hostile], [1.0] * (len(honest) + len(hostile)), CLIPPING)
    far, apart = torch.cdist(average[None].double(), honest.double()).max(), torch.cdist(honest, honest).max()
    assert far <= 2 * 1.5**ITERATIONS * apart + 1e-4 * honest.abs().max() + 1e-6


@pytest.mark.parametrize("factor", [-1.0, -1000.0, -1e30, 0.0])
def test_four_of_sixteen_cannot_steer_it(factor):
    honest = gradients(12, 4096)
    mean = torch.stack(honest).mean(0)
    hostile = [factor * mean] * 4
    clipped = centered_clip([*honest, *hostile], [1.0] * 16, CLIPPING)
    assert torch.cosine_similarity(clipped, mean, dim=0) > 0.93
    assert (clipped - mean).norm() < 0.4 * mean.norm()
    assert math.isfinite(clipped.norm())
