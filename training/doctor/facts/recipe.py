"""Reads the recipe for the doctor, and names what is wrong with it."""

from __future__ import annotations

from training.doctor.facts.web import Unfetched, fetch_whole, is_url
from training.doctor.finding import Fault, Unusable
from training.errors import BadInput
from training.recipe import LARGEST_RECIPE_BYTES, RunConfig, load_recipe, parse_recipe

MISSING = Fault(
    name="recipe-missing",
    why="Without the recipe it is not known what is trained.",
    remedy="Copy the address of the recipe from the run's join page, or give the name of a file that is there.",
)
INVALID = Fault(
    name="recipe-invalid",
    why="`join` ends if the recipe does not describe a run.",
    remedy="Take the recipe from the run's join page again, and the newest version of this program (`git pull`).",
)
FAULTS = (MISSING, INVALID)


class Unread(Unusable):
    """There is no recipe to go by; `finding` says why."""


def read(source: str) -> tuple[RunConfig, float | None]:
    """The recipe, and by how many seconds this clock is ahead of that of its server.

    Raises:
        Unread: If it cannot be read or is invalid.
    """
    ahead = None
    try:
        if not is_url(source):
            return load_recipe(source), None
        fetched = fetch_whole(source, limit=LARGEST_RECIPE_BYTES)
        ahead = fetched.clock_ahead
        return parse_recipe(fetched.body.decode("utf-8-sig"), source=source), ahead
    except Unfetched as error:
        raise Unread(error.finding) from None
    except UnicodeDecodeError:
        raise Unread(INVALID.found(f"{source} is not text.")) from None
    except BadInput as error:
        fault = MISSING if str(error).startswith("No recipe") else INVALID
        raise Unread(fault.found(str(error))) from None
