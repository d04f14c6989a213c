"""Whether an all-reduce counts: a group agrees on that, or on a repetition among those who are left.

A peer that dies in the middle leaves results that differ: some parts are the average of all, some of the others, and
those that it should have averaged are each peer's own. So nobody uses a result before the group has agreed on it. Each
peer tells its verdict to the referee, which is the first of the group's order that answers. If all verdicts that
arrive are good, the result counts. If one is not, those who have spoken repeat the all-reduce with the tensors that
they still hold, and nothing of theirs is lost.

It is not a consensus that survives everything: if the referee dies between two of its answers, peers may go apart. They
then say so (`RoundReport.torn`) and take common weights in the next round of parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hivemind.dht import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

Message = averaging_pb2.MessageFromLeader
Ask = Callable[[PeerID, Message], Awaitable[Message]]
"""Sends a verdict to a referee; its answer."""

VERDICT_SECONDS = 3.0
"""From the first verdict on, the referee waits so long for those that it still may get."""
ANSWER_SECONDS = 2 * VERDICT_SECONDS
"""A referee that has not answered by then is passed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """How an all-reduce went for one peer."""

    whole: bool
    """Whether all parts came back as the average of all that were sent."""
    lost: frozenset[PeerID] = frozenset()
    """Groupmates that fell silent; the referee does not wait for their verdicts."""

    def message(self, group_id: bytes) -> Message:
        """As it travels."""
        code = averaging_pb2.ACCEPTED if self.whole else averaging_pb2.CANCELLED
        return Message(code=code, group_id=group_id, ordered_peer_ids=[peer.to_bytes() for peer in self.lost])

    @classmethod
    def read(cls, message: Message) -> Verdict:
        """From a message; what is no praise is taken for blame."""
        lost = frozenset(PeerID(peer) for peer in message.ordered_peer_ids)
        return cls(whole=message.code == averaging_pb2.ACCEPTED, lost=lost)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What becomes of an all-reduce."""

    group_id: bytes = b""
    """Of the repetition; empty if the result counts."""
    members: tuple[PeerID, ...] = ()
    """Who repeats it, in the group's order."""

    @property
    def counts(self) -> bool:
        """Whether all use their results."""
        return not self.group_id

    def message(self) -> Message:
        """As it travels."""
        return Message(
            code=averaging_pb2.ACCEPTED if self.counts else averaging_pb2.BEGIN_ALLREDUCE,
            group_id=self.group_id,
            ordered_peer_ids=[peer.to_bytes() for peer in self.members],
        )

    @classmethod
    def read(cls, message: Message, peers: Sequence[PeerID]) -> Decision:
        """From a referee's answer to one of `peers`.

        Raises:
            ValueError: If it is none, or names a stranger.
        """
        if message.code == averaging_pb2.ACCEPTED:
            return cls()
        members = tuple(PeerID(peer) for peer in message.ordered_peer_ids)
        if message.code != averaging_pb2.BEGIN_ALLREDUCE or not message.group_id or not members:
            raise ValueError(f"the referee says {averaging_pb2.MessageCode.Name(message.code)}")
        if members != tuple(peer for peer in peers if peer in members):
            raise ValueError("the referee names peers that are not of the group")
        return cls(group_id=message.group_id, members=members)


class Agreement:
    """One peer's part in the agreement on one all-reduce; needs a running event loop.

    Args:
        own: This peer.
        group_id: Of the all-reduce.
        peers: The group, in the order that all its peers know.
        referees: Those of them that accept connections, in the same order.
        ask: Sends a verdict to a referee.
    """

    def __init__(self, *, own: PeerID, group_id: bytes, peers: Sequence[PeerID], referees: Sequence[PeerID], ask: Ask):
        self.own, self.group_id, self.peers, self.referees = own, group_id, tuple(peers), tuple(referees)
        self._ask, self._verdicts = ask, {}
        self._news, self._decision = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._judging: asyncio.Task | None = None

    async def reach(self, verdict: Verdict) -> Decision:
        """This peer's all-reduce has ended; waits for what the group decides.

        A peer that finds no referee decides for itself: without the others there is none to repeat it with.
        """
        self._hear(self.own, verdict)
        for referee in self.referees:
            if self._decision.done():
                break
            if referee == self.own:
                self._judge_from_now_on()
                break
            if referee in verdict.lost:
                continue
            try:
                answer = await asyncio.wait_for(self._ask(referee, verdict.message(self.group_id)), ANSWER_SECONDS)
                self._decide(Decision.read(answer, self.peers))
            except Exception:  # it is gone, has another program, or talks nonsense: the next one is asked
                continue
        else:
            alone = Decision(group_id=DHTID.generate().to_bytes(), members=(self.own,))
            self._decide(Decision() if verdict.whole else alone)
        return await asyncio.shield(self._decision)

    async def hear(self, peer: PeerID, message: Message) -> Message:
        """A groupmate tells its verdict and takes this peer for the referee; the answer."""
        if peer not in self.peers or peer == self.own:
            return Message(code=averaging_pb2.PROTOCOL_VIOLATION)
        self._hear(peer, Verdict.read(message))
        if self.own == self.referees[0]:  # another one asks those before it first, and may have to wait for that
            self._judge_from_now_on()
        decision = await asyncio.wait_for(asyncio.shield(self._decision), ANSWER_SECONDS)
        return decision.message()

    def _hear(self, peer: PeerID, verdict: Verdict) -> None:
        self._verdicts[peer] = verdict
        self._news.set()

    def _decide(self, decision: Decision) -> None:
        if not self._decision.done():
            self._decision.set_result(decision)

    def _judge_from_now_on(self) -> None:
        if self._judging is None:
            self._judging = asyncio.create_task(self._judge())

    async def _judge(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + VERDICT_SECONDS
        while self._awaited() and loop.time() < deadline:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), deadline - loop.time())
            except TimeoutError:
                break
        if all(verdict.whole for verdict in self._verdicts.values()):
            self._decide(Decision())
        else:
            members = tuple(peer for peer in self.peers if peer in self._verdicts)
            self._decide(Decision(group_id=DHTID.generate().to_bytes(), members=members))

    def _awaited(self) -> set[PeerID]:
        """Peers whose verdict may still come."""
        lost = frozenset().union(*(verdict.lost for verdict in self._verdicts.values()))
        return set(self.peers) - self._verdicts.keys() - lost
