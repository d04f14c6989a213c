"""`bootstrap`: starts a run's first peer, which welcomes the others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.commands.options import Invitation, LogJson
from training.processes.servers.ports import DHT_PORT, listens_at


def run(
    recipe: Annotated[
        str,
        typer.Option(
            help="Recipe: a name or a TOML file; or the address of the run's site, which names the other servers too."
        ),
    ],
    state_dir: Annotated[
        Path | None, typer.Option(help="Folder that keeps identity, port and known peers for the next start.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port to listen on; 0: a free one, the same after a restart.")
    ] = 0,
    host_maddrs: Annotated[
        list[str] | None,
        typer.Option(help=f"Address to listen on, such as {listens_at(DHT_PORT)}; replaces --port."),
    ] = None,
    announce_maddrs: Annotated[
        list[str] | None,
        typer.Option(help="Address at which others reach this machine, if it differs from the one it listens on."),
    ] = None,
    initial_peers: Annotated[
        list[str] | None,
        typer.Option(
            help="Another bootstrap peer of the run, or its monitor: /ip4/ADDRESS/tcp/PORT/p2p/ID, or the run's site. "
            "Default: the site that has the recipe."
        ),
    ] = None,
    invitation: Invitation = None,
    brief: Annotated[
        bool, typer.Option("--brief", help="List only who joins and leaves, without commands for others.")
    ] = False,
    log_json: LogJson = None,
) -> None:
    """Start a run: welcome volunteers at a fixed address."""
    from training.processes.environment import prepare_environment
    from training.processes.role import run_role
    from training.volunteer.address import find_run

    found = find_run(recipe)
    config, site = found.run, found.given_site
    prepare_environment()

    def role(stop):
        from rich.console import Console

        from training.processes.events import EventLog
        from training.roles.bootstrap import BootstrapSettings, run_bootstrap
        from training.trust.client import Credentials

        settings = BootstrapSettings(
            state_dir=state_dir or Path("runs") / config.run_id / "bootstrap",
            host_maddrs=tuple(host_maddrs or [listens_at(port)]),
            announce_maddrs=tuple(announce_maddrs or ()),
            initial_peers=tuple(initial_peers or ([site] if site is not None else ())),
            recipe=recipe,
            credentials=Credentials(invitation=invitation),
            brief=brief,
        )
        console = Console(highlight=False, soft_wrap=True)
        run_bootstrap(config, settings, stop=stop, events=EventLog(log_json), console=console)

    run_role(role, begins_anew=True)
