"""Start of a peer's connection to a run: its node starts, finds the run, and stays in touch with it from then on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from training.errors import BadInput, TrainingError
from training.recipe import RunConfig
from training.swarm.node.addresses import id_of
from training.swarm.node.admission import Admission
from training.swarm.node.clocks import WrongClock, check_clock
from training.swarm.node.dht import UnknownRun, answering, check_recipe, start_dht
from training.swarm.node.identity import Identity
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.run.address_book import AddressBook
from training.swarm.run.redial import Pace, Redial
from training.swarm.run.servers import Servers

FIRST_CALL_SECONDS = 20.0
"""Longest wait at the start for the first answers of peers that this peer has met before."""
COMPANY_SECONDS = 120.0
"""Longest wait for an answer of any peer of the address book or a server; a server that reboots is back by then."""


def go_online(
    run: RunConfig,
    identity: Identity,
    initial_peers: Sequence[str],
    *,
    host_maddrs: Sequence[str],
    announce_maddrs: Sequence[str] = (),
    client_mode: bool = False,
    is_relayed: bool = False,
    admission: Admission | None = None,
    may_be_alone: bool = False,
    tell: Callable[[str], None] = lambda sentence: None,
    pace: Pace | None = None,
) -> Redial:
    """Starts a node that keeps calling the run's servers; its address book is kept beside the identity.

    If no server answers, the node begins with the peers of the address book.

    Args:
        run: The recipe of the run.
        identity: Key of this peer.
        initial_peers: Addresses as for `Servers`; empty for the first node of a run.
        host_maddrs, announce_maddrs, client_mode, is_relayed, admission: Arguments of `start_dht`.
        may_be_alone: True for a server, which relays for peers that others cannot reach. If it has met others before,
            it may come back before all of them.
        tell: Called with messages for the volunteer; see `Redial`.
        pace: Pauses of the calls; see `Redial`.

    Raises:
        BadInput: If an address is malformed.
        TrainingError: If nobody answers, or the node does not start.
        WrongClock: If this machine's clock differs from the others'.
    """
    servers = Servers(initial_peers)
    faults = servers.ask_sites()
    book = AddressBook(identity.path.with_name("address_book.json"))
    others = [address for address in servers.addresses if id_of(address) != str(identity.peer_id)]
    listening = {"host_maddrs": host_maddrs, "announce_maddrs": announce_maddrs, "client_mode": client_mode}
    listening |= {"is_server": may_be_alone, "is_relayed": is_relayed}
    start, nobody = partial(start_dht, run, identity, **listening, admission=admission), None
    try:
        if faults and not servers.addresses:
            raise faults[0]
        dht = start(initial_peers=answering(others) if others else [])
    except (BadInput, WrongClock):
        raise
    except TrainingError as error:  # also if the servers that answered are gone before the node has called them
        if not book.peers():
            raise
        nobody, dht = error, start()
    redial = Redial(dht, servers, book, tell=tell, pace=pace)
    if nobody is not None:
        tell(f"No server of the run answers; calling the {redial.met_before} peers that this one has met before.")
    # A peer that was here before waits until it has found the others. Otherwise a bootstrap peer would let newcomers
    # into a run that seems empty, and a monitor or a volunteer would not see the training peers.
    redial.start(FIRST_CALL_SECONDS if nobody is not None or redial.met_before else 0.0)
    if nobody is not None and not may_be_alone:
        _await_company(redial, nobody, tell)
    return redial


def find_run(redial: Redial, run: RunConfig, tell: Callable[[str], None]) -> None:
    """Compares this peer's recipe with the recipes that the peers of the run announce.

    A volunteer announces the recipe only after it has found the run, and a monitor only after it has looked for others.
    So if all volunteers and servers have been away, returning volunteers first wait for a server, also for one that
    answers already.

    Args:
        redial: Thread that calls the run's servers; this peer is no server.
        run: The recipe.
        tell: Called with a sentence if this peer waits.

    Raises:
        RefusedByRun: If no peer trains this recipe, or no peer knows the run.
    """
    try:
        check_recipe(redial.dht, run)
    except UnknownRun:
        if not redial.met_before:
            raise
        tell(
            f"The peers that answer do not know the run {run.run_id} yet. If they have just come back themselves, a "
            f"server soon tells them. Waiting for that for {COMPANY_SECONDS:.0f} s."
        )
        check_recipe(redial.dht, run, patience_seconds=COMPANY_SECONDS)


def _await_company(redial: Redial, error: TrainingError, tell: Callable[[str], None]) -> None:
    """Waits until a peer of the address book or a server answers, and until this machine's clock is known to be right.

    Raises:
        TrainingError: If nobody answers.
        WrongClock: If this machine's clock differs from the others'.
    """
    deadline, told = time.monotonic() + COMPANY_SECONDS, False
    while not redial.reachability().peers and time.monotonic() < deadline:
        if not told:
            told = True
            tell(f"None of them answers. Calling all of them, and the servers, for {COMPANY_SECONDS:.0f} s.")
        time.sleep(POLL_SECONDS)
    if not redial.reachability().peers:
        redial.stop()
        raise TrainingError(
            f"{error} The {redial.met_before} peers that this one has met before have not answered within "
            f"{COMPANY_SECONDS:.0f} s either.",
            cure="Look at the run's page, whether the run is still on; if it is, check your connection.",
        ) from None
    _check_clock(redial, tell)


def _check_clock(redial: Redial, tell: Callable[[str], None]) -> None:
    """Checks that this machine's clock agrees with the others'. If one peer contradicts it, a third one decides."""
    deadline, told = time.monotonic() + COMPANY_SECONDS, False
    with suppress(TimeoutError):  # a busy node; nothing is known of the clock then
        while disputed := check_clock(redial.dht, redial.servers.ids):
            if time.monotonic() > deadline:
                raise WrongClock(disputed)
            if not told:
                told = True
                tell(
                    f"The clock of the only peer that answers differs from this one by {abs(disputed):.0f} s. Waiting "
                    f"for another peer, which decides, for {COMPANY_SECONDS:.0f} s."
                )
            time.sleep(POLL_SECONDS)
