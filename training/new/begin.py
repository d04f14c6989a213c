"""Begins a new run: looks at the data, asks, and makes the run's folder."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from training.data.sources.hub import ADDRESS
from training.errors import BadInput
from training.new.folder import RECIPE, Servers, change_servers, check_servers, write_servers
from training.new.found import Found, look
from training.new.make import NewRun, make_run
from training.new.plan import Wanted, people_of
from training.new.questions import HOW_LONG, USUAL_DAYS, WHERE, WHO, ask, days_of, usual_volunteers
from training.processes.progress import show_progress
from training.processes.servers.ports import ANYWHERE, DHT_PORT, SITE_PORT

PORTS_TRIED = 50
"""Number of ports to try, from the usual one on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Values of the flags of `new`."""

    data: str
    run_dir: Path | None = None
    volunteers: Sequence[str] = ()
    days: float | None = None
    title: str | None = None
    asks: bool = False
    """True to ask for values that no flag gives."""
    reading: dict[str, Any] = field(default_factory=dict)
    """What is trained and how the data are read: fields of `NewRun`."""
    servers: dict[str, Any] = field(default_factory=dict)
    """Fields of `Servers` that flags name."""


def begin(given: Given, say: Callable[[str], None]) -> tuple[Path, Servers]:
    """Makes the run's folder, unless it exists.

    Args:
        given: The flags.
        say: Called with each line to print.

    Returns:
        The run's folder, and how its servers are started.

    Raises:
        BadInput: If the data or the folder cannot be used.
    """
    folder = given.run_dir or Path("runs") / name_of(given.data)
    if (folder / RECIPE).is_file():
        say(f"{folder} has a run already, which goes on. To make another one of these data, give --run-dir.")
        return folder, change_servers(folder, given.servers)
    found = look(given.data)
    check_servers(given.servers, found.kind)
    say(f"{given.data}: {found.words}.")
    new, chosen = _asked(given, found, folder)
    shards = make_run(new, say, partial(show_progress, sys.stdout))
    servers = _first(_named_in(folder, Path(shards)), chosen)
    write_servers(folder, servers)
    say(f"{folder / RECIPE} says what is trained, with a comment beside each value that you may change.")
    return folder, servers


def _asked(given: Given, found: Found, folder: Path) -> tuple[NewRun, dict[str, Any]]:
    """Asks for values that no flag gives. Returns the run to make, and the fields of its servers."""
    people = people_of(given.volunteers) if given.volunteers else None
    days, servers = given.days, dict(given.servers)
    if given.asks:
        people = people or ask(WHO, usual_volunteers(), lambda answer: people_of([answer]))
        days = days or ask(HOW_LONG, f"{USUAL_DAYS:g}", days_of)
        servers["address"] = servers.get("address") or ask(WHERE, "", str.strip) or None
    wanted = Wanted(people=people or people_of([usual_volunteers()]), days=days or USUAL_DAYS)
    run_id = name_of(str(folder))
    title = given.title or run_id.replace("-", " ").capitalize()
    return NewRun(found=found, run_dir=folder, run_id=run_id, title=title, wanted=wanted, **given.reading), servers


def _named_in(folder: Path, shards: Path) -> str:
    """Names shards as a run's folder does: those in it by a path that stays right when the folder moves."""
    return str(shards.relative_to(folder) if shards.is_relative_to(folder) else shards.absolute())


def _first(shards: str, chosen: dict[str, Any]) -> Servers:
    """The servers of a new run, at free ports unless flags name some."""
    ports = {}
    if "port" not in chosen:
        ports["port"] = free_ports(SITE_PORT, 1, chosen.get("host", ANYWHERE))
    if "dht_port" not in chosen:
        ports["dht_port"] = free_ports(DHT_PORT, 2, chosen.get("dht_host", ANYWHERE))
    return Servers(shards=shards, **chosen, **ports)


def free_ports(first: int, count: int, host: str) -> int:
    """Finds neighbouring ports that no program uses; returns the first of them.

    Raises:
        BadInput: If there are none among the next `PORTS_TRIED`.
    """
    for port in range(first, first + PORTS_TRIED):
        with suppress(OSError), ExitStack() as stack:
            for number in range(port, port + count):
                probe = stack.enter_context(socket.socket())
                # Without this, the system keeps the port of a server that has just ended for a minute.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, number))
            return port
    raise BadInput(f"Ports {first} to {first + PORTS_TRIED} are taken; give others with --port and --dht-port.")


def name_of(place: str) -> str:
    """Derives a run's name from the name of its data.

    >>> name_of("My texts/"), name_of("hf://OWNER/tiny.stories/en@main"), name_of("日記")
    ('my-texts', 'tiny-stories', 'my-run')
    """
    of_hub = ADDRESS.fullmatch(place)
    last = (place if of_hub is None else of_hub[1]).rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:60].strip("-") or "my-run"
