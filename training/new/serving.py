"""Starts the servers of a run that has a folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from training.data.store.shards import read_manifest
from training.demo.config import short_command
from training.new.folder import LOGS, RECIPE, Servers, held_out_words, write_readme
from training.processes.events import EventLog
from training.publish.invitation import PROGRAM
from training.recipe import load_recipe
from training.roles.serve import ServeSettings, print_text, run_serve

BUILT_SITE = Path("public")
"""Folder in which `nox -s site` builds the site."""


def serve(folder: Path, servers: Servers, *, log_json: Path | None = None) -> None:
    """Serves the run of a folder until Ctrl-C, and writes its README once the servers are ready."""
    title = load_recipe(str(folder / RECIPE)).title
    held_out = held_out_words(read_manifest(folder / servers.shards))
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
        clip=servers.clip,
        initial_peers=tuple(servers.initial_peers),
    )

    def note(event: dict) -> None:
        if event["event"] == "ready" and "role" not in event:
            write_readme(folder, title, _commands(folder, event["join_command"]), held_out)

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
    join = join.replace(PROGRAM, program, 1)  # the program here may not be on the PATH
    return [
        ("Start the servers; Ctrl-C ends them, and the next start goes on:", start_command(folder)),
        ("Take part, here or on any computer that has the project:", join),
        ("Use what it has learned so far:", f'{program} generate "How it begins" --checkpoint {where}'),
    ]
