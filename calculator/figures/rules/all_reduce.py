"""Two ways in which peers can sum their versions of a vector, as lists of messages.

The vector is cut into as many parts as there are peers. In the ring, each peer sends one part per step to the next
peer: first the partial sums travel around the ring and grow, then the complete sums do (Patarasuk and Yuan 2009). In
the direct exchange, each peer sends to every other peer the part for which the receiver is responsible, and the
receiver returns the sum to all; hivemind works in this way (hivemind/averaging/allreduce.py, AllReduceRunner).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Message:
    """One part of the vector, from one peer to another."""

    sender: int
    receiver: int
    part: int
    whole: bool
    """True if the part is already the sum over all peers, which replaces the receiver's; otherwise it is added."""


Held = tuple[tuple[frozenset[int], ...], ...]
"""For each peer and part, the peers whose values are in it."""


def ring_steps(peers: int) -> list[list[Message]]:
    """The messages of each of the 2 (n - 1) steps.

    >>> len(ring_steps(4)), ring_steps(4)[0][0]
    (6, Message(sender=0, receiver=1, part=0, whole=False))
    """
    return [
        [Message(peer, (peer + 1) % peers, (peer - step + whole) % peers, whole) for peer in range(peers)]
        for whole in (False, True)
        for step in range(peers - 1)
    ]


def direct_steps(peers: int) -> list[list[Message]]:
    """The two steps of the direct exchange: parts to the responsible peers, then sums to all.

    >>> [len(step) for step in direct_steps(4)]
    [12, 12]
    """
    others = [(one, other) for one in range(peers) for other in range(peers) if one != other]
    return [
        [Message(one, other, other, False) for one, other in others],
        [Message(one, other, one, True) for one, other in others],
    ]


@lru_cache(maxsize=256)
def held_after(way: str, peers: int, steps: int) -> Held:
    """Contents of each peer's parts after a number of steps of "ring" or "direct"."""
    held = [[frozenset([peer])] * peers for peer in range(peers)]
    for messages in (ring_steps if way == "ring" else direct_steps)(peers)[:steps]:
        # All messages of a step are sent at once, so none contains what another one brings.
        before = [list(parts) for parts in held]
        for message in messages:
            sent = before[message.sender][message.part]
            kept = frozenset() if message.whole else held[message.receiver][message.part]
            held[message.receiver][message.part] = kept | sent
    return tuple(map(tuple, held))


def sent_share(peers: int) -> float:
    """Bytes that each peer sends, and also receives, until all have the sum, relative to the vector's size.

    It is the same for both ways.

    >>> sent_share(2), sent_share(16)
    (1.0, 1.875)
    """
    return 2 * (peers - 1) / peers
