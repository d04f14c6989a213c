"""A simulated run that some peers poison: all together learn a small picture, and each average decides who is heard.

The weights are the picture's 64 pixels. An honest peer's gradient leads from the weights to the picture, with the noise
of its own samples; peers send running averages of it (momentum), as this trainer's do with CenteredClip. Hostile peers
know what all honest peers send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add, sub
from random import Random

from calculator.figures.rules.admission import CASES, failed_check
from calculator.figures.rules.averaging import Vector, clip_to_most, weighted_mean

PEERS, UPDATES = 12, 40
LEARNING_RATE, MOMENTUM = 0.15, 0.5
"""Settings of the training. With more momentum, the pixels would swing."""
NOISE = 0.2
"""Standard deviation of a pixel in a peer's gradient."""
SAMPLES = 8
"""Samples that an honest peer computes for an update."""
SEED = 2021
_HEART = ".##..##. ######## ######## ######## .######. ..####.. ...##... ........"
_CROSS = "##....## ###..### .######. ..####.. ..####.. .######. ###..### ##....##"
PICTURE, OTHER_PICTURE = (tuple([float(one == "#") for one in text.replace(" ", "")]) for text in (_HEART, _CROSS))
"""What the honest peers' data show, and what the hostile peers want; a row after the other, eight pixels each."""
PICTURE_SIDE = 8

Average = Callable[[Sequence[Vector], Sequence[float]], Vector]
AVERAGES: dict[str, Average] = {"mean": weighted_mean, "clip": lambda vectors, weights: clip_to_most(vectors, weights)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Poison:
    """What hostile peers do."""

    hostile: int
    """Number of hostile peers."""
    members: int
    """Number of hostile peers that have a ticket."""
    attack: str
    """One of `ATTACKS`."""
    strength: float
    claimed: float
    """Samples that each claims, as a multiple of an honest peer's."""


@dataclass(frozen=True, slots=True)
class Course:
    """A run's weights after each update, and its error: the root of the mean squared distance of a pixel."""

    weights: tuple[Vector, ...]
    errors: tuple[float, ...]


@lru_cache(maxsize=1)
def noise() -> tuple[tuple[Vector, ...], ...]:
    """Noise in each peer's running average at each update."""
    random = Random(SEED)
    still, found = [(0.0,) * len(PICTURE)] * PEERS, []
    for _ in range(UPDATES):
        still = [averaged(old, tuple([random.gauss(0, NOISE) for _ in PICTURE])) for old in still]
        found.append(tuple(still))
    return tuple(found)


def averaged(old: Vector, new: Vector) -> Vector:
    """The running average of gradients once a new one has come."""
    return tuple([MOMENTUM * one + (1 - MOMENTUM) * other for one, other in zip(old, new, strict=True)])


def _opposite(honest: Sequence[Vector], strength: float, weights: Vector, noises: Sequence[Vector]) -> list[Vector]:
    return [tuple([-strength * one for one in weighted_mean(honest)])] * len(noises)


def _noise(honest: Sequence[Vector], strength: float, weights: Vector, noises: Sequence[Vector]) -> list[Vector]:
    return [tuple([strength * one for one in own]) for own in noises]


def _other_picture(
    honest: Sequence[Vector], strength: float, weights: Vector, noises: Sequence[Vector]
) -> list[Vector]:
    return [tuple([strength * (own - wanted) for own, wanted in zip(weights, OTHER_PICTURE, strict=True)])] * len(
        noises
    )


def _hidden(honest: Sequence[Vector], strength: float, weights: Vector, noises: Sequence[Vector]) -> list[Vector]:
    """The honest mean, off by some standard deviations in each value (ALIE, Baruch et al. 2019, arXiv:1902.06156)."""
    found = []
    for values in zip(*honest, strict=True):
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum([(one - mean) ** 2 for one in values]) / len(values))
        found.append(mean - strength * spread)
    return [tuple(found)] * len(noises)


Attack = Callable[[Sequence[Vector], float, Vector, Sequence[Vector]], list[Vector]]
ATTACKS: dict[str, Attack] = {"picture": _other_picture, "opposite": _opposite, "hidden": _hidden, "noise": _noise}
"""Functions that make the hostile peers' vectors from the honest ones, the strength, the weights, and each hostile
peer's noise."""


def admitted(poison: Poison) -> int:
    """Number of hostile peers that other peers answer where each request needs a ticket.

    Those without one try a ticket that they have signed themselves.
    """
    shown = ["honest"] * poison.members + ["forged"] * (poison.hostile - poison.members)
    cases = [CASES[name]() for name in shown]
    return sum(failed_check(one.request, peer=one.peer, now=one.now, seen=one.seen) is None for one in cases)


def train(poison: Poison, average: str, hostile: int) -> Course:
    """Simulates a run with one of `AVERAGES`; of the hostile peers, `hostile` take part."""
    weights: Vector = (0.0,) * len(PICTURE)
    honest_peers = PEERS - poison.hostile
    # The way from the weights to the picture is the same for all honest peers, so its running average is, too.
    way: Vector = (0.0,) * len(PICTURE)
    samples = [float(SAMPLES)] * honest_peers + [SAMPLES * poison.claimed] * hostile
    course, errors = [], []
    for shaken in noise():
        way = averaged(way, tuple(map(sub, weights, PICTURE)))
        honest = [tuple(map(add, way, own)) for own in shaken[:honest_peers]]
        noises = shaken[honest_peers : honest_peers + hostile]
        sent = ATTACKS[poison.attack](honest, poison.strength, weights, noises)
        mean = AVERAGES[average]([*honest, *sent], samples)
        weights = tuple([own - LEARNING_RATE * one for own, one in zip(weights, mean, strict=True)])
        course.append(weights)
        errors.append(math.dist(weights, PICTURE) / PICTURE_SIDE)
    return Course(tuple(course), tuple(errors))
