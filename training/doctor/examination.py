"""Runs all checks at once within a time, and puts their findings in order.

Checks run in threads or in child programs. A thread cannot be ended, so one that takes too long is left behind; what it
waits for ends with the program. Children are killed.
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace

from training.doctor import LIMIT_SECONDS, ROOT
from training.doctor.facts import Asked, Facts
from training.doctor.finding import Fault, Finding, fine, skipped
from training.errors import reason_of

LIFE_MARGIN_SECONDS = 10.0
"""If the doctor is killed, its children end themselves this long after the examination's end."""
END_SECONDS = 1.0
"""Longest wait for the end of a child that was killed: what hangs in a driver cannot be killed."""

TOO_SLOW = Fault(
    name="check-too-slow",
    level="warning",
    why="Something that it asks does not answer: a disk, a network, a driver, or this machine is very busy.",
    remedy="Close other programs, or give it more time with --seconds 60. If it stays so, look at what this line "
    "names: `nvidia-smi` must answer at once, and the run's site must open in a browser of this machine.",
)
CHECK_FAILED = Fault(
    name="check-failed",
    level="warning",
    why="The doctor itself has a fault here, so this was not checked.",
    remedy="Please report the line, with your system and its version. You can still join.",
)
FAULTS = (TOO_SLOW, CHECK_FAILED)

Answer = Callable[[str, list[Finding]], None]
"""Takes the name of a check and what it has found."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and what answers it: a function in a thread, or a child."""

    name: str
    """Name for people, such as `open files`."""
    examine: Callable[[Facts], Finding | Iterable[Finding]] | None = None
    child: str = ""
    """Name of the child that answers; see `training.doctor.child`."""
    broken: Fault = CHECK_FAILED
    """What it means if the child ends before it has answered."""


def run_checks(checks: Sequence[Check], asked: Asked, *, limit_seconds: float = LIMIT_SECONDS) -> list[Finding]:
    """The findings of all checks, in the checks' order; takes at most about `limit_seconds`."""
    began = time.monotonic()
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
        with news:
            news.wait_for(lambda: len(answers) == len(checks), began + limit_seconds - time.monotonic())
            known = dict(answers)
    late = [TOO_SLOW.found(f"There was no answer within {limit_seconds:.0f} s.")]
    return [replace(one, check=check.name) for check in checks for one in known.get(check.name, late)]


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
        asked: What the volunteer gave.
        life_seconds: It ends itself after so long, in case the doctor is killed.
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
        """Passes its answers on as they come; if it ends too early, says so for the checks without one."""
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
        """Kills it and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._folder.cleanup()
