"""Download of a run's newest checkpoint from the site of its monitor, when no peer sends the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.errors import TrainingError
from training.recipe import RunConfig
from training.volunteer.belonging import Belonging, LeaveRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Result of the search for a checkpoint of a lineage at the run's sites."""

    path: Path | None = None
    """Newest checkpoint, downloaded; None if no site has sent one."""
    is_nothing: bool = False
    """True if a site has answered that there is no checkpoint."""


def fetch_stored(belonging: Belonging, run: RunConfig, *, stop: LeaveRequest, tell: Callable[[str], None]) -> Stored:
    """Downloads the newest checkpoint of the lineage from the first site that has one."""
    from training.checkpoints.fetch import fetch_latest

    has_answered = False
    for site in belonging.sites():
        tell(f"Nobody who has the run's weights is here; looking for a checkpoint at {site}.")
        try:
            found = fetch_latest(site, belonging.downloads, recipe=run, lineage=belonging.lineage.id, stop=stop)
        except TrainingError as error:
            tell(f"{site} has given no checkpoint: {error.sentence}")
            continue
        if found is not None:
            return Stored(path=found)
        has_answered = True
    return Stored(is_nothing=has_answered and not stop.asked)
