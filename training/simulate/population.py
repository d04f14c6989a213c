"""Volunteers drawn from stated distributions: speed, link, latency, sessions.

* Speed: a GPU's published peak at a given utilisation (calculator.choose.flops), times a log-normal factor: machines
  with the same GPU differ. Its sigma is assumed.
* Link: the given medians, times one log-normal factor for both directions. Its sigma is assumed; there are
  only old measurements of volunteers' links (Anderson and Fedak 2006, "The computational and storage potential of
  volunteer computing").
* Latency: log-normal around the given median.
* Session: Weibull of shape 0.5 with the given mean: many short ones and few long ones, as pooled machines are
  available (Nurmi, Brevik and Wolski 2005, "Modeling machine availability in enterprise and wide-area distributed
  computing environments"). Absences are exponential, so that a volunteer is present for the given share of the time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from calculator.swarm.exchange import Link
from calculator.swarm.forecast import Volunteers

WEIBULL_SHAPE = 0.5
SLOWEST_BYTES_PER_SECOND = 1e6 / 8
"""Least rate of a drawn link: 1 Mbit/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Sigmas of the log-normal factors; with 0 all volunteers of a kind are equal."""

    speed: float = 0.2
    link: float = 0.5
    latency: float = 0.5

    @staticmethod
    def none() -> Spread:
        """Returns a spread with which all volunteers of a kind are equal."""
        return Spread(speed=0.0, link=0.0, latency=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """A volunteer with drawn properties."""

    samples_per_second: float
    micro_batch_size: int
    link: Link
    present: float
    session_seconds: float
    """Mean length of a session."""

    def session(self, chance: random.Random) -> float:
        """Draws the length of a session that begins now."""
        if math.isinf(self.session_seconds):
            return math.inf
        return chance.weibullvariate(self._scale, WEIBULL_SHAPE)

    def rest_of_session(self, chance: random.Random) -> float:
        """Draws the rest of the session that is in progress at a random time, which is more often a long one."""
        if math.isinf(self.session_seconds):
            return math.inf
        # A session in progress is found with a probability proportional to its length. For a Weibull distribution of
        # shape k, (length / scale)**k then follows a gamma distribution of shape 1 + 1 / k.
        whole = self._scale * chance.gammavariate(1 + 1 / WEIBULL_SHAPE, 1) ** (1 / WEIBULL_SHAPE)
        return whole * chance.random()

    def absence(self, chance: random.Random) -> float:
        """Draws the time until the next session; infinite for a volunteer whose sessions never end."""
        if math.isinf(self.session_seconds):
            return math.inf
        mean = self.session_seconds * (1 - self.present) / self.present
        return chance.expovariate(1 / mean) if mean else 0.0

    @property
    def _scale(self) -> float:
        return self.session_seconds / math.gamma(1 + 1 / WEIBULL_SHAPE)


def draw(kinds: Sequence[Volunteers], spread: Spread, chance: random.Random) -> list[Person]:
    """Draws one person for each of the volunteers."""
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
    """Draws a log-normal factor with mean 1, so that the spread does not change totals."""
    return math.exp(chance.gauss(0, sigma) - sigma**2 / 2) if sigma else 1.0
