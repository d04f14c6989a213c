"""What chaos prints: the faults to come, what happens, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.chaos.judging.evidence import Accident, Evidence
from tests.chaos.judging.verdict import Finding
from tests.chaos.plan import KINDS, Fault

MOST_DETAILS = 8
console = Console(highlight=False, soft_wrap=True, width=120)


def say(text: str) -> None:
    """A line with the time."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")


def show_plan(seed: int, faults: Sequence[Fault]) -> None:
    """How many faults will come."""
    say(f"Seed {seed} has drawn {len(faults)} faults: {', '.join(fault.kind for fault in faults)}.")


def say_act(fault: Fault, *, over: bool) -> None:
    """A fault begins or ends."""
    who = f" ({', '.join(fault.volunteers)})" if 0 < len(fault.volunteers) < 3 else ""
    say(f"{'over: ' if over else ''}{KINDS[fault.kind].text}{who}")


def show(evidence: Evidence, findings: Sequence[Finding]) -> None:
    """The faults with what they cost, and the findings."""
    faults = Table("at", "fault", "whom", "lasted", "next epoch of them")
    for accident in evidence.accidents:
        at = accident.began - evidence.calm_until
        whom = ", ".join(accident.volunteers) if len(accident.volunteers) < 3 else "all"
        lasted = f"{accident.ended - accident.began:.0f} s"
        faults.add_row(f"{at:.0f} s", KINDS[accident.kind].text, whom, lasted, _back(evidence, accident))
    console.print(faults)
    verdict = Table("check", "found", "limit", "")
    for finding in findings:
        verdict.add_row(finding.check, finding.found, finding.limit, "" if finding.good else "[bold red]wrong[/]")
    console.print(verdict)
    for finding in findings:
        for detail in finding.details[:MOST_DETAILS]:
            console.print(f"{finding.check}: {detail}", markup=False)
        if (more := len(finding.details) - MOST_DETAILS) > 0:
            console.print(f"{finding.check}: and {more} more")


def _back(evidence: Evidence, accident: Accident) -> str:
    """How long after the fault those whom it hit ended their next epoch with others."""
    times = [
        min((e.time for e in evidence.epochs[name] if e.time > accident.ended and e.senders > 1), default=None)
        for name in accident.volunteers
    ]
    if not times:
        return ""
    return "never" if None in times else f"{max(times) - accident.ended:.0f} s later"
