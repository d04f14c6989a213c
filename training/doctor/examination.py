"""Runs all checks at once, each with its time-out, and puts their findings in order.

Checks run in threads. A thread cannot be ended, so one that takes too long is left behind; what it waits for ends with
the program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from training.doctor.facts.shared import LIMIT_SECONDS
from training.doctor.finding import Fault, Finding, fine, skipped

CHECK_SECONDS = 10.0
"""The usual time-out of a check."""

TOO_SLOW = Fault(
    name="check-too-slow",
    level="warning",
    why="Something that it asks does not answer: a disk, a network, a driver, or this machine is very busy.",
    remedy="Close other programs, or give it more time with --seconds 60. Then look at what this line names.",
)
CHECK_FAILED = Fault(
    name="check-failed",
    level="warning",
    why="The doctor itself has a fault here, so this was not checked.",
    remedy="Please report the line, with your system and its version. You can still join.",
)
FAULTS = (TOO_SLOW, CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class Check:
    """One question and who answers it."""

    name: str
    """For people, such as `open files`."""
    examine: Callable[..., Finding | Iterable[Finding]]
    """Gets what all checks share; see `training.doctor.facts.shared.Shared`."""
    seconds: float | None = CHECK_SECONDS
    """Time-out; None: the whole examination."""
    late: Fault = TOO_SLOW
    """What it means if there is no answer in time."""


def run_checks(checks: Sequence[Check], shared: object, *, limit_seconds: float = LIMIT_SECONDS) -> list[Finding]:
    """The findings of all checks, in the checks' order; takes at most about `limit_seconds`."""
    began = time.monotonic()
    answers: list[list[Finding] | None] = [None] * len(checks)

    def examine(number: int, check: Check) -> None:
        answers[number] = _findings(check, shared)

    threads = [
        threading.Thread(target=examine, args=(number, check), daemon=True) for number, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    findings: list[Finding] = []
    for number, (check, thread) in enumerate(zip(checks, threads, strict=True)):
        thread.join(max(0.0, began + min(check.seconds or limit_seconds, limit_seconds) - time.monotonic()))
        found = answers[number]
        if found is None:
            waited = time.monotonic() - began
            found = [check.late.found(f"There was no answer within {waited:.0f} s.")]
        findings += [replace(one, check=check.name) for one in found]
    return findings


def _findings(check: Check, shared: object) -> list[Finding]:
    try:
        found = check.examine(shared)
        return ([found] if isinstance(found, Finding) else list(found)) or [fine("Nothing to note.")]
    except ModuleNotFoundError as error:
        return [skipped(f"Not checked: the package {error.name} is not installed.")]
    except Exception as error:  # one check must not cost the others' answers
        return [CHECK_FAILED.found(f"The check ended with {type(error).__name__}: {error}")]
