"""Shows moderators what validators have reported on an account."""

from __future__ import annotations

from collections.abc import Sequence

from training.trust.reports import Findings
from training.trust.ticket import when


def show_evidence(account: str, reports: Sequence[dict], *, is_banned: bool) -> None:
    """Prints a table of all checks, what else the reports say, and what to do.

    Args:
        account: Whom they are about.
        reports: As `Moderation.evidence` gives them.
        is_banned: Whether the account is banned now.
    """
    from rich.console import Console

    if not reports:
        print(f"No validator has reported {account}.")
        return
    console = Console(highlight=False, markup=False)
    read = [(one, Findings.model_validate_json(one["detail"])) for one in reports]
    console.print(f"Reports of validators on {account}: {len(reports)}. Times are in UTC.", soft_wrap=True)
    console.print(_table(read))
    for report, findings in read:
        for sentence in _further(findings):
            console.print(f"{when(report['time'])}, peer {report['peer_id']}: {sentence}", soft_wrap=True)
    console.print(
        "Share: how much of the samples computed again was found in the update; about 1 for an honest peer, and about "
        "0 for one that has not computed them. Error: the share's standard error.",
        soft_wrap=True,
    )
    lifts = f"`moderate unban {account}` lifts the ban, if the reports are wrong."
    console.print(lifts if is_banned else f"{account} is not banned now.", soft_wrap=True)


def _table(read: Sequence[tuple[dict, Findings]]) -> object:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("Time", no_wrap=True)
    table.add_column("Validator", overflow="fold")
    for name in ("Epoch", "Samples", "Share", "Error"):
        table.add_column(name, justify="right", no_wrap=True)
    for report, findings in read:
        for check in findings.checks:
            found = (f"{check.share:.3g}", f"{check.error:.2g}") if check.samples else ("none", "none")
            table.add_row(when(report["time"]), report["who"], str(check.epoch), str(check.samples), *found)
    return table


def _further(findings: Findings) -> list[str]:
    """What a report says beside its checks."""
    told = []
    if findings.copied_from:
        told.append(f"it and these sent copies of one another's updates: {', '.join(findings.copied_from)}.")
    if findings.undeclared:
        updates = f"{findings.undeclared} update{'s' * (findings.undeclared != 1)}"
        told.append(f"for {updates} it declared no samples that the validator could compute again.")
    return told
