"""New starts of a program that lost a process it needs, such as the network node's: counts and limits them."""

from __future__ import annotations

import time
from collections.abc import Mapping

MOST_STARTS, WITHIN_SECONDS = 3, 3600.0
"""Most new starts within a time in seconds; more would hide a lasting fault, such as too little memory."""
STARTED_AGAIN = "TRAINING_TOGETHER_STARTED_AGAIN"
"""Environment variable with the times of the earlier starts, in seconds since 1970."""


def environment_of_next_start(environment: Mapping[str, str], now: float | None = None) -> dict[str, str] | None:
    """Returns the environment for the program's next start; None if it has started anew too often.

    >>> environment_of_next_start({}, now=7200.9)
    {'TRAINING_TOGETHER_STARTED_AGAIN': '7200'}
    >>> environment_of_next_start({STARTED_AGAIN: "100 7000 7100"}, now=7200.0)
    {'TRAINING_TOGETHER_STARTED_AGAIN': '7000 7100 7200'}
    >>> environment_of_next_start({STARTED_AGAIN: "7000 7050 7100"}, now=7200.0) is None
    True
    """
    now = time.time() if now is None else now
    # Whole seconds, rounded down: a start that seemed to lie in the future would not count.
    told = [float(word) for word in environment.get(STARTED_AGAIN, "").split() if word.isdecimal()]
    lately = [moment for moment in told if now - WITHIN_SECONDS < moment <= now]
    if len(lately) >= MOST_STARTS:
        return None
    return {**environment, STARTED_AGAIN: " ".join(str(int(moment)) for moment in (*lately, now))}
