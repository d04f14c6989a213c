"""Checks this machine's clock against the run's site and against the peers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from training.doctor.finding import Fault, Finding, fine, skipped
from training.doctor.probes.children import NoAnswer

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

CLOCK = Fault(
    name="clock-off",
    why="Peers refuse nodes whose clock differs by more than 3 seconds, and records with a wrong time vanish at once.",
    remedy="Set the clock: `sudo timedatectl set-ntp true`; in WSL, `sudo hwclock -s` or `wsl --shutdown`.",
)
CLOCK_DRIFTS = Fault(
    name="clock-inexact",
    level="warning",
    why="Peers refuse nodes whose clock differs by more than 3 seconds, and a clock that is not set drifts further.",
    remedy="Let the system set the clock: `sudo timedatectl set-ntp true`.",
)
FAULTS = (CLOCK, CLOCK_DRIFTS)

LARGEST_SECONDS = 3.0
"""hivemind's MAX_DHT_TIME_DISCREPANCY_SECONDS (1.1.12, utils/timed_storage.py)."""
WARN_SECONDS = 1.0
SITE_PRECISION = 1.5
"""A web server says whole seconds, and the answer takes some time."""


def check_clock(shared: Shared) -> Finding:
    """How far the clock is ahead of the peers' clocks, or else of the site's."""
    peers: list[float] = []
    if shared.asked.initial_peers:
        with suppress(NoAnswer):
            peers = shared.visit("clock")["seconds_ahead"]
    if peers:
        return _judged(sorted(peers)[len(peers) // 2], "the run's peers", 0.0)
    site = shared.site_clock()
    if site is None:
        return skipped("Not checked: no peer and no site of a run said its time.")
    return _judged(site, "the run's site", SITE_PRECISION)


def _judged(ahead: float, whose: str, precision: float) -> Finding:
    direction = "ahead of" if ahead > 0 else "behind"
    told = f"This clock is {_shown(abs(ahead))} {direction} that of {whose}"
    if abs(ahead) > LARGEST_SECONDS + precision:
        return CLOCK.found(f"{told}.")
    if abs(ahead) > WARN_SECONDS + precision:
        return CLOCK_DRIFTS.found(f"{told}.")
    return fine(f"{told}.")


def _shown(seconds: float) -> str:
    """A time for people.

    >>> _shown(0.25), _shown(61.0), _shown(7200.0)
    ('0.2 s', '61 s', '2.0 hours')
    """
    return (
        f"{seconds / 3600:.1f} hours"
        if seconds >= 3600
        else f"{seconds:.0f} s"
        if seconds >= 10
        else f"{seconds:.1f} s"
    )
