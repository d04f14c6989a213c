"""`new`: makes a run, from a folder of data to its servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from training.commands.options import InitialPeers, Invitation, LogJson, PushTo, ScoringClip, pass_on
from training.processes.servers.ports import DHT_PORT, SITE_PORT

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Folder or file of text, folder of pictures with captions, prepared shards, or a data set of the Hugging "
        "Face Hub, hf://OWNER/NAME. Or the folder of a run that exists: its servers start again.",
    ),
]
RunDir = Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME, named after the data.")]
Volunteers = Annotated[
    list[str] | None,
    typer.Option(
        help="Volunteers that you expect, COUNT:DEVICE such as 3:cpu or 30:t4, or with their links 30:t4:20/100 "
        "(Mbit/s up and down). May be repeated. Default: two computers like this one."
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="BASE",
        help="Fine-tune this language model with adapters (LoRA) instead of training one from the beginning: an id of "
        "the Hugging Face Hub, or a folder that every volunteer has. Needs text.",
    ),
]
Days = Annotated[float | None, typer.Option(min=0.01, help="Days that the training may take. Default: 1.")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Name or address at which others reach this machine, or the site's address behind a proxy, https://NAME. "
        "Default: this machine's own addresses."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing: take the default of each flag that is not given.")]
Title = Annotated[str | None, typer.Option(help="Title for the dashboard. Default: the folder's name.")]
Captions = Annotated[Path | None, typer.Option(help="File of the pictures' captions, as for `prepare`.")]
TextColumn = Annotated[str | None, typer.Option(help="Key or column of text or captions, as for `prepare`.")]
ImageColumn = Annotated[str | None, typer.Option(help="Key or column of pictures, as for `prepare`.")]
NoServe = Annotated[bool, typer.Option("--no-serve", help="Prepare and write everything, and start no servers.")]
Site = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="Built site to serve. Default: public, if there is such a folder."),
]
Host = Annotated[
    str | None, typer.Option(help="Address at which the site is served; 127.0.0.1: only this machine. Default: all.")
]
Port = Annotated[
    int | None, typer.Option(min=1, max=65535, help=f"Port of the site. Default: {SITE_PORT}, or a free one.")
]
DhtHost = Annotated[str | None, typer.Option(help="IP address at which the servers listen for peers. Default: all.")]
DhtPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65534,
        help=f"TCP port of the bootstrap peer; the monitor takes the next. Default: {DHT_PORT}, or free ones.",
    ),
]


def run(
    data: Data,
    run_dir: RunDir = None,
    base: From = None,
    volunteers: Volunteers = None,
    days: Days = None,
    address: Address = None,
    yes: Yes = False,
    title: Title = None,
    captions: Captions = None,
    text_column: TextColumn = None,
    image_column: ImageColumn = None,
    no_serve: NoServe = False,
    site: Site = None,
    host: Host = None,
    port: Port = None,
    dht_host: DhtHost = None,
    dht_port: DhtPort = None,
    push_to: PushTo = None,
    clip: ScoringClip = None,
    initial_peers: InitialPeers = None,
    invitation: Invitation = None,
    log_json: LogJson = None,
) -> None:
    """Make a run of your own data, and start its servers; given a run's folder, start its servers again."""
    from training.new.folder import RECIPE, change_servers
    from training.new.serving import serve, start_command

    servers = {"host": host, "port": port, "dht_host": dht_host, "dht_port": dht_port, "address": address}
    servers |= {"site": None if site is None else str(site), "push_to": push_to, "clip": clip}
    servers["initial_peers"] = initial_peers
    servers = {name: value for name, value in servers.items() if value is not None}
    if (Path(data) / RECIPE).is_file():
        folder, started = Path(data), change_servers(Path(data), servers)
    else:
        from training.new.begin import Given, begin

        given = Given(
            data=data,
            run_dir=run_dir,
            volunteers=volunteers or (),
            days=days,
            title=title,
            asks=not yes and sys.stdin.isatty() and sys.stdout.isatty(),
            reading={"base": base, "captions": captions, "text_column": text_column, "image_column": image_column},
            servers=servers,
        )
        folder, started = begin(given, lambda line: print(line, flush=True))
    if no_serve:
        print(f"Start the servers with:\n    {start_command(folder)}")
    else:
        pass_on(invitation)
        serve(folder, started, log_json=log_json)
