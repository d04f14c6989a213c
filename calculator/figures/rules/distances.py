"""Simulated distances of one peer, by which its weights move between two exchanges, and their sparse exchange.

Each inner step moves a value by a small drift, which is the same in each step, and by noise, which is new in each step
and larger for some values than for others. After H steps the drift has grown H times, the noise by the root of H. The
unit is the noise of an ordinary value between two exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import add, sub
from random import Random

from calculator.swarm.sparse import exchanged, kept_of

VALUES, EXCHANGES = 256, 40
"""Values of the simulated peer, and exchanges in which it takes part."""
DRIFT = 0.05
"""Drift of a step over the noise, both of ordinary values."""
SEED = 2023


@lru_cache(maxsize=16)
def distances(inner: int) -> tuple[tuple[float, ...], ...]:
    """The distance of each value before each exchange, after `inner` steps."""
    random = Random(SEED)
    drift = [DRIFT * math.sqrt(inner) * random.gauss(0, 1) for _ in range(VALUES)]
    noise = [math.exp(random.gauss(0, 1)) for _ in range(VALUES)]
    return tuple(
        tuple([still + shaken * random.gauss(0, 1) for still, shaken in zip(drift, noise, strict=True)])
        for _ in range(EXCHANGES)
    )


@lru_cache(maxsize=16)
def moved(inner: int) -> tuple[tuple[float, ...], ...]:
    """The sum of all distances after each exchange: what the common weights should have moved by."""
    return tuple(accumulate(distances(inner), lambda one, other: tuple(map(add, one, other))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What one peer has sent and kept, after each exchange."""

    sent: tuple[tuple[float, ...], ...]
    """Sum of all that was sent so far, by values."""
    unsent: tuple[tuple[float, ...], ...]
    """What the peer keeps for later, by values."""
    carried: tuple[float, ...]
    """Size of what the peer keeps, relative to the distance that it has just exchanged."""
    missing: tuple[float, ...]
    """Size of what has not arrived, relative to what the weights should have moved by."""


@lru_cache(maxsize=256)
def course(kept: int, bits: int, inner: int, decay: float) -> Course:
    """Exchanges all distances sparsely.

    Args:
        kept: Values that are sent of each 4096.
        bits: Bits of a sent value.
        inner: Steps between two exchanges.
        decay: Factor by which what was not sent counts less in each later exchange; 0: it is dropped.
    """
    total, rest = [0.0] * VALUES, [0.0] * VALUES
    sums, rests = [], []
    for one in distances(inner):
        sent, rest = exchanged(one, rest, kept=kept_of(VALUES, kept), bits=bits, decay=decay)
        for place, value in sent.items():
            total[place] += value
        sums.append(tuple(total))
        rests.append(tuple(rest))
    return Course(
        sent=tuple(sums),
        unsent=tuple(rests),
        carried=tuple([size(own) / size(one) for own, one in zip(rests, distances(inner), strict=True)]),
        missing=tuple(
            [size(tuple(map(sub, all_, own))) / size(all_) for all_, own in zip(moved(inner), sums, strict=True)]
        ),
    )


def size(values: Sequence[float]) -> float:
    """Euclidean length."""
    return math.hypot(*values)
