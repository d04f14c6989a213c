"""Interface of objects that watch an all-reduce. Options against hostile peers implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2

from training.swarm.engine.parts import Part
from training.swarm.engine.process import DHT

Data = averaging_pb2.AveragingData


class AllReduceGuard(Protocol):
    """Watches the messages of one all-reduce of this peer."""

    def sending(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Yields the parts for a reducer, which may be this peer itself; the guard may add to them."""

    def taking(self, sender: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Yields the parts of a sender to this peer, and checks them.

        Raises:
            Misconduct: If the sender is certainly to blame.
        """

    async def answering(self, sender: PeerID, message: Data) -> None:
        """Notes an answer to a sender before it is sent; the guard may add to it."""

    def answered(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Yields the answers of a reducer to this peer, and checks them.

        Raises:
            Misconduct: If the reducer is certainly to blame.
        """

    async def finished(self) -> None:
        """Called when this peer has all answers, before it sends its verdict."""


class RoundGuard(Protocol):
    """Watches the all-reduces of an averager; makes a guard for each."""

    async def open(self) -> None:
        """Lets other peers call the guard from now on."""

    def begin(
        self,
        group_id: bytes,
        parts: Mapping[PeerID, Sequence[Part]],
        *,
        unvouched: frozenset[PeerID],
    ) -> AllReduceGuard:
        """Makes the guard of one all-reduce.

        Args:
            group_id: Id of the all-reduce's group.
            parts: This peer's parts for each reducer, by the peers in the group's order.
            unvouched: Members for which no ticket vouches.
        """


MakeGuard = Callable[[P2P, DHT, str, Callable[[str, float, str], None]], RoundGuard | None]
"""Makes the guard of an averager, from the connection, the node, the averager's prefix, and a function that reports a
peer that the guard has caught (see `pipe.Caught`). None: this peer has no key to sign with."""
