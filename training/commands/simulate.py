"""`simulate`: how a recipe would go with volunteers who are not there yet."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from training.errors import BadInput

if TYPE_CHECKING:
    from calculator.collaboration import Collaboration
    from training.config import RunConfig
    from training.simulate.forecast import Outcome

MIX = {"t4": 0.6, "rtx-3060": 0.25, "rtx-3090": 0.15}
"""Shares of GPUs where only a number of volunteers is told; assumed."""
MOST_VOLUNTEERS = 100_000

VolunteerKinds = Annotated[
    list[str] | None,
    typer.Option(
        help="How many, or COUNT:GPU:UP/DOWN[:client], such as 30:t4:20/100 (Mbit/s); samples a second may stand "
        "in place of the GPU. May be repeated."
    ),
]
SessionHours = Annotated[
    float | None, typer.Option(min=0.02, help="Mean time until one leaves. Without it: nobody does.")
]
UnlimitedProgress = Annotated[
    bool, typer.Option(help="Leave out the limits of the record of all peers' progress, to see what comes next.")
]


def run(
    recipe: Annotated[str, typer.Option(help="Recipe of the run: a name, a TOML file or a URL.")] = "dalle-2021",
    volunteers: VolunteerKinds = None,
    up: Annotated[float, typer.Option(min=0.1, help="Mbit/s from a volunteer, where only a number is told.")] = 50.0,
    down: Annotated[float, typer.Option(min=0.1, help="Mbit/s to a volunteer, where only a number is told.")] = 100.0,
    micro_batch_size: Annotated[int, typer.Option(min=1, help="Of every volunteer.")] = 4,
    session_hours: SessionHours = None,
    present: Annotated[float, typer.Option(min=0.01, max=1, help="Share of the time that one is there.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, max=10_000, help="Epochs that are simulated.")] = 30,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    alike: Annotated[bool, typer.Option(help="All volunteers of a kind are alike.")] = False,
    declared_links: Annotated[bool, typer.Option(help="Peers tell their bandwidth, and parts follow it.")] = False,
    unlimited_progress: UnlimitedProgress = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")] = False,
) -> None:
    """Simulate a run: throughput, time to finish, where volunteers' time goes, and the limits that it meets."""
    from calculator import BadSetup
    from training.config import load_recipe

    config = load_recipe(recipe)
    everyone = {"micro_batch_size": micro_batch_size, "present": present, "session_hours": session_hours}
    links = {"up_megabits": up, "down_megabits": down}
    try:
        collaboration = _collaboration(config, volunteers or ["100"], everyone, links, declared_links)
    except BadSetup as error:
        raise BadInput(str(error)) from None
    outcome = _play(
        config,
        collaboration,
        epochs=epochs,
        seed=seed,
        alike=alike,
        unlimited_progress=unlimited_progress,
        quiet=as_json,
    )
    if as_json:
        days = outcome.days(config.schedule.total_epochs)
        print(json.dumps({"run_id": config.run_id, "seed": seed, "days": days} | dataclasses.asdict(outcome)))
    else:
        from training.simulate.report import report

        print(report(config, outcome))


def _collaboration(
    config: RunConfig,
    volunteers: list[str],
    everyone: dict[str, object],
    links: dict[str, float],
    declared_links: bool,
) -> Collaboration:
    """The run with these volunteers.

    Raises:
        BadInput: If there is nobody, or more than are simulated.
        BadSetup: If the calculator refuses a volunteer or the whole.
    """
    from calculator.collaboration import collaboration_from
    from calculator.swarm_report import kind_of
    from training.simulate.forecast import collaboration_of

    if any(text.isdecimal() and not int(text) for text in volunteers):
        raise BadInput("A run of no volunteers trains nothing; give --volunteers 1 or more.")
    told = []
    for text in volunteers:
        kinds = [kind_of(text)] if not text.isdecimal() else _mix(int(text), links)
        told += [kind | everyone for kind in kinds]
    kinds = collaboration_from({"model": "dalle-2021", "volunteers": told}).volunteers
    collaboration = dataclasses.replace(collaboration_of(config, kinds), declared_links=declared_links)
    collaboration.forecast()  # which refuses what cannot be
    count = sum(kind.count for kind in collaboration.kinds())
    if count > MOST_VOLUNTEERS:
        raise BadInput(
            f"At most {MOST_VOLUNTEERS:,} volunteers are simulated, not {count:,}.", cure="Give fewer volunteers."
        )
    return collaboration


def _play(
    config: RunConfig,
    collaboration: Collaboration,
    *,
    epochs: int,
    seed: int,
    alike: bool,
    unlimited_progress: bool,
    quiet: bool,
) -> Outcome:
    """Plays the epochs, with a bar meanwhile."""
    from rich.console import Console
    from rich.progress import Progress

    from training.simulate.forecast import WARM_UP_EPOCHS, simulate
    from training.simulate.population import Spread
    from training.simulate.swarm import Rules

    rules = Rules(
        exchange=collaboration.exchange(),
        delay_optimizer_step=config.swarm.delay_optimizer_step,
        averaging_timeout_seconds=config.swarm.averaging_timeout_seconds,
        request_timeout_seconds=config.swarm.request_timeout_seconds,
        progress_limited=not unlimited_progress,
    )
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task("epochs", total=epochs + WARM_UP_EPOCHS)
        return simulate(
            collaboration.kinds(),
            rules,
            epochs=epochs,
            spread=Spread.none() if alike else Spread(),
            seed=seed,
            progress=lambda epoch: progress.update(task, completed=epoch),
        )


def _mix(count: int, links: dict[str, float]) -> list[dict]:
    """So many volunteers in the usual mix, largest remainders first."""
    exact = {gpu: share * count for gpu, share in MIX.items()}
    counts = {gpu: int(number) for gpu, number in exact.items()}
    for gpu in sorted(exact, key=lambda gpu: counts[gpu] - exact[gpu])[: count - sum(counts.values())]:
        counts[gpu] += 1
    return [{"count": number, "gpu": gpu, **links} for gpu, number in counts.items() if number]
