"""Checks of the way to the run's peers and back: addresses, connections, identities, this machine's port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from training.doctor.examination import TOO_SLOW
from training.doctor.facts.addresses import ADDRESS, Answer, parted
from training.doctor.facts.web import Unfetched, is_url, proxy_of
from training.doctor.finding import Fault, Finding, fine, skipped
from training.doctor.probes.children import NoAnswer

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

REFUSED = Fault(
    name="peers-refuse",
    why="The machine is there, but no peer listens on that port, so this machine finds nobody to train with.",
    remedy="Copy the addresses from the join page again. If they are right, the run's bootstrap peer is off.",
)
SILENT = Fault(
    name="peers-silent",
    why="No answer at all: the machine is off, or a firewall, here or there, drops what this machine sends.",
    remedy="Try another network, such as a phone's. If it works there, ask for outgoing TCP connections to {ports}.",
)
OUTGOING = Fault(
    name="outgoing-blocked",
    why="Web pages pass from here and other connections do not: a firewall on outgoing connections does that.",
    remedy="Ask whoever runs this network to allow outgoing TCP connections to {ports}, or use another network.",
)
PROXY_ONLY = Fault(
    name="proxy-only-network",
    why="Web pages pass through a proxy, but peers connect directly, which this network does not allow.",
    remedy="Ask whoever runs this network to allow outgoing TCP connections to {ports}, or use another network.",
)
IPV6 = Fault(
    name="ipv6-only",
    why="All addresses of the run are IPv6, and this machine has no way to IPv6 addresses.",
    remedy="Ask the run's maintainer for an IPv4 address, or use a network with IPv6.",
)
UNROUTABLE = Fault(
    name="peers-unroutable",
    why="This machine's network has no way there: it is offline, or the address belongs to another local network.",
    remedy="Check that this machine is online. Addresses such as 192.168... and 10... work in their own network only.",
)
PEER_NAME = Fault(
    name="peer-name-unknown",
    why="This machine cannot find the address that belongs to the name, so it cannot reach the peer.",
    remedy="Copy the addresses from the join page again; if they are right, set another DNS server, such as 1.1.1.1.",
)
OTHER_ID = Fault(
    name="peer-of-another-id",
    why="The peer id names the server that volunteers trust. Another one there is not believed.",
    remedy="Copy the addresses from the join page again: the bootstrap peer may have a new identity.",
)
NO_PEER = Fault(
    name="no-peer-there",
    why="Something else than a peer listens on that port, such as a web server.",
    remedy="Copy the addresses from the join page again; the site's own port is not that of the peers.",
)
SOME_FAIL = Fault(
    name="some-peers-fail",
    level="warning",
    why="One peer is enough to join, but with fewer of them the run is found less surely.",
    remedy="Copy the addresses from the join page again; it lists those that are on.",
)
FAR = Fault(
    name="peers-far",
    level="warning",
    why="Forming a group takes several round trips, so this peer may come too late for averages.",
    remedy="Use a wired connection, and stop downloads and calls while you train.",
)
NOT_HERE = Fault(
    name="address-not-here",
    why="The peer cannot listen there, and `join` ends.",
    remedy="Give addresses of this machine with --host-maddrs, such as /ip4/0.0.0.0/tcp/PORT: all of IPv4. Behind a "
    "router, that is the machine's own address, and not the one that the Internet sees.",
)
PORT_TAKEN = Fault(
    name="port-taken",
    why="The peer cannot listen there, and `join` ends.",
    remedy="Stop the program that uses it (`ss -ltnp` lists them), or give another port with --host-maddrs.",
)
NODE = Fault(
    name="network-node-broken",
    why="All traffic between peers passes through this program of hivemind's, p2pd.",
    remedy="Install hivemind again: `pip install --force-reinstall --no-deps -r constraints/training.txt`.",
)
UNREACHABLE = Fault(
    name="not-reachable",
    level="warning",
    why="Others cannot connect to this machine. It can train all the same, but it averages no part for them, and two "
    "such peers never meet.",
    remedy="Join with --client-mode. To be reachable, forward a port in your router and give it with --host-maddrs "
    "/ip4/0.0.0.0/tcp/PORT.",
)
FAULTS = (
    REFUSED,
    SILENT,
    OUTGOING,
    PROXY_ONLY,
    IPV6,
    UNROUTABLE,
    PEER_NAME,
    OTHER_ID,
    NO_PEER,
    SOME_FAIL,
    FAR,
    NOT_HERE,
    PORT_TAKEN,
    NODE,
    UNREACHABLE,
)

FAR_SECONDS = 0.5
"""A way to the other side of the world and back takes about 0.3 s."""


def check_peers(shared: Shared) -> Finding | list[Finding]:
    """Whether a peer of the run accepts connections, and is the one that it should be."""
    if not shared.asked.initial_peers:
        return skipped("Not checked: no --initial-peers are given.")
    try:
        answers = shared.answers()
    except Unfetched as error:
        return error.finding
    good = [answer for answer in answers if answer.seconds is not None]
    bad = [answer for answer in answers if answer.seconds is None]
    if not good:
        return _nobody(bad, shared)
    try:
        known = shared.visit("peers")["faults"]
    except NoAnswer:  # said by the check of the network node
        known = {}
    told = [f"{answer.address} ({answer.said})" for answer in bad]
    wrong = [(address, said) for address, said in known.items() if said]
    if len(wrong) == len(good):
        return [_wrong(address, said) for address, said in wrong]
    told += [f"{address} ({said})" for address, said in wrong]
    if told:
        return SOME_FAIL.found(f"{len(told)} of {len(answers)} addresses fail: {'; '.join(told)}.")
    nearest = min(answer.seconds for answer in good)
    if nearest > FAR_SECONDS:
        return FAR.found(f"The nearest peer accepts a connection after {nearest:.1f} s.")
    return fine(f"{len(good)} of the run's peers answer, the nearest within {1000 * nearest:.0f} ms.")


def check_node(shared: Shared) -> Finding:
    """Whether hivemind's network daemon starts here."""
    try:
        told = shared.visit("node")
    except NoAnswer as error:
        if error.late:
            return TOO_SLOW.found(f"The network node has not started yet: {error}.")
        return skipped(f"Not checked: hivemind does not work here ({error}).")
    if told["fault"] and any(one.level == "fault" for one in check_port(shared)):
        return skipped("Not checked: this machine cannot listen where it should, as the check of the port says.")
    if told["fault"]:
        return NODE.found(f"The network node did not start: {told['fault']}.")
    return fine(f"The network node starts, within {told['seconds']:.1f} s.")


