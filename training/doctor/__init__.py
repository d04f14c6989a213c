"""Finds out within seconds why this machine cannot join a run, or what will go badly if it does.

A check does what `join` does before it trains, by the same functions, and collects what these refuse: findings that all
is well, or faults by their names, each with the reason why it matters and what to do. `examination` runs all checks at
once and gives up those that take too long. What may hang or crash, such as a GPU's driver, runs in a child program
(`child`).

Only the child imports torch and hivemind, so that the doctor can say that they are broken.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that has the package `training`."""
LIMIT_SECONDS = 18.0
"""Longest time of an examination; what is not known by then is reported as such."""
