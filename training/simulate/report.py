"""Report on a simulated run as a table for people."""

from __future__ import annotations

from calculator.reports.swarm_report import SHARE_WORDS
from calculator.reports.units import show_bytes
from training.recipe import RunConfig
from training.simulate.forecast import Outcome

WORDS = SHARE_WORDS | {"unshared": "work that entered no common update"}


def report(run: RunConfig, outcome: Outcome) -> str:
    """Makes the text that the command prints."""
    lines = [f"{run.title} ({run.run_id}): {outcome.volunteers:,} volunteers, {outcome.peers:,.1f} at a time", ""]
    if outcome.stalled:
        return "\n".join([*lines, "No epoch ended.", "", *outcome.limits])
    days = outcome.days(run.schedule.total_epochs)
    rows = [
        ("Samples per second", f"{outcome.samples_per_second:,.2f} of {outcome.ideal_samples_per_second:,.2f}"),
        ("An epoch", f"{outcome.epoch_seconds:,.1f} s, {outcome.samples_per_epoch:,.0f} samples"),
        (f"{run.schedule.total_epochs:,} epochs", "never: nothing is shared" if days is None else _time(days)),
        ("An average of gradients", f"{outcome.all_reduce_seconds:,.1f} s among {outcome.group_size:,.1f} peers"),
        ("Each peer sends per epoch", show_bytes(round(outcome.sent_bytes))),
        ("Updates made alone", f"{outcome.alone:.1%}"),
    ]
    if outcome.newcomer_seconds is not None:
        rows.append(("A newcomer trains after", f"{outcome.newcomer_seconds:,.0f} s"))
    lines += [f"{name:<28}{value}" for name, value in rows]
    lines += ["", "What volunteers' time is spent on"]
    lines += [f"  {WORDS[name]:<42}{share:>8.1%}" for name, share in outcome.shares.items()]
    if outcome.limits:
        lines += ["", "Limits", *[f"  {limit}" for limit in outcome.limits]]
    simulated = f"{outcome.epochs} epochs, {outcome.simulated_seconds / 3600:,.1f} hours"
    return "\n".join([*lines, "", f"Simulated {simulated}, in {outcome.wall_seconds:.1f} s."])


def _time(days: float) -> str:
    """Writes a time in hours if it is less than a day, otherwise in days.

    >>> _time(0.02), _time(3.57)
    ('0.5 hours', '3.6 days')
    """
    return f"{days:,.1f} days" if days >= 1 else f"{24 * days:,.1f} hours"
