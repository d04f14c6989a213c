"""Runs all checks at once within a time, and puts their findings in order.

Checks run in threads or in child programs. A thread cannot be ended, so a thread that takes too long is left running
until the program ends. Children are killed.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace

from training.doctor import LIMIT_SECONDS, ROOT
from training.doctor.facts import Asked, Facts
from training.doctor.finding import Fault, Finding, fine, skipped
from training.errors import reason_of

LIFE_MARGIN_SECONDS = 10.0
"""If the doctor is killed, its children end themselves this long after the examination's end."""
END_SECONDS = 1.0
"""Longest wait for the end of a killed child: a process that hangs in a driver does not end."""

TOO_SLOW = Fault(
    name="check-too-slow",
    level="warning",
    why="`join` does the same, and would wait as long.",
    remedy="Close programs that use the processor or the disk, or give the doctor more time with --seconds 60.",
)
CHECK_FAILED = Fault(
    name="check-failed",
    level="warning",
    why="The doctor itself has a fault here, so this was not checked.",
    remedy="Please report the line, with your system and its version. You can still join.",
)
FAULTS = (TOO_SLOW, CHECK_FAILED)

Answer = Callable[[str, list[Finding]], None]
"""Function that takes the name of a check and its findings."""


@dataclass(frozen=True, slots=True)
class Check:
    """Question about this machine, with the function (in a thread) or child that answers it."""

    name: str
    """Name for people, such as `open files`."""
    examine: Callable[[Facts], Finding | Iterable[Finding]] | None = None
    child: str = ""
    """Name of the child that answers; see `training.doctor.child`."""
    broken: Fault = CHECK_FAILED
    """Fault to report if the child ends before it has answered."""
    doing: str = "looking at this machine"
    """What the check does, in case that takes too long."""
    advice: str = ""
    """Further advice in that case, as a sentence."""


def run_checks(
    checks: Sequence[Check],
    asked: Asked,
    *,
    limit_seconds: float = LIMIT_SECONDS,
    waits: Callable[[str], None] = lambda name: None,
) -> Iterator[Finding]:
    """Runs all checks at once; yields their findings in the checks' order, for at most about `limit_seconds`.

    Args:
        checks: What to check.
        asked: Flags that the volunteer gave.
        limit_seconds: Longest time.
        waits: Called with the name of the check whose findings come next.
    """
    deadline = time.monotonic() + limit_seconds
    answers: dict[str, list[Finding]] = {}
    news = threading.Condition()

    def answer(name: str, findings: list[Finding]) -> None:
        with news:
            answers.setdefault(name, findings)
            news.notify_all()

    facts = Facts(asked)
    with ExitStack() as ends:
        for check in (check for check in checks if check.examine is not None):
            work = threading.Thread(target=lambda check=check: answer(check.name, _findings(check, facts)), daemon=True)
            work.start()
        for name in dict.fromkeys(check.child for check in checks if check.child):
            theirs = [check for check in checks if check.child == name]
            try:
                child = _Child(name, asked, limit_seconds + LIFE_MARGIN_SECONDS)
            except OSError as error:  # such as a full disk: the check of temporary files says so
                for check in theirs:
                    answer(check.name, [skipped(f"Not checked: no program can be started ({reason_of(error)}).")])
                continue
            ends.callback(child.end)
            threading.Thread(target=child.pass_on, args=(theirs, answer), daemon=True).start()
        late: dict[str, Check] = {}
        for check in checks:
            waits(check.name)
            with news:
                news.wait_for(lambda check=check: check.name in answers, deadline - time.monotonic())
                found = answers.get(check.name) or [_late(check, late, limit_seconds)]
            yield from (replace(one, check=check.name) for one in found)


def _late(check: Check, late: dict[str, Check], limit_seconds: float) -> Finding:
    """Finding for a check without an answer: too slow, or held up by another one of the same child.

    Args:
        check: The check.
        late: Child -> its first check without an answer; a new one is entered.
        limit_seconds: Time that it had.
    """
    first = late.setdefault(check.child, check) if check.child else check
    if first is not check:
        return skipped(f"Not checked: this comes after the check of {first.name}, which took too long.")
    told = f"After {limit_seconds:.0f} s the doctor was still {check.doing}. {check.advice}"
    return TOO_SLOW.found(told.strip())


def _findings(check: Check, facts: Facts) -> list[Finding]:
    try:
        found = check.examine(facts)
        return ([found] if isinstance(found, Finding) else list(found)) or [fine("Nothing to note.")]
    except ModuleNotFoundError as error:
        return [skipped(f"Not checked: the package {error.name} is not installed.")]
    except Exception as error:  # one check must not cost the others' answers
        return [CHECK_FAILED.found(f"The check ended with {type(error).__name__}: {error}")]


class _Child:
    """A program in a process group of its own, which writes one line of JSON for each check.

    Args:
        name: See `training.doctor.child`.
        asked: Flags that the volunteer gave.
        life_seconds: Time after which the child ends itself, in case the doctor is killed.
    """

    def __init__(self, name: str, asked: Asked, life_seconds: float):
        self._folder = tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        arguments = (name, str(math.ceil(life_seconds)), json.dumps(asdict(asked), default=str))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "training.doctor.child", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": self._folder.name},
        )

    def pass_on(self, checks: Sequence[Check], answer: Answer) -> None:
        """Passes the child's answers on as they come; if the child ends too early,
        reports the checks without an answer."""
        left, last_line = {check.name: check for check in checks}, ""
        for line in self._process.stdout:
            try:
                name, findings = json.loads(line)
            except (ValueError, TypeError):  # a library's own output, or a traceback
                last_line = line.decode(errors="replace").strip().rstrip(".") or last_line
                continue
            answer(name, [Finding(**one) for one in findings])
            left.pop(name, None)
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else last_line or f"exit code {code}"
        for number, check in enumerate(left.values()):
            told = f"The program that checks this has ended: {how}."
            answer(check.name, [skipped(f"Not checked. {told}") if number else check.broken.found(told)])

    def end(self) -> None:
        """Kills the child and all processes that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._folder.cleanup()
