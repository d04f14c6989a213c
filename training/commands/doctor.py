"""`doctor`: why this machine cannot join a run, or what will go badly."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from training.doctor import LIMIT_SECONDS
from training.errors import BadInput

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

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings that let words of `join` through; `_others` refuses flags that `join` does not have either."""


def run(
    context: typer.Context,
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

    Without flags it checks the machine; with the address or flags of `join` also the way to the run: in a copied
    command, write `doctor` for `join`. It ends with 0 if nothing keeps this machine from joining, and with 1 if
    something does.
    """
    address = _address_among(context)
    import time

    from training.doctor import show
    from training.doctor.catalogue import CHECKS
    from training.doctor.examination import run_checks
    from training.doctor.facts import Asked

    for peer in initial_peers or ():
        _check_address(peer)
    asked = Asked(
        recipe=recipe or address,
        initial_peers=tuple(initial_peers or ()),
        shards=shards,
        state_dir=state_dir,
        host_maddrs=tuple(host_maddrs or Asked().host_maddrs),
        client_mode=client_mode,
        device=device,
    )
    began = time.monotonic()
    findings = []
    if as_json:
        findings += run_checks(CHECKS, asked, limit_seconds=seconds)
        print(show.as_json(findings, time.monotonic() - began))
    else:
        with show.rows() as (wait, add):
            for finding in run_checks(CHECKS, asked, limit_seconds=seconds, waits=wait):
                add(finding)
                findings.append(finding)
        show.show_remedies(findings, time.monotonic() - began)
    sys.stdout.flush()
    os._exit(0 if show.can_join(findings) else 1)  # a check that hangs, such as for a name, must not hold it up


def _check_address(given: str) -> None:
    """Refuses an address that is neither a peer's full address nor a site's.
    `join` checks by hivemind, which may be broken.

    Raises:
        BadInput: If the address is neither.
    """
    if not re.fullmatch(r"https?://.+|/(ip4|ip6|dns|dns4|dns6)/[^/]+/tcp/\d{1,5}/p2p/\w+", given):
        raise BadInput(
            f"{given!r} is not the full address of a peer, such as /ip4/203.0.113.7/tcp/31337/p2p/QmPeerId.",
            cure="Copy the whole address from the bootstrap peer's output, or give that of the run's site.",
        )


def _address_among(context: typer.Context) -> str | None:
    """Returns the run's address among words that only `join` has; its other words are ignored.

    Raises:
        BadInput: If `join` does not have a flag either.
    """
    join = context.parent.command.get_command(context, "join")
    known = {flag for option in join.params for flag in (*option.opts, *option.secondary_opts)}
    for word in context.args:
        if word.startswith("-") and word.partition("=")[0] not in known:
            raise BadInput(
                f"There is no flag {word.partition('=')[0]}.",
                cure="Give those of `join`; `doctor --help` lists those that it looks at.",
            )
    given, _, _ = join.make_parser(context).parse_args(list(context.args))
    return given.get("address")
