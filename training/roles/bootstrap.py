"""Bootstrap peer: welcomes newcomers at a fixed address, and announces the recipe of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from training.checkpoints.folders import STATE_FOLDER
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.processes.role import StopRequest
from training.publish.invitation import command_for
from training.recipe import RunConfig
from training.swarm.node.addresses import reach_of, settle_ports
from training.swarm.node.admission import Admission
from training.swarm.node.dht import DHT, MESSAGE_SECONDS, check_node, full_addresses, post_recipe
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import read_believable
from training.swarm.run.online import go_online
from training.swarm.run.server_lineage import ServerLineage
from training.trust.client import Credentials
from training.trust.member import Member, MemberStop

LOOK_SECONDS = 5.0
"""Interval at which the bootstrap peer checks which volunteers are present."""


@dataclass(frozen=True, kw_only=True)
class BootstrapSettings:
    """Settings of the bootstrap peer on this machine; the recipe has those of the run."""

    state_dir: Path
    """Folder of the identity and the port, so that a restart has the same address, and of the address book. The monitor
    whose state folder lies beside it is trusted."""
    host_maddrs: tuple[str, ...]
    """Addresses to listen on; port 0 becomes a free one, which the state folder keeps."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses at which others reach the bootstrap peer, if they differ from `host_maddrs`."""
    initial_peers: tuple[str, ...] = ()
    """Addresses of further servers of the run, or of its site."""
    recipe: str = ""
    """Name of the recipe in the command that is printed for volunteers; empty: the run's name."""
    credentials: Credentials = field(default=Credentials(), repr=False)
    """Credentials that this server may show to the membership server, in a run that admits members only."""
    brief: bool = False
    """True to print no commands for others: the program that has started this one prints its own."""


def run_bootstrap(
    run: RunConfig, settings: BootstrapSettings, *, stop: StopRequest, events: EventLog, console: Console
) -> None:
    """Serves until `stop` is requested.

    Raises:
        BadInput, TrainingError: The errors of `go_online`, `settle_ports` and `check_node`.
        RefusedByRun: If the membership server gives this server no ticket.
    """
    identity = Identity(settings.state_dir)
    notices = Notices(events=events, console=console)
    admission = Admission.of(run)
    member = Member(run, identity, settings.credentials, admission, settings.state_dir, notices)
    redial = go_online(
        run,
        identity,
        settings.initial_peers,
        host_maddrs=settle_ports(settings.state_dir, settings.host_maddrs),
        announce_maddrs=settings.announce_maddrs,
        may_be_alone=True,
        admission=admission,
        tell=partial(console.print, markup=False),
    )
    stop.listen()
    post_recipe(redial.dht, run, identity)
    lineage = ServerLineage(
        redial.dht,
        run,
        identity,
        settings.state_dir,
        servers=redial.servers,
        beside=settings.state_dir.parent / STATE_FOLDER,
        tell=partial(console.print, markup=False),
    )
    member.bind(lineage.lineage)
    addresses = full_addresses(redial.dht)
    facts = {"peer_id": str(identity.peer_id), "recipe_digest": run.digest, "lineage": lineage.lineage.id}
    events.write("ready", addresses=addresses, **facts)
    if warning := of_strangers(run, addresses):
        notices.warn(warning)
    if not settings.brief:
        _greet(run, settings, addresses, console)
    _welcome(run, identity, redial.dht, lineage, member, member.until_refused(stop), console)
    redial.stop()
    events.write("stopped")
    member.check()


def of_strangers(run: RunConfig, addresses: Sequence[str]) -> str | None:
    """Warning for the maintainer of a run that strangers can reach and spoil; None if they cannot.

    Args:
        run: Recipe, which says who may take part, and how peers average.
        addresses: Addresses of this server that others get.
    """
    if not run.membership.open or run.swarm.aggregation != "mean" or not any(map(reach_of, addresses)):
        return None
    # The recipe refuses centered-clip together with local updates or PowerSGD.
    clips = not run.swarm.local_updates and not run.swarm.powersgd_rank
    other = ' or average by aggregation = "centered-clip"' if clips else ""
    return (
        "Warning: whoever learns these addresses may take part, and one hostile volunteer can spoil the mean of all. "
        f"Give them to people you trust. For others, let the recipe admit members only ([membership]){other}."
    )


def _greet(run: RunConfig, settings: BootstrapSettings, addresses: list[str], console: Console) -> None:
    """Prints the run's addresses, and the commands with which others join it."""
    console.print(Text.assemble("The run ", (run.run_id, "bold"), f" (recipe {run.digest}) can be joined at"))
    for address in addresses:
        console.print(f"    {address}", markup=False)
    recipe = settings.recipe or run.run_id
    console.print("Give volunteers this command:")
    console.print(f"    {command_for('join', recipe, addresses[:1])}", markup=False)
    if "/127.0.0.1/" in addresses[0]:
        console.print(
            "It works only on this machine; --host-maddrs (behind a router: --announce-maddrs) lets other machines in."
        )
    if Path(recipe).is_file():
        console.print(f"They also need the file {recipe}, or a monitor that serves it.", markup=False)
    console.print("Watch the run and keep its checkpoints with")
    console.print(f"    {command_for('monitor', recipe, addresses[:1])}", markup=False)
    console.print("Volunteers who join or leave are listed below. Ctrl-C stops this peer.")


def _welcome(
    run: RunConfig,
    identity: Identity,
    dht: DHT,
    lineage: ServerLineage,
    member: Member,
    stop: MemberStop,
    console: Console,
) -> None:
    """Lists peers that join and leave, and renews this peer's announcements, until `stop` is requested."""
    seen: dict[str, str] = {}
    waited = 0.0
    while not stop.wait(LOOK_SECONDS):
        check_node(dht)
        waited += LOOK_SECONDS
        if waited >= MESSAGE_SECONDS / 3:
            waited = 0.0
            post_recipe(dht, run, identity)
        try:
            records = read_believable(dht, run)
        except TimeoutError:
            continue
        if lineage.renew(records):
            member.bind(lineage.lineage)
        there = {r.peer_id: r.name for r in records if r.status != "leaving"}
        for peer_id in there.keys() - seen.keys():
            console.print(f"{there[peer_id]} has joined ({len(there)} in all).", markup=False)
        for peer_id in seen.keys() - there.keys():
            console.print(f"{seen[peer_id]} has left ({len(there)} in all).", markup=False)
        seen = there
