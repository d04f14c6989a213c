"""Addresses of peers, such as `/ip4/203.0.113.7/tcp/31337/p2p/QmPeerId`: parsing, comparing, and trying them."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

from training.errors import BadInput
from training.storage.whole import write_whole

MOST_CHARACTERS = 300
"""Longest address. The time to read a peer's id grows with the square of its length: six seconds for 200 kB."""
REACH_SECONDS = 5.0
"""Longest wait for a peer to accept a connection."""
GREETING, GREETING_SECONDS = b"\x13/multistream/1.0.0\n", 15.0
"""First bytes of a peer on each connection (github.com/multiformats/multistream-select), and the longest wait for them.
The network daemon gives up after the same time (go-libp2p, `defaultDialTimeout`)."""
FREE_SECONDS = 10.0
"""Longest time until the port of a killed program's network daemon is free again."""
_ANY_PORT = re.compile(r"/tcp/0(?=/|$)")
HOST_KINDS = ("ip4", "ip6", "dns", "dns4", "dns6")
_PROTOCOLS = {
    "ip4": ("IPv4", socket.AF_INET, "192.0.2.1"),
    "dns4": ("IPv4", socket.AF_INET, "192.0.2.1"),
    "ip6": ("IPv6", socket.AF_INET6, "2001:db8::1"),
    "dns6": ("IPv6", socket.AF_INET6, "2001:db8::1"),
}
"""Protocol of each kind of host that has only one, with a public address of it that is reserved for examples (RFC 5737,
3849)."""


def parse(address: str) -> Multiaddr:
    """Parses an address, and checks it.

    Raises:
        BadInput: If the text is not an address.
    """
    with suppress(ValueError):
        # A blank would reach the network daemon, which accepts no host or port with a blank.
        if len(address) <= MOST_CHARACTERS and not re.search(r"\s", address):
            return Multiaddr(address)
    raise BadInput(
        f"{address[:MOST_CHARACTERS]!r} is not a network address such as /ip4/203.0.113.7/tcp/31337/p2p/QmPeerId.",
        cure="Copy the whole address from the bootstrap peer's output, or give that of the run's site.",
    )


def check_full(address: str) -> str:
    """Returns the address if a peer can be reached and recognized at it.

    Raises:
        BadInput: If the text is not an address, or lacks the peer's id.
    """
    if "p2p" not in parse(address):
        raise BadInput(
            f"{address!r} lacks the peer's id: it must end in /p2p/ID, as the bootstrap peer prints it.",
            cure="Copy the whole address from the bootstrap peer's output, or give that of the run's site.",
        )
    return address


def id_of(address: str) -> str | None:
    """Id of the peer to which a full address leads; None if the address has no id or is malformed.

    >>> id_of("/ip4/203.0.113.7/tcp/31337/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
    'QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N'
    >>> id_of("/ip4/203.0.113.7/tcp/31337"), id_of("somewhere")
    (None, None)
    """
    try:
        found = address.rpartition("/p2p/")[2] if "p2p" in Multiaddr(address) else None
        return str(PeerID.from_base58(found)) if found else None
    except (ValueError, KeyError):
        return None


def place_of(address: str) -> tuple[str, int] | None:
    """Host and TCP port; None if the address is not TCP, or leads through a relay.

    >>> place_of("/ip4/203.0.113.7/tcp/31337"), place_of("/ip4/203.0.113.7/udp/31337/quic")
    (('203.0.113.7', 31337), None)
    """
    maddr = parse(address)
    if "tcp" not in maddr or "p2p-circuit" in maddr:
        return None
    host = next((maddr[kind] for kind in HOST_KINDS if kind in maddr), None)
    return None if host is None else (host, int(maddr["tcp"]))


def connection_seconds(address: str) -> float | None:
    """Measures the seconds until a plain TCP connection is accepted, one round trip; None if the address is not TCP.

    Raises:
        OSError: If nothing listens there.
    """
    place = place_of(address)
    if place is None:
        return None
    began = time.perf_counter()
    socket.create_connection(place, timeout=REACH_SECONDS).close()
    return time.perf_counter() - began


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreached:
    """A peer that cannot be reached at its address: what was seen there, and what the volunteer can do."""

    seen: str
    cure: str = "Check that the run is on, and that a firewall lets you out."


