"""Volunteers drawn from stated distributions: speed, link, latency, sessions.

* Speed: a GPU's published peak at a stated utilisation (calculator.flops), times a log-normal factor: machines with the
  same GPU differ. Its sigma is assumed.
* Link: medians as given, times one log-normal factor for both ways. Its sigma is assumed; for volunteers' links there
  are but old measurements (Anderson and Fedak 2006, "The computational and storage potential of volunteer computing").
* Latency: log-normal about the median that is given.
* Session: Weibull of shape 0.5 with the mean that is given: many short ones, few long ones, as machines of a pool are
  free (Nurmi, Brevik and Wolski 2005, "Modeling machine availability in enterprise and wide-area distributed
  computing environments"). Absences are exponential, such that one is there for the given share of the time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from calculator.exchange import Link
from calculator.swarm import Volunteers

WEIBULL_SHAPE = 0.5
SLOWEST_BYTES_PER_SECOND = 1e6 / 8
"""Nobody with less than 1 Mbit/s takes part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Sigma of the log-normal factors; 0 makes all of a kind alike."""

    speed: float = 0.2
    link: float = 0.5
    latency: float = 0.5

    @staticmethod
    def none() -> Spread:
        """All of a kind are alike."""
        return Spread(speed=0.0, link=0.0, latency=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """One volunteer, as drawn."""

    samples_per_second: float
    micro_batch_size: int
    link: Link
    present: float
    session_seconds: float
    """Mean."""

    def session(self, chance: random.Random) -> float:
        """Length of a session that begins."""
        if math.isinf(self.session_seconds):
            return math.inf
        return chance.weibullvariate(self._scale, WEIBULL_SHAPE)

    def rest_of_session(self, chance: random.Random) -> float:
        """What is left of the session in which one is met at a random time: longer ones are met more often."""
        if math.isinf(self.session_seconds):
            return math.inf
        whole = self._scale * chance.gammavariate(1 + 1 / WEIBULL_SHAPE, 1) ** (1 / WEIBULL_SHAPE)
        return whole * chance.random()

    def absence(self, chance: random.Random) -> float:
        """Until the next session; of one whose sessions never end, it never comes."""
        if math.isinf(self.session_seconds):
            return math.inf
        mean = self.session_seconds * (1 - self.present) / self.present
        return chance.expovariate(1 / mean) if mean else 0.0

    @property
    def _scale(self) -> float:
        return self.session_seconds / math.gamma(1 + 1 / WEIBULL_SHAPE)


def draw(kinds: Sequence[Volunteers], spread: Spread, chance: random.Random) -> list[Person]:
    """One person for each of the volunteers."""
    people = []
    for kind in kinds:
        for _ in range(kind.count):
            rate, speed = _factor(spread.link, chance), _factor(spread.speed, chance)
            link = Link(
                up_bytes_per_second=max(kind.link.up_bytes_per_second * rate, SLOWEST_BYTES_PER_SECOND),
                down_bytes_per_second=max(kind.link.down_bytes_per_second * rate, SLOWEST_BYTES_PER_SECOND),
                latency_seconds=kind.link.latency_seconds * _factor(spread.latency, chance),
                client_mode=kind.link.client_mode,
            )
            people.append(
                Person(
                    samples_per_second=kind.samples_per_second * speed,
                    micro_batch_size=kind.micro_batch_size,
                    link=link,
                    present=kind.present,
                    session_seconds=kind.session_seconds,
                )
            )
    return people


def _factor(sigma: float, chance: random.Random) -> float:
    """Log-normal with mean 1, so that a spread changes no total."""
    return math.exp(chance.gauss(0, sigma) - sigma**2 / 2) if sigma else 1.0
