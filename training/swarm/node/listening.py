"""Where a peer listens: at the same port after each restart, so that those who know its address find it there."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from training.errors import BadInput
from training.storage.whole import write_whole
from training.swarm.node.addresses import place_of

FREE_SECONDS = 10.0
"""The network daemon of a killed program releases its port within this time."""
_ANY_PORT = re.compile(r"/tcp/0(?=/|$)")


def settle_ports(state_dir: Path, host_maddrs: Sequence[str]) -> list[str]:
    """Addresses to listen on; port 0 becomes the port of the last start, or a free one, which the folder keeps.

    Waits a moment for ports that are taken: a server that is restarted as soon as it was killed could not listen yet.

    Raises:
        BadInput: If a port that was given is taken. Two network daemons would share it without an error, and each would
            get some of the connections.
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
    """Those at which somebody else listens, and goes on doing so."""
    deadline = time.monotonic() + FREE_SECONDS
    while (taken := [address for address in addresses if not _is_free(address)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return taken


def _is_free(address: str) -> bool:
    """Whether nobody listens there; True if that cannot be told."""
    place = place_of(address)
    if place is None:
        return True
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last program may linger
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # of another fault the node's start tells
    return True
