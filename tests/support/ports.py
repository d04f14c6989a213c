"""Ports for programs that tests start, which must be told theirs before they run."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

HIGHEST = 32_000
"""Above it the system takes ports for connections: one that is free now may be taken before a program listens."""
LOWEST = 12_000
_random = random.SystemRandom()
"""Not `random` itself: tests that run beside each other may seed it alike."""


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Consecutive ports, on which nobody listens."""
    while True:
        first = _random.randrange(LOWEST, HIGHEST - count)
        ports = list(range(first, first + count))
        if _all_free(ports):
            return ports


def _all_free(ports: list[int]) -> bool:
    with ExitStack() as probes:
        try:
            for port in ports:
                probes.enter_context(socket.create_server(("", port)))
        except OSError:
            return False
    return True
