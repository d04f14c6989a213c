"""`doctor`: why this machine cannot join a run, or what will go badly."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from training.doctor.examination import LIMIT_SECONDS

Recipe = Annotated[str | None, typer.Option(help="Recipe of the run, as for `join`: a name, a TOML file or a URL.")]
InitialPeers = Annotated[
    list[str] | None,
    typer.Option(help="Address of a peer of the run, as for `join`, or of the run's site. May be given several times."),
]
Shards = Annotated[str | None, typer.Option(help="Folder or URL of the shards. Default: the recipe's.")]
StateDir = Annotated[Path | None, typer.Option(help="Folder that will keep your identity, as for `join`.")]
HostMaddrs = Annotated[list[str] | None, typer.Option(help="Address to listen on, as for `join`.")]
ClientMode = Annotated[bool, typer.Option("--client-mode", help="You will join with --client-mode.")]
Device = Annotated[str | None, typer.Option(help="Device that you will join with: cpu, cuda, cuda:1 and so on.")]
Seconds = Annotated[
    float,
    typer.Option(min=5, max=600, help="Longest time; what is not known by then is reported as such."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the list.")]


def run(
    recipe: Recipe = None,
    initial_peers: InitialPeers = None,
    shards: Shards = None,
    state_dir: StateDir = None,
    host_maddrs: HostMaddrs = None,
    client_mode: ClientMode = False,
    device: Device = None,
    seconds: Seconds = LIMIT_SECONDS,
    as_json: Json = False,
) -> None:
    """Find out within 20 seconds what keeps this machine from joining a run, and what to do about it.

    Without flags it checks the machine; with the flags of `join` also the way to the run. It ends with 0 if nothing
    keeps this machine from joining, and with 1 if something does.
    """
    import time

    from training.doctor import show
    from training.doctor.checks import CHECKS, Shared
    from training.doctor.examination import Asked, run_checks
    from training.doctor.peers import parted
    from training.doctor.web import is_url
    from training.processes.environment import prepare_environment

    for address in initial_peers or ():
        if not is_url(address):
            parted(address)
    prepare_environment()
    asked = Asked(
        recipe=recipe,
        initial_peers=tuple(initial_peers or ()),
        shards=shards,
        state_dir=state_dir,
        host_maddrs=tuple(host_maddrs or Asked().host_maddrs),
        client_mode=client_mode,
        device=device,
    )
    began = time.monotonic()
    with Shared(asked, limit_seconds=seconds) as shared:
        findings = run_checks(CHECKS, shared, limit_seconds=seconds)
    took = time.monotonic() - began
    if as_json:
        print(show.as_json(findings, took))
    else:
        show.show(findings, took)
    sys.stdout.flush()
    os._exit(0 if show.can_join(findings) else 1)  # a check that hangs, such as for a name, must not hold it up
