"""`monitor`: watch a run and show it on the web."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.commands.options import Invitation, LogJson, ScoringClip
from training.processes.servers.ports import ANYWHERE, DHT_PORT, SITE_PORT, listens_at

if TYPE_CHECKING:
    from training.processes.role import StopRequest

LEAVE_SECONDS = 8.0
"""Time after Ctrl-C or SIGTERM until the monitor is ended, most of it for a last checkpoint."""
InitialPeers = Annotated[
    list[str] | None,
    typer.Option(
        help="Address of a peer of the run, such as the bootstrap peer, or of a site that names such; may be repeated."
    ),
]
JoinCommand = Annotated[
    str | None,
    typer.Option(help="Command that the join page shows. Default: the one that needs only the site's address."),
]
DhtPort = Annotated[
    int,
    typer.Option(
        min=0, max=65535, help="TCP port at which peers reach this monitor; 0: a free one, the same after a restart."
    ),
]
HostMaddrs = Annotated[
    list[str] | None,
    typer.Option(help=f"Address to listen on for peers, such as {listens_at(DHT_PORT + 1)}; replaces --dht-port."),
]
AnnounceMaddrs = Annotated[
    list[str] | None,
    typer.Option(help="Address at which peers reach this machine, if it differs from the one it listens on."),
]

RunDir = Annotated[
    Path | None,
    typer.Option(help="Folder for history, checkpoints and pictures. Default: runs/RUN_ID, as of the bootstrap peer."),
]
OneMachine = Annotated[
    bool, typer.Option("--one-machine", help="All volunteers are programs on this machine: the pages say so.")
]
Shards = Annotated[
    Path | None,
    typer.Option(
        exists=True, file_okay=False, help="Prepared shards to serve, so that volunteers can stream from here."
    ),
]
Site = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Built site to serve along with the data.")
]
PublicUrl = Annotated[
    str | None, typer.Option(help="Address under which others reach this monitor. Default: http://HOST:PORT.")
]
Export = Annotated[
    Path | None,
    typer.Option(help="Write the run in --run-dir as static files into this folder and exit; needs no peer."),
]
PushTo = Annotated[
    str | None,
    typer.Option(
        help="Copy each checkpoint, with a model card, to this place as well: a folder, s3://BUCKET/PATH, "
        "hf://OWNER/NAME, or another address that fsspec knows. Keys come from the environment (AWS_..., HF_TOKEN)."
    ),
]
Backup = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Copy the history in --run-dir to this file and exit; the run's monitor may go on meanwhile. "
        "A monitor also makes copies by itself, into RUN_DIR/backups.",
    ),
]


def run(
    recipe: Annotated[str, typer.Option(help="The run's recipe: a name, a TOML file or a URL.")] = "demo",
    initial_peers: InitialPeers = None,
    run_dir: RunDir = None,
    shards: Shards = None,
    site: Site = None,
    host: Annotated[
        str, typer.Option(help=f"Address to serve at; {ANYWHERE} serves to other machines too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve at.")] = SITE_PORT,
    public_url: PublicUrl = None,
    join_command: JoinCommand = None,
    dht_port: DhtPort = 0,
    host_maddrs: HostMaddrs = None,
    announce_maddrs: AnnounceMaddrs = None,
    one_machine: OneMachine = False,
    invitation: Invitation = None,
    log_json: LogJson = None,
    push_to: PushTo = None,
    clip: ScoringClip = None,
    export: Export = None,
    backup: Backup = None,
) -> None:
    """Watch a run: record its history, checkpoints and pictures, and serve the dashboard's live data."""
    if export is not None:
        _export(_folder(run_dir, recipe), export)
        return
    if backup is not None:
        _back_up(_folder(run_dir, recipe), backup)
        return
    from training.errors import BadInput

    if not initial_peers:
        raise BadInput("No peer of the run is given. Give --initial-peers, an address that the bootstrap peer prints.")
    from training.processes.environment import prepare_environment
    from training.processes.role import run_role

    prepare_environment()
    settings = {
        "recipe": recipe,
        "initial_peers": tuple(initial_peers or ()),
        "run_dir": _folder(run_dir, recipe),
        "shards": shards,
        "site": site,
        "host": host,
        "port": port,
        "public_url": public_url,
        "join_command": join_command,
        "host_maddrs": tuple(host_maddrs or [listens_at(dht_port)]),
        "announce_maddrs": tuple(announce_maddrs or ()),
        "push_to": push_to,
        "clip": clip,
        "log_json": log_json,
        "one_machine": one_machine,
    }
    run_role(partial(_monitor, settings, invitation), begins_anew=True, grace_seconds=LEAVE_SECONDS)


def _folder(run_dir: Path | None, recipe: str) -> Path:
    """Folder of the run: the given one, or one named after the recipe's run."""
    from training.recipe import load_recipe

    return run_dir or Path("runs") / load_recipe(recipe).run_id


def _monitor(settings: dict[str, object], invitation: str | None, stop: StopRequest) -> None:
    """Runs the monitor: serves the run's checkpoints from the first second on, and then the whole site."""
    from training.checkpoints.serve.site import CheckpointSite

    checkpoints = settings["run_dir"] / "checkpoints"
    meanwhile = CheckpointSite(stop.start, checkpoints, host=settings["host"], port=settings["port"])
    # Only now: this import takes seconds, and brings hivemind, which reads the environment while it is imported.
    from training.roles.monitor import MonitorFlags, run_monitor
    from training.trust.client import Credentials

    flags = MonitorFlags(**settings, credentials=Credentials(invitation=invitation))
    run_monitor(flags, stop, meanwhile=meanwhile)


def _back_up(run_dir: Path, file: Path) -> None:
    """Copies the history in a monitor's folder, which may be in use."""
    from training.publish.history.backup import HISTORY_FILE, back_up

    back_up(run_dir / HISTORY_FILE, file)
    print(f"Wrote {file}.")


def _export(run_dir: Path, folder: Path) -> None:
    """Writes the run in a monitor's folder as static files."""
    from training.publish.history.history import HistoryReader
    from training.publish.live.live import export as export_run

    export_run(HistoryReader(run_dir / "history.sqlite"), folder, pictures=run_dir / "pictures")
    print(f"Wrote {folder / 'live'} and {folder / 'recipe.toml'}.")