def why_unreached(address: str, greeting_seconds: float = GREETING_SECONDS) -> Unreached | None:
    """Calls a peer. Returns None if a peer answers, whatever its id is, or if only the network daemon can call it.

    The system accepts connections for a program that hangs, so a peer counts only once it has sent its greeting.

    Args:
        address: Address of the peer.
        greeting_seconds: Longest wait for the greeting.
    """
    place = place_of(address)
    if place is None:
        return None
    try:
        with socket.create_connection(place, timeout=REACH_SECONDS) as connection:
            if not is_plain(address):
                return None
            connection.settimeout(greeting_seconds)
            return _why_no_peer(connection)
    except OSError as error:
        if error.errno == errno.ENETUNREACH:
            return _without_protocol(address)
        return Unreached(seen=error.strerror or str(error))


def is_plain(address: str) -> bool:
    """Returns True if a peer greets at once on a TCP connection; with a web socket, the greeting comes later.

    >>> [is_plain(f"/ip4/203.0.113.7/tcp/31337{rest}/p2p/QmPeerId") for rest in ("", "/ws")]
    [True, False]
    """
    return re.search(r"/tcp/\d+(/p2p/[^/]+)?$", address) is not None


def _why_no_peer(connection: socket.socket) -> Unreached | None:
    """Reads the greeting at the other end. Returns None if a peer is there."""
    read = b""
    try:
        connection.sendall(GREETING)  # other programs, such as web servers, wait for the caller's first bytes
        while len(read) < len(GREETING) and (more := connection.recv(len(GREETING) - len(read))):
            read += more
    except TimeoutError:
        return Unreached(
            seen=f"the connection is accepted, and then nothing comes for {connection.gettimeout():.0f} s",
            cure="The server's program hangs, or its machine is overloaded: your addresses may well be right. Try "
            "again in some minutes; if it stays so, tell the run's maintainer.",
        )
    except ConnectionError:  # a program that ends just now
        pass
    if read == GREETING:
        return None
    return Unreached(
        seen="a program answers that is no peer of a run",
        cure="The server may have moved: give the address of the run's site instead, which has its current "
        "address. It may also be starting just now: then try again in a minute.",
    )


def _without_protocol(address: str) -> Unreached:
    """Explains that this machine's network has no way to an address."""
    needed = next((_PROTOCOLS[kind][0] for kind in _PROTOCOLS if f"/{kind}/" in address), None)
    has = protocols()
    if not has:
        return Unreached(seen="this machine has no network", cure="Connect this machine to the Internet.")
    if needed is None or needed in has:
        return Unreached(seen="this machine's network has no way to it")
    return Unreached(
        seen=f"this machine has no {needed}",
        cure=f"This machine has {has[0]} only, and the address needs {needed}. Use a network that has {needed}, or ask "
        f"the run's maintainer for a server with an address of {has[0]} (`--announce-maddrs`).",
    )


def protocols() -> list[str]:
    """Protocols of the Internet by which this machine has a way to public addresses; sends nothing."""
    found = []
    for name, family, public in dict.fromkeys(_PROTOCOLS.values()):
        # For a datagram's socket, `connect` only looks up the way.
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.connect((public, 9))
            found.append(name)
    return found


def answer_seconds(addresses: Sequence[str]) -> list[float | None]:
    """Seconds until each reachable address accepted a connection; None for an address that is not TCP."""
    answers = []
    for address in addresses:
        with suppress(OSError):  # one unreachable peer is not an error: another may answer
            answers.append(connection_seconds(address))
    return answers


