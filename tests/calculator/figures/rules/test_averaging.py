"""Means, medians and CenteredClip beside NumPy in double precision, and what each promises."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy
import pytest

from calculator.browser import figure
from calculator.figures.outliers import HONEST, REACH, honest_gradients, hostile_gradients
from calculator.figures.rules.averaging import centered_clip, median, weighted_mean


def clip_reference(vectors: numpy.ndarray, start: numpy.ndarray, radius: float, iterations: int) -> numpy.ndarray:
    """Centered clipping of Karimireddy et al. 2021, written with arrays."""
    guess = start.astype(numpy.float64)
    for _ in range(iterations):
        away = vectors - guess
        lengths = numpy.linalg.norm(away, axis=1, keepdims=True)
        guess = guess + (away * numpy.minimum(1, radius / numpy.where(lengths == 0, numpy.inf, lengths))).mean(axis=0)
    return guess


@pytest.mark.parametrize("dimensions", [1, 2, 17])
@pytest.mark.parametrize("radius, iterations", [(0.1, 1), (1, 5), (3.5, 50), (1e9, 1)])
def test_centered_clip_equals_the_array_version(dimensions, radius, iterations):
    random = numpy.random.default_rng(7)
    vectors = random.standard_t(2, (23, dimensions)) * 5
    vectors[0] = vectors[1] = 0
    start = numpy.zeros(dimensions)
    path = centered_clip([tuple(row) for row in vectors.tolist()], tuple(start.tolist()), radius, iterations)
    assert len(path) == iterations + 1
    numpy.testing.assert_allclose(path[-1], clip_reference(vectors, start, radius, iterations), rtol=1e-12, atol=1e-12)


def test_no_gradient_pulls_farther_than_tau_over_n():
    honest = honest_gradients()
    for far in (1e2, 1e6, 1e12):
        still, pulled = (centered_clip([*honest, vector], (2.0, 1.0), 2.0, 1)[1] for vector in ((2.0, 1.0), (far, 1.0)))
        assert math.dist(still, pulled) == pytest.approx(2.0 / 11)


def test_with_a_large_radius_it_is_the_mean():
    vectors = honest_gradients()
    assert centered_clip(vectors, (0.0, 0.0), 1e9, 1)[1] == pytest.approx(weighted_mean(vectors))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_median_equals_numpy(count):
    vectors = numpy.random.default_rng(count).normal(size=(count, 3))
    assert median([tuple(row) for row in vectors.tolist()]) == pytest.approx(numpy.median(vectors, axis=0).tolist())


def test_weighted_accumulation_is_the_gradient_of_the_large_batch():
    """Least squares on 257 samples, shared out very unevenly: each peer's mean gradient, weighted by its samples."""
    random = numpy.random.default_rng(3)
    inputs, targets, weights = random.normal(size=(257, 6)), random.normal(size=257), random.normal(size=6)

    def mean_gradient(rows: slice) -> tuple[float, ...]:
        wrong = inputs[rows] @ weights - targets[rows]
        return tuple((2 * inputs[rows].T @ wrong / len(wrong)).tolist())

    ends = [0, 1, 4, 200, 257]
    shares = [slice(first, last) for first, last in pairwise(ends)]
    together = weighted_mean([mean_gradient(share) for share in shares], [share.stop - share.start for share in shares])
    assert together == pytest.approx(mean_gradient(slice(0, 257)), rel=1e-12)
    unweighted = weighted_mean([mean_gradient(share) for share in shares])
    assert unweighted != pytest.approx(mean_gradient(slice(0, 257)), rel=1e-2)


@pytest.mark.parametrize("hostile", range(5))
def test_the_figure_states_the_distances(hostile):
    places = {
        f"{axis}{number}": str(value)
        for number in range(1, 5)
        for axis, value in zip("xy", (-REACH, number), strict=True)
    }
    answer = json.loads(figure(json.dumps({"name": "outliers", "values": {"hostile": str(hostile), **places}})))
    points = numpy.array([*honest_gradients(), *((-REACH, number) for number in range(1, hostile + 1))], dtype=float)
    truth = points[:HONEST].mean(axis=0)
    clipped = clip_reference(points, numpy.array([2.0, 1.0]), 2, 8)
    expected = [points.mean(axis=0), numpy.median(points, axis=0), clipped]
    assert [row[3] for row in answer["rows"][1:4]] == [f"{numpy.linalg.norm(point - truth):.2f}" for point in expected]
    assert len(answer["handles"]) == hostile == len(answer["rows"]) - 4
    assert hostile_gradients({"hostile": 0}) == ()