def check_port(shared: Shared) -> list[Finding]:
    """Whether the ports to listen on are free."""
    findings = []
    for address in shared.asked.host_maddrs:
        match = ADDRESS.fullmatch(address)
        if not address.startswith("/"):
            findings.append(NOT_HERE.found(f"{address!r} is no network address."))
        if match is None or match[1] not in ("ip4", "ip6"):
            continue
        port, family = int(match[3]), socket.AF_INET if match[1] == "ip4" else socket.AF_INET6
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((match[2], port))
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or "there is no such port or address"
            fault = PORT_TAKEN if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES) else NOT_HERE
            findings.append(fault.found(f"This machine cannot listen on {address}: {said}."))
        else:
            if port:
                findings.append(fine(f"Port {port} is free."))
    return findings or [fine("The system picks a free port.")]


def check_reachable(shared: Shared) -> Finding:
    """Whether another peer can connect to this machine."""
    if shared.asked.client_mode:
        return skipped("Not checked: with --client-mode this peer accepts no connections.")
    if not shared.asked.initial_peers:
        return skipped("Not checked: this needs a peer that connects back; give --initial-peers.")
    try:
        told = shared.visit("dial-back")
    except NoAnswer:
        return skipped("Not checked: no peer of the run could be asked to connect back.")
    if told["outcome"] == "reached":
        return fine(f"A peer of the run has connected to this machine at {told['text']}.")
    if told["outcome"] == "failed":
        return UNREACHABLE.found(f"A peer of the run could not connect to this machine: {told['text']}.")
    return skipped(f"Not checked: {told['text']}.")


def _nobody(bad: Sequence[Answer], shared: Shared) -> Finding:
    """The fault that explains best why no address answers."""
    text = "; ".join(f"{answer.address}: {answer.said}" for answer in bad)
    kinds = {answer.kind for answer in bad}
    ports = "port " + ", ".join(sorted({str(parted(answer.address)[2]) for answer in bad}))
    if "refused" in kinds:
        return REFUSED.found(f"Nothing accepts connections there ({text}).")
    if "silent" in kinds:
        recipe = shared.asked.recipe or ""
        if is_url(recipe) and shared.run_or_none() is not None:
            from urllib.parse import urlsplit

            fault = PROXY_ONLY if proxy_of(urlsplit(recipe))[0] else OUTGOING
            return fault.found(f"The recipe arrives, but no peer answers ({text}).", ports=ports)
        return SILENT.found(f"No peer answers ({text}).", ports=ports)
    if "name" in kinds:
        return PEER_NAME.found(f"No peer's name is known ({text}).")
    if all("/ip6/" in answer.address or "/dns6/" in answer.address for answer in bad):
        return IPV6.found(f"No peer can be reached ({text}).")
    return UNROUTABLE.found(f"No peer can be reached ({text}).")


def _wrong(address: str, said: str) -> Finding:
    if "peer id mismatch" in said:
        theirs = said.split("remote key matches ")[-1].split()[0]
        return OTHER_ID.found(f"At {address} another peer answers, whose id is {theirs}.")
    return NO_PEER.found(f"At {address} no peer answers: {said}.")
