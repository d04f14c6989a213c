"""Agreement of a group on an all-reduce: its result counts, or the remaining peers repeat it.

If a peer dies in the middle of an all-reduce, the others have different results: some parts are the mean of all
senders, some of the remaining ones, and the parts that the dead peer should have reduced are each peer's own. So no
peer uses its result before the group has agreed on it:

1. Each peer sends its verdict to the referee, the first peer in the group's order that answers.
2. If all verdicts are good, the result counts.
3. If one is bad, all peers end the all-reduce at once, and those that sent a verdict repeat it among themselves. They
   still hold their tensors, so nothing is lost.
4. A repetition leaves out the peers that most of the others name. The second one also leaves out both of any two peers
   that do not hear each other: the link between them may be broken, and nobody knows which of them is at fault.

A broken stream does not make a peer dead: a peer whose verdict is missing counts as gone when it cannot be called, or
answers no ping. A peer that stands in for a dead referee also asks the others whether they know of a decision.

This is no consensus protocol. If the network splits, or the referee dies together with the only peer that it told,
peers may decide differently. Their reports then say so (`RoundReport.torn`), and the next round of parameters gives
them common weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm.engine.ids import digest_of

Message = averaging_pb2.MessageFromLeader
Ask = Callable[[PeerID, Message], Awaitable[Message]]
"""Function that sends a verdict to a peer and returns the peer's answer."""

GOOD_SECONDS = 1.0
"""Seconds that the referee waits for missing verdicts while all are good, from its own verdict on, or from when it has
those of most peers. A peer that has the whole average knows that everybody's tensors arrived, so only a late peer's own
result can still fail."""
VERDICT_SECONDS = 3.0
"""Longest wait of a referee, after the first bad verdict, for peers that may be alive."""
REFEREE_SECONDS = 8.0
"""Seconds without a decision after which a peer asks the next referee; at once if the referee answers no ping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Outcome of an all-reduce for one peer."""

    whole: bool
    """True if every part came back as the average over all senders."""
    faulty: frozenset[PeerID] = frozenset()
    """Groupmates that have sent nothing, or malformed messages. The repetition leaves out a peer that most others
    name."""

    def message(self, group_id: bytes) -> Message:
        """Packs the verdict into a message."""
        code = averaging_pb2.ACCEPTED if self.whole else averaging_pb2.CANCELLED
        return Message(code=code, group_id=group_id, ordered_peer_ids=[peer.to_bytes() for peer in self.faulty])

    @classmethod
    def read(cls, message: Message, peers: Sequence[PeerID]) -> Verdict:
        """Reads a message of one of `peers`. Any code but ACCEPTED counts as a failure.

        Raises:
            ValueError: If the message names a peer twice or one outside the group.
        """
        faulty = frozenset(_named_in(message.ordered_peer_ids, peers))
        return cls(whole=message.code == averaging_pb2.ACCEPTED, faulty=faulty)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Decision on an all-reduce: its result counts, or a smaller group repeats it."""

    group_id: bytes = b""
    """Id of the group that repeats the all-reduce; empty if the result counts."""
    members: tuple[PeerID, ...] = ()
    """Peers that repeat the all-reduce, in the group's order."""
    solitary: bool = False
    """True if the peer decided for itself, because it reached no referee."""

    @property
    def counts(self) -> bool:
        """True if all peers use their results."""
        return not self.group_id

    def message(self) -> Message:
        """Packs the decision. A peer that decided for itself answers that it is in no group."""
        if self.solitary:
            return Message(code=averaging_pb2.BAD_GROUP_ID)
        return Message(
            code=averaging_pb2.ACCEPTED if self.counts else averaging_pb2.BEGIN_ALLREDUCE,
            group_id=self.group_id,
            ordered_peer_ids=[peer.to_bytes() for peer in self.members],
        )

    @classmethod
    def read(cls, message: Message, group_id: bytes, peers: Sequence[PeerID]) -> Decision:
        """Reads a referee's answer to one of `peers` on the all-reduce `group_id`.

        Raises:
            ValueError: If the answer is not a decision, or names a peer twice or one outside the group.
        """
        if message.code == averaging_pb2.ACCEPTED:
            return cls()
        members = _named_in(message.ordered_peer_ids, peers)
        if message.code != averaging_pb2.BEGIN_ALLREDUCE or not message.group_id or not members:
            raise ValueError(f"the referee says {averaging_pb2.MessageCode.Name(message.code)}")
        if members != tuple(peer for peer in peers if peer in members):
            raise ValueError("the referee names the members in another order than the group's")
        if message.group_id != repetition_of(group_id, members):
            raise ValueError("the referee names another group than that of its members")
        return cls(group_id=message.group_id, members=members)


