"""Comparison of this machine's clock with those of the run's other peers.

The DHT keeps each record until a time of day. A peer whose clock is ahead sees the others' records as expired, and the
others see the records of a peer whose clock is behind as expired. hivemind compares clocks at a node's start only, and
only with the initial peers: not with peers of the address book, and not again when a clock is set.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection, Sequence

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import MAX_DHT_TIME_DISCREPANCY_SECONDS
from hivemind.dht.routing import get_dht_time
from hivemind.p2p import PeerID

from calculator.units import show_time
from training.errors import TrainingError
from training.swarm.engine.engine import NODE_SECONDS
from training.swarm.engine.process import DHT
from training.swarm.node.slow_nodes import ping

PEERS_ASKED = 8
"""Number of peers whose clocks are compared. Their median counts, so a few wrong clocks among them do no harm."""
ANSWER_SECONDS = 3.0
"""Longest wait for the answer of each of these peers."""
HOW_TO_SET = (
    "Set the clock, on Linux with `sudo timedatectl set-ntp true`, on macOS with `sudo sntp -sS time.apple.com`, in "
    "WSL with `sudo hwclock -s`"
)


class WrongClock(TrainingError):
    """This machine's clock differs from the other peers' clocks.

    Args:
        ahead_seconds: Seconds by which this machine's clock is ahead; below 0 if it is behind.
    """

    def __init__(self, ahead_seconds: float):
        super().__init__(
            f"The clock of this machine is {show_time(abs(ahead_seconds))} "
            f"{'ahead of' if ahead_seconds > 0 else 'behind'} the clocks of the run's peers: to them, what this peer "
            "announces would have expired, or would stay for too long.",
            cure=f"{HOW_TO_SET}, and try again.",
        )


def time_of_day() -> float:
    """Time of the DHT, in seconds since 1970; see `steady_clock`."""
    return get_dht_time()


def is_settling() -> bool:
    """Returns True if this machine's clock was set a moment ago, as when a virtual machine wakes up; see
    `steady_clock`."""
    return getattr(get_dht_time, "is_settling", False)


def blame_clock(reason: str) -> None:
    """Raises WrongClock if a node did not start because of its clock.

    hivemind's message names both times (hivemind 1.1.12, dht/protocol.py).
    """
    if times := re.search(r"local: ([\d.]+), peer: ([\d.]+)", reason):
        raise WrongClock(float(times[1]) - float(times[2])) from None


def check_clock(dht: DHT, servers: Collection[str] = ()) -> float:
    """Compares this machine's clock with those of some connected peers.

    Args:
        dht: A running node.
        servers: Ids of the run's servers: the clock of a single one of them is believed.

    Returns:
        0 if the clocks agree. If only one peer answers, no server, and its clock differs: the seconds by which this
        clock is ahead of it, since nobody can tell which of the two is right.

    Raises:
        WrongClock: If the clocks of most peers differ from this one, or that of a server that answers alone.
        TimeoutError: If this peer's own node does not answer.
    """
    ahead_by_peer = dht.run_coroutine(seconds_ahead, return_future=True).result(timeout=NODE_SECONDS)
    is_one_against_one = len(ahead_by_peer) == 1 and not ahead_by_peer.keys() & set(servers)
    ahead = ahead_of_most([*ahead_by_peer.values()] if len(ahead_by_peer) == 1 else [*ahead_by_peer.values(), 0.0])
    if abs(ahead) <= MAX_DHT_TIME_DISCREPANCY_SECONDS:
        return 0.0
    if not is_one_against_one:
        raise WrongClock(ahead)
    return ahead


def ahead_of_most(ahead: Sequence[float]) -> float:
    """Median of the seconds by which a clock is ahead of others; of two in the middle, the one that is nearer to 0.

    >>> ahead_of_most([]), ahead_of_most([300.0]), ahead_of_most([-300.0, 0.0]), ahead_of_most([-300.0, 0.0, -300.0])
    (0.0, 300.0, 0.0, -300.0)
    """
    votes = sorted(ahead) or [0.0]
    return min(votes[(len(votes) - 1) // 2], votes[len(votes) // 2], key=abs)


# The rest runs in the node's process.


async def seconds_ahead(_dht: DHT, node: DHTNode) -> dict[str, float]:
    """Measures by how many seconds this machine's clock is ahead of each answering peer's. Negative: it is behind."""
    known: Sequence[PeerID] = tuple(node.protocol.routing_table.peer_id_to_uid)
    asked = random.sample(known, min(PEERS_ASKED, len(known)))
    ahead_by_peer = await asyncio.gather(*(_ahead_of(node, peer) for peer in asked))
    return {str(peer): ahead for peer, ahead in zip(asked, ahead_by_peer, strict=True) if ahead is not None}


async def _ahead_of(node: DHTNode, peer: PeerID) -> float | None:
    """Seconds by which this clock is at least ahead of a peer's, or behind if negative; None if the peer does not
    answer.

    The time that the answer travels is unknown: a difference that it can explain gives 0.
    """
    asked_at = get_dht_time()
    if (answer := await ping(node.p2p, peer, ANSWER_SECONDS)) is None:
        return None
    return max(asked_at - answer.dht_time, 0.0) or min(get_dht_time() - answer.dht_time, 0.0)
