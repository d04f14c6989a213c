"""Connection of a peer to its run: the DHT node, and what was measured of the network while connecting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from training.processes.rate import RateLimit
from training.recipe import RunConfig
from training.swarm.engine import calls
from training.swarm.node.addresses import answer_seconds, settle_ports
from training.swarm.node.admission import Admission
from training.swarm.node.dht import DHT, full_addresses
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import is_name
from training.swarm.run.online import find_run, go_online
from training.swarm.run.reach import ReachChanged
from training.swarm.run.redial import Redial
from training.swarm.run.servers import servers_at
from training.volunteer.settings import PeerSettings
from training.volunteer.startup import Link

NAME_FILE = "name"
"""File in the state folder with the name of a peer that has changed its identity; see `copies`."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """A DHT node that has found the run, in which the others train the same recipe."""

    run: RunConfig
    settings: PeerSettings
    identity: Identity
    redial: Redial
    """Keeps the node in touch with the run."""
    addresses: tuple[str, ...]
    """Addresses at which others reach this peer; empty if they do not."""
    link: Link
    named: frozenset[str]
    """Peer ids that the run's site names as its servers."""

    @property
    def client_mode(self) -> bool:
        """True if this peer accepts no connections: the volunteer wants it so, or others do not reach it."""
        return self.link.reach == "client"

    def check_reach(self) -> None:
        """Raises `ReachChanged` if others reach this peer in another way than at its start."""
        if self.redial.has_moved:
            raise ReachChanged("The way to this peer has changed.")

    @property
    def dht(self) -> DHT:
        """This peer's node."""
        return self.redial.dht

    @property
    def reaches_servers(self) -> bool:
        """Returns True if any server of the run accepts a connection now."""
        return bool(answer_seconds(self.redial.servers.addresses))

    @property
    def name(self) -> str:
        """Name of this peer on the leaderboard: the volunteer's choice, that of its last identity, or one made from its
        id."""
        kept = ""
        with suppress(OSError, ValueError):
            kept = self.identity.path.with_name(NAME_FILE).read_text(encoding="utf-8")
        return self.settings.name or (kept if is_name(kept) else f"volunteer-{str(self.identity.peer_id)[-4:]}")


def connect(
    run: RunConfig,
    settings: PeerSettings,
    identity: Identity,
    warn: Callable[[str], None],
    admission: Admission | None = None,
) -> Connection:
    """Starts a DHT node, checks that the run has this recipe, and stays in touch with the run.

    Args:
        run: The recipe.
        settings: Settings of this peer.
        identity: Identity of this peer.
        warn: Called with a sentence when the run's servers are gone, and when they are back.
        admission: Checks the tickets of other peers; None in an open run.

    Raises:
        BadInput: If an address is malformed, or a port that was given is taken.
        RefusedByRun: If the run trains another recipe.
        TrainingError: If neither an initial peer nor a peer that this one has met before answers; it waits two minutes
            for these if it has met some.
    """
    if settings.max_upload_mbits is not None:
        calls.Connection.upload = RateLimit(settings.max_upload_mbits * 1e6 / 8)
    start = partial(_start, run, settings, identity, warn, admission)
    redial = start()
    if not settings.client_mode:
        redial.reach = redial.find_reach() or "direct"
        if redial.reach == "client":
            redial.stop()
            redial.dht.shutdown()
            redial = start(is_relayed=True)
            redial.look_for_relay()
    find_run(redial, run, warn)
    reach = redial.reach or "client"
    addresses = () if reach == "client" else tuple(full_addresses(redial.dht))
    answers = answer_seconds(redial.servers.addresses)
    link = Link(reach=reach, answer_seconds=tuple(seconds for seconds in answers if seconds is not None))
    facts = {"addresses": addresses, "link": link, "named": servers_at(settings.site)}
    return Connection(run=run, settings=settings, identity=identity, redial=redial, **facts)


def _start(
    run: RunConfig,
    settings: PeerSettings,
    identity: Identity,
    warn: Callable[[str], None],
    admission: Admission | None,
    *,
    is_relayed: bool = False,
) -> Redial:
    """Starts the node; `is_relayed` if the run's servers cannot connect to it."""
    host_maddrs = settings.host_maddrs
    if not settings.client_mode:  # at the port of the last start, where the others call it when no server is left
        host_maddrs = settle_ports(identity.path.parent, host_maddrs)
    return go_online(
        run,
        identity,
        settings.initial_peers,
        host_maddrs=host_maddrs,
        announce_maddrs=settings.announce_maddrs,
        client_mode=settings.client_mode,
        is_relayed=is_relayed,
        admission=admission,
        tell=warn,
    )
