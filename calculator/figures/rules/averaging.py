"""Ways to average gradients: weighted mean, median, and CenteredClip. Vectors are tuples of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

Vector = tuple[float, ...]


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[float] | None = None) -> Vector:
    """The weighted mean; if the weights are numbers of samples, it is the gradient of the large batch.

    Source: Diskin et al. 2021, arXiv:2106.10207, section 3.1.

    >>> weighted_mean([(0.0, 4.0), (4.0, 0.0)], [1, 3])
    (3.0, 1.0)
    """
    weights = [1.0] * len(vectors) if weights is None else weights
    total = sum(weights)
    return tuple(
        sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
        for values in zip(*vectors, strict=True)
    )


def median(vectors: Sequence[Vector]) -> Vector:
    """The median of each coordinate separately.

    Source: Yin et al. 2018, arXiv:1803.01498.

    >>> median([(0, 0), (1, 9), (100, 1)])
    (1, 1)
    """
    middles = []
    for values in zip(*vectors, strict=True):
        ordered = sorted(values)
        middle = len(ordered) // 2
        middles.append(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)
    return tuple(middles)


def centered_clip(vectors: Sequence[Vector], start: Vector, radius: float, iterations: int) -> list[Vector]:
    """All estimates of CenteredClip, including the start: each is the last plus the mean of the clipped differences.

    v <- v + 1/n sum_i (x_i - v) min(1, tau / |x_i - v|)

    Args:
        vectors: x_i, the received gradients.
        start: v, a first estimate: the result of the previous step.
        radius: tau, the largest pull of one gradient.
        iterations: Number of moves.

    Source: Karimireddy et al. 2021, arXiv:2012.10333 (centered clipping); without a trusted server Gorbunov et al.
    2022, arXiv:2106.11257.

    >>> centered_clip([(0.0, 0.0), (3.0, 0.0)], (0.0, 0.0), 1.0, 1)
    [(0.0, 0.0), (0.5, 0.0)]
    """
    guesses = [start]
    for _ in range(iterations):
        guess = guesses[-1]
        moved = [0.0] * len(guess)
        for vector in vectors:
            away = [value - own for value, own in zip(vector, guess, strict=True)]
            length = math.hypot(*away)
            # A gradient at the estimate itself has no direction.
            scale = min(1.0, radius / length) if length else 0.0
            moved = [move + scale * part for move, part in zip(moved, away, strict=True)]
        guesses.append(tuple(own + move / len(vectors) for own, move in zip(guess, moved, strict=True)))
    return guesses


def clip_to_most(vectors: Sequence[Vector], weights: Sequence[float], iterations: int = 5) -> Vector:
    """CenteredClip as this project's peers compute it: nobody sets a radius or a first estimate.

    The first estimate is the vector that is nearest to most others. The radius is the distance from the estimate within
    which more than half of the vectors lie. A weight counts at most as much as the median weight.

    Args:
        vectors: The received gradients.
        weights: Samples that each sender claims, above 0.
        iterations: Number of moves.

    Source: training/swarm/defence/clipping.py, which computes the same for tensors.

    >>> clip_to_most([(1.0,), (2.0,), (3.0,), (1e6,), (1e6,)], [8, 8, 8, 8, 1e9], iterations=1)
    (2.4,)
    """
    usual = sorted(weights)[(len(weights) - 1) // 2]
    counted = [min(weight, usual) for weight in weights]
    total, most = sum(counted), len(vectors) // 2
    apart = [[0.0] * len(vectors) for _ in vectors]
    for row, own in enumerate(vectors):
        for column in range(row):
            apart[row][column] = apart[column][row] = math.dist(own, vectors[column])
    guess = min(zip(apart, vectors, strict=True), key=lambda pair: sorted(pair[0])[most])[1]
    for _ in range(iterations):
        far = [math.dist(vector, guess) for vector in vectors]
        radius = sorted(far)[most]
        pulls = [
            weight / total * (radius / length if length > radius else 1.0)
            for weight, length in zip(counted, far, strict=True)
        ]
        stays = 1 - sum(pulls)
        guess = tuple(
            stays * own + sum(map(mul, pulls, values))
            for own, values in zip(guess, zip(*vectors, strict=True), strict=True)
        )
    return guess
