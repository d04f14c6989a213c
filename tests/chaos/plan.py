"""What goes wrong, when and to whom: drawn from a seed, before anything is started."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Hits = Literal["volunteer", "donor", "everyone", "server", "disk"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault."""

    text: str
    seconds: tuple[float, float]
    """Shortest and longest time until it is over."""
    hits: Hits


KINDS: dict[str, Kind] = {
    "kill": Kind(text="a volunteer is killed, and started again", seconds=(2, 10), hits="volunteer"),
    "stop": Kind(text="a volunteer's machine sleeps", seconds=(30, 30), hits="volunteer"),
    "cut": Kind(text="a volunteer's link is cut", seconds=(15, 30), hits="volunteer"),
    "slow": Kind(text="a volunteer's link has 1 Mbit/s", seconds=(30, 45), hits="volunteer"),
    "donor": Kind(text="a newcomer comes while one donor sends 250 kbit/s", seconds=(30, 30), hits="donor"),
    "clock": Kind(text="a volunteer comes back with a clock 5 minutes off", seconds=(30, 45), hits="volunteer"),
    "jump": Kind(text="a volunteer's clock jumps by 5 minutes", seconds=(30, 45), hits="volunteer"),
    "disk": Kind(text="the monitor's disk is full", seconds=(15, 25), hits="disk"),
    "monitor": Kind(text="the monitor is killed, and started again", seconds=(2, 15), hits="server"),
    "bootstrap": Kind(text="the bootstrap peer is killed, and started again", seconds=(2, 15), hits="server"),
    "reboot": Kind(text="the machine of both servers is rebooted", seconds=(10, 20), hits="server"),
    "everyone": Kind(text="all volunteers leave, and come back", seconds=(10, 20), hits="everyone"),
}
MOST_AT_ONCE = 2
"""Volunteers that faults hit at the same time, unless all leave: the others are the survivors."""
REST_SECONDS = 40.0
"""A volunteer that a fault has hit is spared for so long if there are others, so that its recovery is seen."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.4, 2.5
"""From one fault to the next, as a multiple of the mean; an exponential distribution knows no bounds."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One accident."""

    kind: str
    begins: float
    """Seconds after the first part of the run, which has no faults."""
    seconds: float
    volunteers: tuple[str, ...] = ()
    """Volunteers that it hits; a slow donor stands before the newcomer."""
    sign: int = 1
    """Sign of the clock's offset; if all leave: 1 if they are asked to, -1 if they are killed."""

    @property
    def ends(self) -> float:
        return self.begins + self.seconds


def draw(
    seed: int, *, volunteers: Sequence[str], seconds: float, every: float, kinds: Sequence[str] = tuple(KINDS)
) -> list[Fault]:
    """The faults of a run, by their beginnings; all are over when the time is.

    Every kind comes once before any comes again. A fault that would hit too many at once waits until another is over.

    Args:
        seed: The same seed gives the same faults.
        volunteers: Their names.
        seconds: Length of the part of the run in which faults occur.
        every: Mean time from one fault to the next, in seconds.
        kinds: Of faults that may occur.
    """
    dice = random.Random(seed)
    faults: list[Fault] = []
    bag: list[str] = []
    now = 0.0
    while now < seconds:
        if not bag:
            bag = dice.sample(list(kinds), len(kinds))
        kind = bag.pop()
        length = dice.uniform(*KINDS[kind].seconds)
        begins = _first_chance(KINDS[kind].hits, now, length, faults)
        hit = _choose(dice, KINDS[kind].hits, begins, length, faults, volunteers)
        fault = Fault(kind=kind, begins=begins, seconds=length, volunteers=hit, sign=dice.choice((-1, 1)))
        if fault.ends <= seconds:
            faults.append(fault)
        now += min(max(dice.expovariate(1 / every), SHORTEST_PAUSE * every), LONGEST_PAUSE * every)
    return sorted(faults, key=lambda fault: fault.begins)


def _needed(hits: Hits) -> int:
    return {"volunteer": 1, "donor": 2, "everyone": MOST_AT_ONCE}.get(hits, 0)


def _first_chance(hits: Hits, earliest: float, length: float, faults: Sequence[Fault]) -> float:
    """The first moment from which on the fault hits neither too many volunteers at once nor two servers at once."""
    for begins in sorted({earliest, *(fault.ends for fault in faults if fault.ends > earliest)}):
        beside = [fault for fault in faults if fault.begins < begins + length and begins < fault.ends]
        of_servers = [fault for fault in beside if KINDS[fault.kind].hits in ("server", "disk")]
        hit = sum(_needed(KINDS[fault.kind].hits) for fault in beside)
        if hits in ("server", "disk"):
            if not of_servers:
                return begins
        elif hit + _needed(hits) <= MOST_AT_ONCE:
            return begins
    raise AssertionError("after the end of all faults there is room for another")


def _choose(
    dice: random.Random, hits: Hits, begins: float, length: float, faults: Sequence[Fault], volunteers: Sequence[str]
) -> tuple[str, ...]:
    if hits == "everyone":
        return tuple(volunteers)
    beside = [fault for fault in faults if fault.begins < begins + length and begins < fault.ends]
    busy = {name for fault in beside for name in fault.volunteers}
    free = [name for name in volunteers if name not in busy]
    just_hit = {name for fault in faults if begins < fault.ends + REST_SECONDS for name in fault.volunteers}
    rested = [name for name in free if name not in just_hit]
    needed = _needed(hits)
    return tuple(dice.sample(rested if len(rested) >= needed else free, needed))
