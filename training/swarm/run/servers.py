"""Servers of a run: addresses of its bootstrap peers and its monitor, as given by the volunteer or by the run's
site."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from training.errors import BadInput, TrainingError
from training.storage.remote import read_document
from training.swarm.node.addresses import check_full, id_of

SITE_SECONDS = 10.0
"""Longest wait for a site's document."""
MOST_SERVERS = 32
"""Most servers that a site may name; `Redial` keeps calling each of them."""


class Servers:
    """Addresses of the run's servers. The volunteer trusts the peers whose ids are in them.

    Args:
        given: Full addresses of peers, and http(s) addresses of the run's site, as for `--initial-peers`.

    Raises:
        BadInput: If a given address is neither of these.
    """

    def __init__(self, given: Sequence[str] = ()):
        self.sites = tuple(dict.fromkeys(one.rstrip("/") for one in given if is_site(one)))
        for site in self.sites:
            if not urlsplit(site).hostname:
                raise BadInput(f"{site!r} is not the address of a site; give one such as https://run.example.")
        self._given = tuple(check_full(one) for one in given if not is_site(one))
        self._named: dict[str, tuple[str, ...]] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses known now, each once: the given ones, then those that the sites name."""
        named = (address for site in self.sites for address in self._named.get(site, ()))
        return tuple(dict.fromkeys((*self._given, *named)))

    @property
    def ids(self) -> frozenset[str]:
        """Peer ids of the servers."""
        return frozenset(id_of(address) for address in self.addresses)

    def name(self, site: str, addresses: Sequence[str]) -> None:
        """Replaces the addresses that a site has named."""
        self._named[site] = tuple(addresses)

    def ask_sites(self) -> list[TrainingError]:
        """Asks all sites, up to `SITE_SECONDS` each. Returns an error for each site that does not answer."""
        faults = []
        for site in self.sites:
            try:
                self.name(site, ask_site(site))
            except TrainingError as error:
                faults.append(error)
        return faults


def is_site(given: str) -> bool:
    """Returns True for the address of a site, False for that of a peer."""
    return given.startswith(("http://", "https://"))


def document_of(site: str) -> str:
    """Address of the run's document on its site."""
    return f"{site}/live/run.json"


def read_run_document(url: str) -> object:
    """Reads the document of a run.

    Raises:
        OSError, ValueError, RecursionError: If the site does not answer, or sends something else.
    """
    return json.loads(read_document(url, seconds=SITE_SECONDS))


def ask_site(site: str) -> tuple[str, ...]:
    """Asks a run's site for the addresses of its servers.

    Raises:
        TrainingError: If the site does not answer, or names no server.
    """
    url = document_of(site)
    try:
        named = read_run_document(url)["initial_peers"]
        addresses = [check_full(str(one)) for one in list(named)[:MOST_SERVERS]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, BadInput) as error:
        raise TrainingError(
            f"The run's site does not name its servers: {url} cannot be read ({_reason(error)}).",
            cure="Check the address of the site, and whether the run is on.",
        ) from None
    if not addresses:
        raise TrainingError(
            f"The run's site names no servers ({url}): the run is over, or its monitor is not running.",
            cure="Ask the run's maintainer whether it goes on.",
        )
    return tuple(addresses)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    return " ".join(str(error).split()) or type(error).__name__


def servers_at(site: str | None) -> frozenset[str]:
    """Peer ids that the run's site names as its servers; empty if there is no site or it does not answer."""
    if site is None:
        return frozenset()
    try:
        document = read_run_document(document_of(site))
        return frozenset(server for server in document.get("servers", ()) if isinstance(server, str))
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return frozenset()
