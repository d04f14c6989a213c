"""The addresses of the run's peers, and whether each accepts a connection from here."""

from __future__ import annotations

import errno
import json
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from training.doctor.facts.web import Unfetched, fetch_whole, is_url, resolve
from training.doctor.finding import Fault
from training.errors import BadInput

LIST = Fault(
    name="peer-list-unreadable",
    why="The addresses of the run's peers are read there.",
    remedy="Give the address of the run's site as the join page shows it, or the peers' own addresses.",
)
FAULTS = (LIST,)

REACH_SECONDS = 4.0
"""Longest wait for a peer to accept a connection."""
ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d+)(?:/p2p/(\w+))?")
NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What happened when this machine connected to a peer's address."""

    address: str
    seconds: float | None = None
    """Until the connection was accepted; None if it was not."""
    kind: str = ""
    """`refused`, `silent`, `unroutable` or `name`, if it was not."""
    said: str = ""


def parted(address: str) -> tuple[str, str, int]:
    """Kind of address, host and port of a peer's full address.

    Raises:
        BadInput: If it is not one.

    >>> parted("/ip4/203.0.113.7/tcp/31337/p2p/QmPeerId")
    ('ip4', '203.0.113.7', 31337)
    """
    match = ADDRESS.fullmatch(address)
    if match is None or match[4] is None or not 0 < int(match[3]) < 1 << 16:
        raise BadInput(
            f"{address!r} is not the full address of a peer, such as /ip4/203.0.113.7/tcp/31337/p2p/QmPeerId.",
            cure="Copy the whole address from the bootstrap peer's output or the join page.",
        )
    return match[1], match[2], int(match[3])


def addresses_of(given: Sequence[str]) -> list[str]:
    """The peers' addresses; for the URL of a run's site, those that it lists.

    Raises:
        Unfetched: If a site does not list them.
    """
    found = []
    for one in given:
        if not is_url(one):
            found.append(one)
            continue
        url = f"{one.rstrip('/')}/live/run.json"
        try:
            listed = json.loads(fetch_whole(url, limit=1 << 20).body)["initial_peers"]
            for address in listed:
                parted(address)
        except (ValueError, KeyError, TypeError, BadInput) as error:
            raise Unfetched(LIST.found(f"{url} does not list the addresses of peers: {error}.")) from None
        if not listed:
            raise Unfetched(LIST.found(f"{url} lists no peers: the run is over."))
        found += listed
    return found


def connect_all(addresses: Sequence[str]) -> list[Answer]:
    """Tries a plain TCP connection to all addresses at once."""
    answers: dict[str, Answer] = {}

    def connect(address: str) -> None:
        answers[address] = _connected(address)

    threads = [threading.Thread(target=connect, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2 * REACH_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = {address: Answer(address=address, kind="silent", said="no answer") for address in addresses}
    return list((silent | answers).values())


def _connected(address: str) -> Answer:
    kind, host, port = parted(address)
    families = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}
    try:
        places = [place for place in resolve(host) if place[0] == families.get(kind, place[0])]
    except OSError as error:
        return Answer(address=address, kind="name", said=str(error))
    began, last = time.monotonic(), OSError(f"{host} has no address of this kind")
    for family, _, _, _, place in places[:2]:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:  # fails where the system has no IPv6
                trial.settimeout(REACH_SECONDS)
                trial.connect((place[0], port, *place[2:]))
                return Answer(address=address, seconds=time.monotonic() - began)
        except OSError as error:
            last = error
    why = "refused" if isinstance(last, ConnectionRefusedError) else "silent"
    why = "unroutable" if last.errno in NO_WAY else why
    return Answer(address=address, kind=why, said=last.strerror or str(last))
