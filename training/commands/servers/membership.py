"""`membership`: the server that gives a run's members their tickets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.commands.options import LogJson
from training.trust.server.policy import HUB, MOST_WORK_BITS, Policy

_DEFAULT = Policy()

StateDir = Annotated[
    Path | None,
    typer.Option(help="Folder that keeps key, members and audit log. Default: runs/RUN_ID/membership."),
]
Organization = Annotated[
    list[str] | None,
    typer.Option(
        help="Members of this organization of the Hugging Face Hub may take part. May be given several times."
    ),
]
HubEndpoint = Annotated[str, typer.Option(help="Address of the Hub, if it is another than Hugging Face's.")]
WorkBits = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_WORK_BITS,
        help="Let anybody in who computes for it, as a member whom nobody vouches for; each bit doubles the work, and "
        "20 take a second or two. 0: nobody.",
    ),
]
TicketMinutes = Annotated[int, typer.Option(min=1, max=24 * 60, help="Minutes within which a ticket is renewed.")]
GraceHours = Annotated[
    float, typer.Option(min=0, max=7 * 24, help="Hours for which tickets hold after that while this server is away.")
]
PeersPerAccount = Annotated[int, typer.Option(min=1, max=10_000, help="Peers of one account that may train at once.")]
TrustedProxy = Annotated[
    list[str] | None,
    typer.Option(
        help="Address of a proxy in front of this server, whose word about the asker's address is believed. May be "
        "given several times. Default: 127.0.0.1."
    ),
]


def run(
    recipe: Annotated[str, typer.Option(help="Recipe: a name, a TOML file or a URL.")],
    state_dir: StateDir = None,
    hub_organization: Organization = None,
    hub_endpoint: HubEndpoint = HUB,
    work_bits: WorkBits = 0,
    ticket_minutes: TicketMinutes = _DEFAULT.ticket_seconds // 60,
    grace_hours: GraceHours = _DEFAULT.grace_seconds / 3600,
    peers_per_account: PeersPerAccount = _DEFAULT.peers_per_account,
    host: Annotated[
        str, typer.Option(help="Address to listen at; others reach it through a proxy with TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8001,
    trusted_proxy: TrustedProxy = None,
    log_json: LogJson = None,
) -> None:
    """Decide who may take part in a run: give tickets to the members of an organization, and to those invited."""
    from training.processes.events import EventLog
    from training.processes.role import run_role
    from training.recipe import load_recipe
    from training.roles.membership_server import MembershipSettings, run_membership

    config = load_recipe(recipe)
    settings = MembershipSettings(
        state_dir=state_dir or Path("runs") / config.run_id / "membership",
        policy=Policy(
            organizations=tuple(hub_organization or ()),
            hub_endpoint=hub_endpoint,
            work_bits=work_bits,
            ticket_seconds=60 * ticket_minutes,
            grace_seconds=round(3600 * grace_hours),
            peers_per_account=peers_per_account,
        ),
        host=host,
        port=port,
        proxies=tuple(trusted_proxy or ["127.0.0.1"]),
    )
    run_role(lambda stop: run_membership(config, settings, stop=stop, events=EventLog(log_json)))
