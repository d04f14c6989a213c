"""Finds out within seconds why this machine cannot join a run, or what will go badly if it does.

A check calls the functions that `join` calls before it trains, and collects findings: nothing is wrong, or a fault by
its name, with the reason why it matters and a remedy. `examination` runs all checks at once and gives up those that
take too long. Code that may hang or crash, such as a GPU's driver, runs in a child program (`child`).

Only the child imports torch and hivemind, so that the doctor can say that they are broken.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder that has the package `training`."""
LIMIT_SECONDS = 18.0
"""Longest time of an examination; a check without an answer by then is reported as unfinished."""
