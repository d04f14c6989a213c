"""Interface of what may watch an all-reduce. Options against hostile peers implement it."""

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
        """Parts on their way to a reducer, which may be this peer itself."""

    def taking(self, sender: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Parts that a sender sends to this peer.

        Raises:
            Misconduct: If the sender is to blame for certain.
        """

    async def answering(self, sender: PeerID, message: Data) -> None:
        """An answer leaves; the guard may add to it."""

    def answered(self, reducer: PeerID, messages: AsyncIterator[Data]) -> AsyncIterator[Data]:
        """Answers of a reducer to this peer.

        Raises:
            Misconduct: If the reducer is to blame for certain.
        """

    async def finished(self) -> None:
        """This peer has all answers, and has not said so yet."""


class RoundGuard(Protocol):
    """Watches the all-reduces of an averager."""

    async def open(self) -> None:
        """Other peers may call it from now on."""

    def begin(
        self,
        group_id: bytes,
        parts: Mapping[PeerID, Sequence[Part]],
        *,
        unvouched: frozenset[PeerID],
    ) -> AllReduceGuard:
        """A guard of one all-reduce.

        Args:
            group_id: Of its group.
            parts: This peer's parts for each reducer, by the peers in the group's order.
            unvouched: Peers whom nobody vouches for.
        """


MakeGuard = Callable[[P2P, DHT, str, Callable[[str, float, str], None]], RoundGuard | None]
"""Makes the guard of an averager, from the connection, the node, the averager's prefix, and what reports a peer that
the guard has caught (see `pipe.Caught`). None: this peer has no key to sign with."""
