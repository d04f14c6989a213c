"""`serve`: a run's bootstrap peer and monitor in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.commands.options import InitialPeers, Invitation, LogJson, PushTo, ScoringClip, pass_on
from training.processes.servers.ports import ANYWHERE, DHT_PORT, SITE_PORT

RunDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder for identities, history, checkpoints and pictures; a second start in the same folder continues "
        "the run at the same address. Default: runs/RUN_ID."
    ),
]
Shards = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Prepared shards to serve. Default: volunteers take the recipe's."),
]
Site = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Built site to serve along with the data.")
]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        help="Address of the site for others, such as https://run.example. Default: this machine's, with --port."
    ),
]
DhtHost = Annotated[str, typer.Option(help="IP address at which both servers listen for peers.")]
DhtPort = Annotated[
    int,
    typer.Option(
        min=0,
        max=65534,
        help="TCP port of the bootstrap peer; the monitor takes the next one. 0: free ones, the same after a restart.",
    ),
]
AnnounceHost = Annotated[
    str | None,
    typer.Option(
        help="IP address or DNS name at which peers reach this machine, if it differs from its own, as behind a router "
        "that forwards both ports."
    ),
]


def run(
    recipe: Annotated[str, typer.Option(help="Recipe: a name, a TOML file or a URL.")],
    run_dir: RunDir = None,
    shards: Shards = None,
    site: Site = None,
    host: Annotated[
        str, typer.Option(help="Address at which the site is served; 127.0.0.1: only this machine, or a proxy on it.")
    ] = ANYWHERE,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the site.")] = SITE_PORT,
    public_url: PublicUrl = None,
    dht_port: DhtPort = DHT_PORT,
    dht_host: DhtHost = ANYWHERE,
    announce_host: AnnounceHost = None,
    initial_peers: InitialPeers = None,
    push_to: PushTo = None,
    clip: ScoringClip = None,
    invitation: Invitation = None,
    log_json: LogJson = None,
) -> None:
    """Serve a run: bootstrap peer and monitor in one, each started again if it ends."""
    from training.processes.events import EventLog
    from training.recipe import load_recipe
    from training.roles.serve import ServeSettings, run_serve

    settings = ServeSettings(
        recipe=recipe,
        run_dir=run_dir or Path("runs") / load_recipe(recipe).run_id,
        shards=shards,
        site=site,
        host=host,
        port=port,
        public_url=public_url,
        dht_port=dht_port,
        dht_host=dht_host,
        announce_host=announce_host,
        initial_peers=tuple(initial_peers or ()),
        push_to=push_to,
        clip=clip,
    )
    pass_on(invitation)
    run_serve(settings, events=EventLog(log_json))
