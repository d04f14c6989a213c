"""Checks that the recipe can be read, and that its membership server answers."""

from __future__ import annotations

from training.doctor.facts import Facts
from training.doctor.finding import Fault, Finding, fine, skipped
from training.errors import TrainingError
from training.storage.remote import read_document

UNREADABLE = Fault(
    name="recipe-unreadable",
    why="The recipe says what is trained, and `join` ends without it.",
    remedy="Copy its address from the run's join page again, and use the newest version of this program (`git pull`). "
    "Open the address in a browser of this machine: a network may ask you to log in first. If it opens there, a proxy "
    "(https_proxy) or its certificate (SSL_CERT_FILE) may be needed; if a certificate is refused, look at the clock.",
)
AWAY = Fault(
    name="membership-away",
    why="This run admits members only: `join` gets a ticket there before it connects.",
    remedy="Open the address in a browser of this machine. If it opens there, a proxy may be needed: set https_proxy. "
    "If not, tell the run's maintainer that the membership server is off.",
)
OTHER = Fault(
    name="membership-of-another-run",
    why="Tickets from there do not hold in this run, so `join` ends.",
    remedy="Give the address of the run's site, which has the recipe.",
)
FAULTS = (UNREADABLE, AWAY, OTHER)

ANSWER_SECONDS = 8.0


def check_recipe(facts: Facts) -> Finding:
    """Reads the recipe."""
    if facts.asked.recipe is None:
        return skipped("Not checked: no --recipe is given.")
    try:
        run = facts.run()
    except TrainingError as error:
        return UNREADABLE.found(error.sentence)
    return fine(f"{facts.asked.recipe} describes the run {run.run_id} ({run.title}).")


def check_membership(facts: Facts) -> Finding:
    """Checks that the membership server answers, and has the recipe's key. Sends no data of the volunteer."""
    run = facts.run_or_none()
    if run is None:
        return skipped("Not checked: this needs a readable --recipe.")
    if run.membership.open:
        return fine(f"The run {run.run_id} is open to all: it asks for no ticket.")
    from training.trust.bans import LARGEST_BANS_BYTES, read_bans  # here, since the site lists all faults without it

    url = run.membership.url.rstrip("/")
    try:
        bans = read_document(f"{url}/bans", most_bytes=LARGEST_BANS_BYTES, seconds=ANSWER_SECONDS)
    except (OSError, ValueError) as error:
        return AWAY.found(f"{url} does not answer: {error}.")
    if read_bans(bans, run.membership.key, run.run_id) is None:
        return OTHER.found(f"{url} answers, but not as the membership server that the recipe names.")
    return fine(f"The run {run.run_id} admits members only; its membership server answers at {url}.")
