"""`simulate`: predicts how a recipe would train with a given set of volunteers."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from training.errors import BadInput

if TYPE_CHECKING:
    from calculator.swarm.collaboration import Collaboration
    from training.recipe import RunConfig
    from training.simulate.forecast import Outcome

MIX = {"t4": 0.6, "rtx-3060": 0.25, "rtx-3090": 0.15}
"""Assumed shares of GPUs among the volunteers if only their number is given."""
MOST_VOLUNTEERS = 100_000

VolunteerKinds = Annotated[
    list[str] | None,
    typer.Option(
        help="A number, or COUNT:GPU:UP/DOWN[:client], such as 30:t4:20/100 (Mbit/s); samples per second may replace "
        "the GPU. May be repeated."
    ),
]
SessionHours = Annotated[
    float | None, typer.Option(min=0.02, help="Mean hours until a volunteer leaves. Default: nobody leaves.")
]
UnlimitedProgress = Annotated[
    bool, typer.Option(help="Ignore the size limit of the peers' progress record, to see which limit comes next.")
]


def run(
    recipe: Annotated[str, typer.Option(help="Recipe of the run: a name, a TOML file or a URL.")] = "dalle-2021",
    volunteers: VolunteerKinds = None,
    up: Annotated[float, typer.Option(min=0.1, help="Upload in Mbit/s of volunteers given only as a number.")] = 50.0,
    down: Annotated[
        float, typer.Option(min=0.1, help="Download in Mbit/s of volunteers given only as a number.")
    ] = 100.0,
    micro_batch_size: Annotated[int, typer.Option(min=1, help="Samples per forward pass of every volunteer.")] = 4,
    session_hours: SessionHours = None,
    present: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of the time during which a volunteer is present.")
    ] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, max=10_000, help="Epochs to simulate.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn at random.")] = 0,
    alike: Annotated[bool, typer.Option(help="Make all volunteers of a kind identical.")] = False,
    declared_links: Annotated[
        bool, typer.Option(help="Peers declare their bandwidth, and average parts in proportion to it.")
    ] = False,
    unlimited_progress: UnlimitedProgress = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")] = False,
) -> None:
    """Simulate a run: its throughput, its time to finish, how volunteers spend their time, and its limits."""
    from calculator import BadSetup
    from training.recipe import load_recipe

    config, volunteers = load_recipe(recipe), volunteers or ["100"]
    everyone = {"micro_batch_size": micro_batch_size, "present": present, "session_hours": session_hours}
    links = {"up_megabits": up, "down_megabits": down}
    try:
        collaboration = _collaboration(config, volunteers, everyone, links, declared_links)
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

        assumed = any(text.isdecimal() for text in volunteers)
        print(report(config, collaboration, outcome, assumed=assumed, alike=alike))


def _collaboration(
    config: RunConfig,
    volunteers: list[str],
    everyone: dict[str, object],
    links: dict[str, float],
    declared_links: bool,
) -> Collaboration:
    """Builds the collaboration of the recipe's run and these volunteers.

    Raises:
        BadInput: If there are no volunteers, or more than `MOST_VOLUNTEERS`.
        BadSetup: If the calculator refuses a volunteer, or all of them together.
    """
    from calculator.reports.swarm_report import kind_of
    from calculator.swarm.collaboration import collaboration_from
    from training.simulate.forecast import collaboration_of

    # Without this, `_mix` would return no kinds, and the calculator would report an empty list that nobody has typed.
    if any(text.isdecimal() and not int(text) for text in volunteers):
        raise BadInput("A run without volunteers trains nothing; give --volunteers 1 or more.")
    told = []
    for text in volunteers:
        kinds = [kind_of(text)] if not text.isdecimal() else _mix(int(text), links)
        told += [kind | everyone for kind in kinds]
    # The model is only a placeholder, which the check of the volunteers requires; the recipe's own one follows.
    kinds = collaboration_from({"model": "dalle-2021", "volunteers": told}).volunteers
    collaboration = dataclasses.replace(collaboration_of(config, kinds), declared_links=declared_links)
    collaboration.forecast()  # refuses impossible settings before the simulation starts
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
    """Simulates the epochs behind a progress bar."""
    from rich.console import Console
    from rich.progress import Progress

    from training.simulate.forecast import WARM_UP_EPOCHS, simulate
    from training.simulate.population import Spread
    from training.simulate.swarm import Rules

    rules = Rules(
        exchange=collaboration.exchange(),
        delay_optimizer_step=config.swarm.updates_in_background,
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
    """Divides `count` volunteers among GPUs by `MIX`, rounded by largest remainders."""
    exact = {gpu: share * count for gpu, share in MIX.items()}
    counts = {gpu: int(number) for gpu, number in exact.items()}
    for gpu in sorted(exact, key=lambda gpu: counts[gpu] - exact[gpu])[: count - sum(counts.values())]:
        counts[gpu] += 1
    return [{"count": number, "gpu": gpu, **links} for gpu, number in counts.items() if number]
