"""Report on a simulated run as a table for people."""

from __future__ import annotations

from calculator.reports.swarm_report import SHARE_WORDS
from calculator.swarm.collaboration import Collaboration
from calculator.units import show_bytes, show_days, show_number, show_time
from training.recipe import RunConfig
from training.simulate.forecast import Outcome

WORDS = SHARE_WORDS | {"unshared": "work that entered no common update"}


def report(
    run: RunConfig, collaboration: Collaboration, outcome: Outcome, *, assumed: bool = False, alike: bool = False
) -> str:
    """Makes the text that the command prints.

    Args:
        run: The recipe.
        collaboration: Its volunteers.
        outcome: Their simulation.
        assumed: True if only the number of volunteers was given, so that their hardware is assumed.
        alike: True if all volunteers of a kind are equal.
    """
    named = " (assumed; name others with --volunteers COUNT:GPU:UP/DOWN)" if assumed else ""
    lines = [
        f"{run.title} ({run.run_id}): {outcome.volunteers:,} volunteers, {show_number(outcome.peers)} at a time",
        "",
        f"Volunteers{named}",
        *[f"  {kind.in_words(collaboration.utilisation)}" for kind in collaboration.volunteers],
        f"  Samples at once: {collaboration.volunteers[0].micro_batch_size} (--micro-batch-size).",
        *([] if alike else ["  Speeds and links of single volunteers vary around these; --alike makes them equal."]),
        "",
    ]
    if outcome.stalled:
        return "\n".join([*lines, "No epoch ended.", "", *outcome.limits])
    days, average = outcome.days(run.schedule.total_epochs), show_time(outcome.all_reduce_seconds)
    rows = [
        (
            "Samples per second",
            f"{show_number(outcome.samples_per_second)} of {show_number(outcome.ideal_samples_per_second)}",
        ),
        ("An epoch", f"{show_time(outcome.epoch_seconds)}, {show_number(outcome.samples_per_epoch)} samples"),
        (f"{run.schedule.total_epochs:,} epochs", "never: nothing is shared" if days is None else show_days(days)),
        ("An exchange", f"{average} among {show_number(outcome.group_size)} peers"),
        ("Each peer sends per epoch", show_bytes(round(outcome.sent_bytes))),
        ("Updates made alone", f"{outcome.alone:.1%}"),
    ]
    if outcome.newcomer_seconds is not None:
        rows.append(("A newcomer trains after", show_time(outcome.newcomer_seconds)))
    lines += [f"{name:<28}{value}" for name, value in rows]
    lines += ["", "What volunteers' time is spent on"]
    lines += [f"  {WORDS[name]:<42}{share:>8.1%}" for name, share in outcome.shares.items()]
    if outcome.limits:
        lines += ["", "Limits", *[f"  {limit}" for limit in outcome.limits]]
    simulated = f"{outcome.epochs} epochs, {show_time(outcome.simulated_seconds)}"
    return "\n".join([*lines, "", f"Simulated {simulated}, in {show_time(outcome.wall_seconds)}."])