def reach_of(address: str) -> int:
    """Reach of an address, judged by its host's name: 0 this machine, 1 its local network, 2 everywhere.

    >>> [reach_of(f"/ip4/{host}/tcp/1") for host in ("127.0.0.1", "192.168.0.7", "8.8.8.8")]
    [0, 1, 2]
    >>> reach_of("/dns4/run.example/tcp/1"), reach_of("/dns4/localhost/tcp/1")
    (2, 0)
    """
    place = place_of(address)
    if place is None:
        return 2
    try:
        host = ipaddress.ip_address(place[0])
    except ValueError:  # a name
        return 0 if place[0] == "localhost" else 2
    return 0 if host.is_loopback else 2 if host.is_global else 1


def widest(addresses: Sequence[str]) -> list[str]:
    """Keeps, of each peer's full addresses, those with the widest reach.

    A monitor beside the bootstrap peer may know it by a loopback address too, which newcomers elsewhere cannot use.

    >>> lan, loopback = (f"/ip4/{host}/tcp/9/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
    ...                  for host in ("192.168.0.7", "127.0.0.1"))
    >>> widest([loopback, lan]) == [lan], widest([loopback]) == [loopback]
    (True, True)
    """
    furthest: dict[str | None, int] = {}
    for address in addresses:
        furthest[id_of(address)] = max(furthest.get(id_of(address), 0), reach_of(address))
    return [address for address in addresses if reach_of(address) == furthest[id_of(address)]]


def address_to_tell(own: Iterable[str], others: Iterable[str]) -> str | None:
    """Chooses the own address that a server gives to newcomers beside the other servers' addresses.

    Args:
        own: Full addresses of this server, the best one first.
        others: Full addresses of the other servers. Newcomers that reach these could not reach a more local one.

    Returns:
        The first own address that reaches as far as the others' widest one; None if there is no such address.

    >>> address_to_tell(["/ip4/192.168.0.7/tcp/1", "/ip4/127.0.0.1/tcp/1"], ["/ip4/127.0.0.1/tcp/9"])
    '/ip4/192.168.0.7/tcp/1'
    >>> address_to_tell(["/ip4/192.168.0.7/tcp/1"], ["/ip4/8.8.8.8/tcp/9"]) is None
    True
    """
    needed = max(map(reach_of, others), default=0)
    return next((address for address in own if reach_of(address) >= needed), None)


# -- where a peer listens: at the same port after each restart, so that peers that know its address find it there


def settle_ports(state_dir: Path, host_maddrs: Sequence[str]) -> list[str]:
    """Returns the addresses to listen on. Port 0 becomes the port of the last start or a free one, kept in `state_dir`.

    Waits a moment for ports that are taken: the port of a server that was just killed is not free at once.

    Raises:
        BadInput: If a given port is taken. Two network daemons would share it without an error, and each would get some
            of the connections.
    """
    file, kept = state_dir / "port", None
    with suppress(OSError, ValueError):
        kept = min(int(file.read_text()), 65535)
    given = [address for address in host_maddrs if not _ANY_PORT.search(address)]
    open_ended = [address for address in host_maddrs if _ANY_PORT.search(address)]
    if taken := _still_taken(given):
        raise BadInput(
            f"Another program already listens at {taken[0]}. Give another --port, or another address in --host-maddrs."
        )
    if open_ended and (not kept or _still_taken([_with_port(address, kept) for address in open_ended])):
        kept = _free_port()
        with suppress(OSError):
            write_whole(file, f"{kept}\n")
    return [_with_port(address, kept) if kept else address for address in host_maddrs]


def _with_port(address: str, port: int) -> str:
    return _ANY_PORT.sub(f"/tcp/{port}", address)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _still_taken(addresses: Sequence[str]) -> list[str]:
    """Returns the addresses at which another program listens, and still listens after `FREE_SECONDS`."""
    deadline = time.monotonic() + FREE_SECONDS
    while (taken := [address for address in addresses if not _is_free(address)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return taken


def _is_free(address: str) -> bool:
    """Returns True if no program listens at an address, or if this cannot be found out."""
    place = place_of(address)
    if place is None:
        return True
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last program may linger
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # the node's start reports other faults
    return True
