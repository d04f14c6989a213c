"""Reads the manifest of the shards for the doctor, and names what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.doctor.facts.web import Unfetched, fetch_whole, is_url
from training.doctor.finding import Fault, Unusable
from training.errors import BadInput

if TYPE_CHECKING:
    from training.data.store.shards import Manifest

MISSING = Fault(
    name="shards-unreadable",
    why="A volunteer trains on them.",
    remedy="Omit --shards, to use those of the recipe; or give the folder that `prepare` has written.",
)
DAMAGED = Fault(
    name="shards-damaged",
    why="`join` leaves out what is not as the manifest describes it, and ends if nothing else is there.",
    remedy="Fetch or prepare the shards again. If they come from the run's site, tell its maintainer.",
)
FAULTS = (MISSING, DAMAGED)


class NoShards(Unusable):
    """The manifest cannot be read; `finding` says why."""


def read(source: str) -> tuple[Manifest, float | None]:
    """The manifest, and by how many seconds this clock is ahead of that of its server.

    Raises:
        NoShards: If it cannot be read or is damaged.
    """
    from training.data.store.sets import open_manifest
    from training.data.store.shards import LARGEST_MANIFEST_BYTES, MANIFEST_FILE, parse_manifest

    try:
        if not is_url(source):
            return open_manifest(source, kind=None), None  # `check_shards` says that it is of another kind
        address = f"{source.rstrip('/')}/{MANIFEST_FILE}"
        fetched = fetch_whole(address, limit=LARGEST_MANIFEST_BYTES)
        return parse_manifest(fetched.body, source=address), fetched.clock_ahead
    except Unfetched as error:
        raise NoShards(error.finding) from None
    except BadInput as error:
        fault = MISSING if "no prepared shards" in str(error) else DAMAGED
        raise NoShards(fault.found(str(error))) from None
