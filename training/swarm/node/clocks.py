"""Comparison of this machine's clock with those of the run's other peers.

The DHT keeps each record until a time of day. For a peer whose clock is ahead, the others' records have expired; for
the others, the records of a peer whose clock is behind. hivemind compares clocks at a node's start only, and only with
the initial peers: not with peers of the address book, and not again when a clock is set.
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

from training.errors import TrainingError
from training.swarm.engine.engine import NODE_SECONDS
from training.swarm.engine.process import DHT
from training.swarm.node.slow_nodes import ping

PEERS_ASKED = 8
"""A few wrong clocks among the others must not make this one's seem wrong: their median counts."""
ANSWER_SECONDS = 3.0
"""Longest wait for each of the others."""
HOW_TO_SET = "Set the clock, for example with `sudo timedatectl set-ntp true`"


class WrongClock(TrainingError):
    """This machine's clock is not those of the others.

    Args:
        ahead_seconds: By how much; below 0 if it is behind.
    """

    def __init__(self, ahead_seconds: float):
        super().__init__(
            f"The clock of this machine is {abs(ahead_seconds):.0f} s "
            f"{'ahead of' if ahead_seconds > 0 else 'behind'} the clocks of the run's peers: to them, what this peer "
            "announces would have expired, or would stay for too long.",
            cure=f"{HOW_TO_SET}, and try again.",
        )


def time_of_day() -> float:
    """Time of the DHT, in seconds since 1970; see `steady_clock`."""
    return get_dht_time()


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
        servers: Ids of the run's servers: one of them is believed alone.

    Returns:
        By how much this clock is ahead of that of a peer which is no server, if no other peer answers and it shows
        another time: nobody can tell which of the two is right. Otherwise 0.

    Raises:
        WrongClock: If most of them show another time.
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
    """The median; of two in the middle, the one that is nearer to 0.

    >>> ahead_of_most([]), ahead_of_most([300.0]), ahead_of_most([-300.0, 0.0]), ahead_of_most([-300.0, 0.0, -300.0])
    (0.0, 300.0, 0.0, -300.0)
    """
    votes = sorted(ahead) or [0.0]
    return min(votes[(len(votes) - 1) // 2], votes[len(votes) // 2], key=abs)


# What follows runs in the node's process.


async def seconds_ahead(_dht: DHT, node: DHTNode) -> dict[str, float]:
    """Seconds by which this machine's clock is ahead of the answering peers', negative if it is behind."""
    known: Sequence[PeerID] = tuple(node.protocol.routing_table.peer_id_to_uid)
    asked = random.sample(known, min(PEERS_ASKED, len(known)))
    ahead_by_peer = await asyncio.gather(*(_ahead_of(node, peer) for peer in asked))
    return {str(peer): ahead for peer, ahead in zip(asked, ahead_by_peer, strict=True) if ahead is not None}


async def _ahead_of(node: DHTNode, peer: PeerID) -> float | None:
    """Seconds by which this clock is certainly ahead of a peer's, after allowing for the way of the answer."""
    asked_at = get_dht_time()
    if (answer := await ping(node.p2p, peer, ANSWER_SECONDS)) is None:
        return None
    return max(asked_at - answer.dht_time, 0.0) or min(get_dht_time() - answer.dht_time, 0.0)
