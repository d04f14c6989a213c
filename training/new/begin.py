"""Begins a new run: looks at the data, asks, makes the run's folder, and starts its servers.

In a folder that has a run already, only the servers start.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from training.demo.config import short_command
from training.new.folder import (
    LOGS,
    RECIPE,
    Servers,
    free_ports,
    name_of,
    read_servers,
    write_readme,
    write_servers,
)
from training.new.found import Found, look
from training.new.make import NewRun, make_run
from training.new.plan import Wanted, people_of
from training.new.questions import HOW_LONG, USUAL_DAYS, WHERE, WHO, ask, days_of, usual_volunteers
from training.processes.events import EventLog
from training.processes.progress import show_progress
from training.processes.servers.ports import ANYWHERE, DHT_PORT, SITE_PORT
from training.publish.invitation import PROGRAM
from training.recipe import load_recipe
from training.roles.serve import ServeSettings, print_text, run_serve

BUILT_SITE = Path("public")
"""Folder in which `nox -s site` builds the site."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Values of the flags of `new`."""

    data: str
    """Data, or the folder of a run."""
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
    is_run = (Path(given.data) / RECIPE).is_file()
    folder = Path(given.data) if is_run else given.run_dir or Path("runs") / name_of(given.data)
    if (folder / RECIPE).is_file():
        if not is_run:
            say(f"{folder} has a run already, which goes on. To make another one of these data, give --run-dir.")
        return folder, _kept(folder, given.servers)
    found = look(given.data)
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


def _kept(folder: Path, chosen: dict[str, Any]) -> Servers:
    """The servers of a run that exists; flags change how they are started from now on."""
    kept = read_servers(folder)
    servers = replace(kept, **chosen)
    if servers != kept:
        write_servers(folder, servers)
    return servers


def serve(folder: Path, servers: Servers, *, log_json: Path | None = None) -> None:
    """Serves the run of a folder until Ctrl-C, and writes its README once the servers are ready."""
    title = load_recipe(str(folder / RECIPE)).title
    site = Path(servers.site) if servers.site else BUILT_SITE
    settings = ServeSettings(
        recipe=str(folder / RECIPE),
        run_dir=folder,
        shards=folder / servers.shards,
        site=site if site.is_dir() else None,
        host=servers.host,
        port=servers.port,
        public_url=servers.public_url,
        dht_host=servers.dht_host,
        dht_port=servers.dht_port,
        announce_host=servers.announce_host,
        push_to=servers.push_to,
        initial_peers=tuple(servers.initial_peers),
    )

    def note(event: dict) -> None:
        if event["event"] == "ready" and "role" not in event:
            write_readme(folder, title, _commands(folder, event["join_command"]))

    if settings.site is None:
        print(f"No site is served, because there is no {site}; `nox -s site` builds it.")
    print("Starting the servers, which takes some seconds ...", flush=True)
    log = folder / LOGS / "servers.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as kept:

        def show(text: str) -> None:
            print_text(text)
            kept.write(f"{text}\n")

        run_serve(settings, events=EventLog(log_json or log.with_suffix(".jsonl"), listener=note), show=show)


def start_command(folder: Path) -> str:
    """The command that starts the servers of a run again."""
    return shlex.join([*short_command((sys.executable, "-m", "training")), "new", str(folder)])


def _commands(folder: Path, join: str) -> list[tuple[str, str]]:
    program = shlex.join(short_command((sys.executable, "-m", "training")))
    where = shlex.quote(str(folder))
    join = join.replace(PROGRAM, program, 1)  # of this environment, which need not be on the PATH
    return [
        ("Start the servers; Ctrl-C ends them, and the next start goes on:", start_command(folder)),
        ("Take part, here or on any computer that has the project:", join),
        ("Use what it has learned so far:", f'{program} generate "How it begins" --checkpoint {where}'),
    ]
