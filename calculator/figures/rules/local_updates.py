"""Local updates on a small problem: peers train by themselves, then their weights meet.

Between two exchanges each peer makes H steps of gradient descent on its own data. Then the mean distance from the
common weights to the peers' own moves the common weights, as a gradient would: by an outer step of SGD with Nesterov
momentum. `mode = "diloco"` does the same (training/swarm/epoch/strategies/local_updates.py).

Here a peer's data are a bowl, whose lowest point and steepness differ from those of other peers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from calculator.figures.rules.averaging import Vector, weighted_mean

START: Vector = (-8.0, 6.0)
STEEPNESS = (1.0, 0.25)
"""Second derivatives of the loss of all data together."""
LEARNING_RATE = 0.05
SEED = 11


@dataclass(frozen=True, slots=True)
class Bowl:
    """Loss of one peer's data: half of the steepness times the squared distance from the lowest point, added up."""

    lowest: Vector
    steepness: Vector

    def gradient(self, weights: Vector) -> Vector:
        """Gradient of the loss."""
        return tuple(steep * (own - low) for steep, own, low in zip(self.steepness, weights, self.lowest, strict=True))


def bowls(peers: int, difference: float) -> list[Bowl]:
    """Data of all peers. With a difference of 0 they are alike; the larger it is, the less.

    The mean of the bowls' steepness is `STEEPNESS`, so that the whole problem is always about equally hard.
    """
    random = Random(SEED)
    factors = [
        (math.exp(difference * random.uniform(-1, 1)), math.exp(difference * random.uniform(-1, 1)))
        for _ in range(peers)
    ]
    means = weighted_mean(factors)
    found = []
    for one in factors:
        lowest = tuple(4 * difference * random.uniform(-1, 1) for _ in STEEPNESS)
        steepness = tuple(own * steep / mean for own, steep, mean in zip(one, STEEPNESS, means, strict=True))
        found.append(Bowl(lowest, steepness))
    return found


def best(data: list[Bowl]) -> Vector:
    """Lowest point of the mean of all losses."""
    total = [sum(steep) for steep in zip(*(one.steepness for one in data), strict=True)]
    pulled = zip(*(map(lambda steep, low: steep * low, one.steepness, one.lowest) for one in data), strict=True)
    return tuple(sum(one) / all_ for one, all_ in zip(pulled, total, strict=True))


def loss(data: list[Bowl], weights: Vector) -> float:
    """Mean of all losses, minus that at the lowest point."""
    return _mean_loss(data, weights) - _mean_loss(data, best(data))


def _mean_loss(data: list[Bowl], weights: Vector) -> float:
    losses = (
        0.5 * sum(steep * (own - low) ** 2 for steep, own, low in zip(one.steepness, weights, one.lowest, strict=True))
        for one in data
    )
    return sum(losses) / len(data)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps between two exchanges."""

    paths: tuple[tuple[Vector, ...], ...]
    """Weights of each peer, from the common ones on, after each inner step."""
    met: Vector
    """Common weights after the exchange."""


def train(data: list[Bowl], *, inner: int, exchanges: int, outer_rate: float, momentum: float) -> list[Stretch]:
    """All stretches of a run.

    Args:
        data: Bowls of all peers.
        inner: Steps of each peer between two exchanges.
        exchanges: Number of exchanges.
        outer_rate: Learning rate of the outer step.
        momentum: Its Nesterov momentum.

    Source: Douillard et al. 2023, arXiv:2311.08105 (DiLoCo).
    """
    common, velocity, stretches = START, (0.0,) * len(START), []
    for _ in range(exchanges):
        paths = tuple([_path(one, common, inner) for one in data])
        mean = weighted_mean([tuple(map(lambda old, own: old - own, common, path[-1])) for path in paths])
        # torch.optim.SGD with nesterov=True: v <- m v + g; w <- w - rate (g + m v).
        velocity = tuple(momentum * old + one for old, one in zip(velocity, mean, strict=True))
        common = tuple(
            old - outer_rate * (one + momentum * quick) for old, one, quick in zip(common, mean, velocity, strict=True)
        )
        stretches.append(Stretch(paths, common))
    return stretches


def _path(data: Bowl, weights: Vector, inner: int) -> tuple[Vector, ...]:
    path = [weights]
    for _ in range(inner):
        slope = data.gradient(path[-1])
        path.append(tuple(own - LEARNING_RATE * one for own, one in zip(path[-1], slope, strict=True)))
    return tuple(path)
