"""Checks of the membership server: that a run for members only can give this machine a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.doctor.facts.web import Unfetched, fetch_whole
from training.doctor.finding import Fault, Finding, fine, skipped

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

AWAY = Fault(
    name="membership-away",
    why="This run admits members only: `join` gets a ticket there before it connects.",
    remedy="Open the address in a browser of this machine. If it opens there, a proxy may be needed: set https_proxy. "
    "If not, tell the run's maintainer that the membership server is off.",
)
OTHER = Fault(
    name="membership-of-another-run",
    why="Tickets from there do not hold in this run, so `join` ends.",
    remedy="Take the recipe from the run's join page again.",
)
FAULTS = (AWAY, OTHER)


def check_membership(shared: Shared) -> Finding:
    """Whether the membership server answers, and has the recipe's key. Nothing of the volunteer is sent."""
    run = shared.run_or_none()
    if run is None:
        return skipped("Not checked: this needs a readable --recipe.")
    if run.membership.open:
        return fine(f"The run {run.run_id} is open to all: it asks for no ticket.")
    from training.trust.bans import LARGEST_BANS_BYTES, read_bans  # here, since the site lists all faults without it

    url = run.membership.url.rstrip("/")
    try:
        answer = fetch_whole(f"{url}/bans", limit=LARGEST_BANS_BYTES)
    except Unfetched as error:
        return AWAY.found(error.finding.found)
    if read_bans(answer.body, run.membership.key, run.run_id) is None:
        return OTHER.found(f"{url} answers, but not as the membership server that the recipe names.")
    return fine(f"The run {run.run_id} admits members only; its membership server answers at {url}.")
