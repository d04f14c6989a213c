"""Shows findings: a list for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from calculator.units import show_time
from training.doctor.examination import TOO_SLOW
from training.doctor.finding import Finding, Level

MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "skipped": ("-", "dim"),
    "warning": ("warning", "yellow"),
    "fault": ("FAULT", "red"),
}
"""Word and colour of each level."""


def can_join(findings: Sequence[Finding]) -> bool:
    """Returns True if no finding would stop `join`."""
    return not any(finding.level == "fault" for finding in findings)


def as_json(findings: Sequence[Finding], seconds: float) -> str:
    """Formats findings as one JSON object with `can_join`, `seconds` and `findings`."""
    return json.dumps(
        {
            "can_join": can_join(findings),
            "seconds": round(seconds, 1),
            "findings": [asdict(finding) for finding in findings],
        }
    )


@contextmanager
def rows() -> Iterator[tuple[Callable[[str], None], Callable[[Finding], None]]]:
    """Prints a row for each finding as it comes, and on a terminal what is checked now.

    Yields:
        A function that takes the name of the check that is waited for, and one that takes the next finding.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from training.processes.progress import moving_sign

    console = Console(highlight=False)
    with moving_sign(console) as sign:
        now = sign.add_task("Checking this machine")

        def wait(name: str) -> None:
            sign.update(now, description=f"Checking: {name}")

        def add(finding: Finding) -> None:
            word, colour = MARKS[finding.level]
            row = Table.grid(padding=(0, 2))
            row.add_column(width=7)
            row.add_column(width=15)
            row.add_column()
            more = f" See {finding.name} below." if finding.name else ""
            row.add_row(f"[{colour}]{word}[/]", finding.check, Text(finding.found + more))
            console.print(row)

        yield wait, add


def show_remedies(findings: Sequence[Finding], seconds: float) -> None:
    """Prints why faults and warnings matter and what to do about them, and a summary."""
    from rich.console import Console

    console = Console(highlight=False)
    # What several checks have found, such as that there was no answer in time, is told once.
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted((one for one in findings if one.name), key=lambda one: one.level != "fault"):
        alike.setdefault((finding.level, finding.name, finding.why, finding.remedy), []).append(finding)
    for (level, name, why, remedy), those in alike.items():
        word, colour = MARKS[level]
        console.print(f"\n[bold {colour}]{word}: {name}[/] ({', '.join(one.check for one in those)})", soft_wrap=True)
        for line in (*dict.fromkeys(one.found for one in those), f"Why it matters: {why}", f"What to do: {remedy}"):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print(f"\n{summary(findings)} It took {show_time(seconds)}.", soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """Sums up all findings in one sentence."""
    faults, warnings = (sum(finding.level == level for finding in findings) for level in ("fault", "warning"))
    counts = f"{faults} fault{'s' * (faults != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    if faults:
        return f"{counts}: this machine cannot join as it is."
    unknown = [finding.check for finding in findings if finding.level == "skipped"]
    cure = "give its address as for `join`, or both --recipe and --initial-peers; if its peers answer late, "
    if any(finding.name == TOO_SLOW.name for finding in findings):
        cure = ""
    asked = f" The run itself could not be checked: {cure}give more time with --seconds 60." if "run" in unknown else ""
    return f"{counts}: nothing that was checked keeps this machine from joining.{asked}"