def _named_in(ids: Sequence[bytes], peers: Sequence[PeerID]) -> tuple[PeerID, ...]:
    """Returns the peers of a group that a message names, in the message's order.

    No `PeerID` is made from an id: that takes a millisecond for a long one, and a message may have 100 000 of them.

    Raises:
        ValueError: If there are more ids than peers in the group, if one is outside the group, or if one comes twice.
    """
    known = {peer.to_bytes(): peer for peer in peers}
    if len(ids) > len(known) or len(set(ids)) < len(ids) or not known.keys() >= set(ids):
        raise ValueError("the message names a peer that is not of the group, or one twice")
    return tuple(known[one] for one in ids)


def repetition_of(group_id: bytes, members: Sequence[PeerID]) -> bytes:
    """Returns the id of the group that repeats an all-reduce. It differs, so late parts of the failed one are not mixed
    in.

    A referee that names different members to different peers puts these into different groups. With one id, they would
    divide the tensors differently, and blame each other.
    """
    return digest_of(group_id, *(peer.to_bytes() for peer in members))


class Agreement:
    """Part of one peer in the agreement on one all-reduce; needs a running event loop.

    Args:
        own: Id of this peer.
        group_id: Id of the all-reduce.
        peers: Members of the group, in the order that all members know.
        referees: Members that accept connections, in the group's order.
        ask: Sends a verdict to a referee.
        on_bad_verdict: Called when this peer hears that the all-reduce has failed for a groupmate.
        is_repetition: True if the group has tried before; only then both peers of a broken link are left out.
    """

    def __init__(
        self,
        *,
        own: PeerID,
        group_id: bytes,
        peers: Sequence[PeerID],
        referees: Sequence[PeerID],
        ask: Ask,
        on_bad_verdict: Callable[[], None] = lambda: None,
        is_repetition: bool = False,
    ):
        self.own, self.group_id, self.peers, self.referees = own, group_id, tuple(peers), tuple(referees)
        self._ask, self._on_bad_verdict = ask, on_bad_verdict
        self._is_repetition = is_repetition
        self._verdicts: dict[PeerID, Verdict] = {}
        self._gone: set[PeerID] = set()
        self.absent: set[PeerID] = set()
        """Peers that are alive and say that they are not in the group."""
        self._bad = False
        self._news, self._decision = asyncio.Event(), asyncio.get_running_loop().create_future()
        self._judging: asyncio.Task | None = None
        self.asked: PeerID | None = None
        """Referee for whose decision this peer waits."""
        self._asking: asyncio.Task | None = None

    def note_gone(self, peer: PeerID) -> None:
        """Notes that a groupmate answers no ping, or is banned: nobody waits for it or includes it in a repetition."""
        self._gone.add(peer)
        self._verdicts.pop(peer, None)
        self._news.set()
        if peer == self.asked:
            self._asking.cancel()

    async def reach(self, verdict: Verdict) -> Decision:
        """Waits for the group's decision; called when this peer's all-reduce has ended.

        If this peer reaches no referee, it decides for itself: there is nobody to repeat the all-reduce with.
        """
        self._hear(self.own, verdict)
        for referee in self.referees:
            if self._decision.done():
                break
            if referee == self.own:
                self._judge_from_now_on()
                break
            if referee in self._gone:
                continue
            self.asked, self._asking = referee, asyncio.create_task(self._decision_of(referee, verdict))
            try:
                await asyncio.wait({self._asking})
            finally:
                self._asking.cancel()
                self.asked = None
            if not self._asking.cancelled() and self._asking.exception() is None:
                self._decide(self._asking.result())
            # Otherwise the referee is gone, or its answer makes no sense: this peer asks the next one.
        else:
            again = {} if verdict.whole else self._repeat((self.own,))
            self._decide(Decision(solitary=True, **again))
        # A round that has lasted too long is cancelled here. Groupmates in `hear` wait for the same future: without the
        # shield they would be cancelled as well.
        return await asyncio.shield(self._decision)

    async def hear(self, peer: PeerID, message: Message) -> Message:
        """Answers a groupmate for which this peer is the referee, or a referee that calls this peer.

        The answer is the decision, as soon as there is one.
        """
        refused = Message(code=averaging_pb2.PROTOCOL_VIOLATION)
        if peer not in self.peers or peer == self.own:
            return refused
        try:
            verdict = Verdict.read(message, self.peers)
        except ValueError:
            return refused
        self._hear(peer, verdict, counts=not self._is_before_this_one(peer))
        # Any other referee judges only when its own all-reduce has ended and the referees before it have not answered;
        # otherwise two referees might decide differently.
        if self.own == self.referees[0] and (self._bad or self._is_whole_for_most()):
            self._judge_from_now_on()
        return (await asyncio.shield(self._decision)).message()  # the shield: others wait when one caller hangs up

    def _is_whole_for_most(self) -> bool:
        """Returns True if more than half of the verdicts are in and all of them are good.

        A single early verdict does not count: its peer could let the all-reduce fail afterwards.
        """
        return not self._bad and 2 * len(self._verdicts) > len(self.peers)

    def _is_before_this_one(self, peer: PeerID) -> bool:
        """Returns True if `peer` is an earlier referee: it calls to ask for decisions, and sends no verdict."""
        order = self.referees
        return peer in order and (self.own not in order or order.index(peer) < order.index(self.own))

    def _hear(self, peer: PeerID, verdict: Verdict, counts: bool = True) -> None:
        if counts:  # the first verdict counts: a peer that asks again repeats it
            self._verdicts.setdefault(peer, verdict)
        if not verdict.whole and not self._bad:
            self._bad = True
            self._on_bad_verdict()
        self._news.set()

    def _decide(self, decision: Decision) -> None:
        if not self._decision.done():
            self._decision.set_result(decision)

    async def _decision_of(self, referee: PeerID, verdict: Verdict) -> Decision:
        async with asyncio.timeout(REFEREE_SECONDS):
            return await self._answer_of(referee, verdict)

    async def _answer_of(self, peer: PeerID, verdict: Verdict) -> Decision:
        answer = await self._ask(peer, verdict.message(self.group_id))
        if answer.code == averaging_pb2.BAD_GROUP_ID:
            self.absent.add(peer)
        return Decision.read(answer, self.group_id, self.peers)

    # -- the referee's part --------------------------------------------------------------------------------------------

    def _judge_from_now_on(self) -> None:
        if self._judging is None:
            self._judging = asyncio.create_task(self._judge())

    async def _judge(self) -> None:
        await self._listen(GOOD_SECONDS, enough=lambda: self._bad)
        # A peer that stands in calls even if all verdicts are good: the dead referee may have told somebody that the
        # all-reduce is repeated. Peers in client mode cannot be called.
        if self._bad or self.own != self.referees[0]:
            called = [peer for peer in self.referees if peer in self._awaited() and peer != self.own]
            calls = [asyncio.create_task(self._call(peer)) for peer in called]
            await self._listen(VERDICT_SECONDS, enough=self._decision.done)
            for call in calls:
                call.cancel()
        if not self._bad:
            self._decide(Decision())
            return
        named = {judge: verdict.faulty for judge, verdict in self._verdicts.items()}
        members = tuple(peer for peer in self.peers if peer in self._verdicts and not _is_blamed(peer, named))
        if self._is_repetition:
            members = _without_pairs(members, named)
        self._decide(Decision(**self._repeat(members or (self.own,))))

    def _repeat(self, members: tuple[PeerID, ...]) -> dict:
        return {"group_id": repetition_of(self.group_id, members), "members": members}

    async def _listen(self, seconds: float, *, enough: Callable[[], bool]) -> None:
        """Waits until all peers that are not gone have sent a verdict, until `enough()` is true, or for `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._awaited() and not enough():
                    # Nothing else runs on this loop between the look above and `clear`, so no news is lost.
                    self._news.clear()
                    await self._news.wait()

    async def _call(self, peer: PeerID) -> None:
        """Sends a silent peer the state of the all-reduce. Learns whether the peer is gone, or knows of a decision."""
        try:
            self._decide(await self._answer_of(peer, Verdict(whole=not self._bad)))
        except Exception:  # after any error this peer cannot repeat the all-reduce with the others
            self._gone.add(peer)
        self._news.set()

    def _awaited(self) -> set[PeerID]:
        """Peers whose verdict may still come."""
        return set(self.peers) - self._verdicts.keys() - self._gone


def _is_blamed(peer: PeerID, named: Mapping[PeerID, frozenset[PeerID]]) -> bool:
    """Returns True if most of the others name the peer. A single peer that names it may be at fault itself."""
    others = [judge for judge in named if judge != peer]
    accusers = [judge for judge in others if peer in named[judge]]
    are_even = len(others) == 1 and bool(frozenset(accusers) & named[peer])
    return len(accusers) * 2 > len(others) and not are_even


def _without_pairs(members: tuple[PeerID, ...], named: Mapping[PeerID, frozenset[PeerID]]) -> tuple[PeerID, ...]:
    """Returns the members without both ends of each broken link; all members if fewer than two would be left."""
    pairs = {peer for judge in members for accused in named[judge] & frozenset(members) for peer in (judge, accused)}
    left = tuple(peer for peer in members if peer not in pairs)
    return left if len(left) > 1 else members
