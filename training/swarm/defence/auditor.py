"""Checks reducers: each peer asks its groupmates for random parts, and computes the averages of these parts again.

A peer draws the parts that it checks before the all-reduce and keeps them secret, so that a reducer that answers
falsely can never know that this answer is not checked. A check begins as soon as this peer has all answers:

    this peer  --- the reducer and the number of one of its parts --->  each groupmate
    groupmate  --- its part, and what the reducer has signed for it --->
    reducer    --- the same, and all senders' commitments ------------->

A wrong answer is proof against the reducer (`auditing`). This peer sends the proof to all groupmates; each judges it by
itself, and leaves the reducer out. Nobody is believed without proof. A reducer or a sender that shows nothing when it
is asked may be gone or slow: only this peer notes that, and only if it happens again. Its groupmates learn of such a
reducer, and check it the next time, each for itself.

A check comes too late for the average that it checks: that average counts.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator as Messages
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.defence.auditing import Case, are_sound, lie_in
from training.swarm.defence.clipping import Clipping
from training.swarm.defence.receipts import (
    DIGEST_BYTES,
    Commitment,
    Receipt,
    digest_of_commitments,
    digest_of_tensor,
)
from training.swarm.defence.transcript import KEPT_BYTES, Plan, Transcript
from training.swarm.engine.bounds import unpack
from training.swarm.engine.calls import first_of, until_hung_up
from training.swarm.engine.ids import named_peer
from training.swarm.engine.parts import LARGEST_HELD_BYTES, Part
from training.swarm.engine.quota import Quota
from training.swarm.node.identity import Signer
from training.swarm.peers.groups import MOST_PEERS

ASK_SECONDS = 0.5
"""Large parts can be shown only until the tensors change. So a peer that checks some of them waits this many seconds
for its groupmates' answers before it sends its verdict; the referee waits for the verdict."""
CHECK_SECONDS = 30.0
"""Longest wait for all messages of a check."""
PROOF_SECONDS = 60.0
"""Longest time in which a proof is sent to a groupmate."""
MOST_EVASIONS, MOST_OF_LARGE = 2, 3
"""Number of evaded checks from which on a peer counts as one that spoils averages; the second number is for parts that
are too large to be kept."""
FORGIVEN = 1 / 4
"""Share of an evasion that one successful check takes back. A peer that evades more than a fifth of its checks is found
in the end; if one successful check cancelled all evasions, a peer that lies every other time would never be found."""
EVASION_WEIGHT = 6.0
"""Weight of evasions among a peer's faults if parts are kept for some seconds, so that a peer that answers can show
them: it is left out for eight minutes at first. The weight is 1 for large parts: they must be shown at once, and links
may be slow."""
MOST_TOLD, TOLD_SHARE, MOST_TOLD_BY_ONE = 4, 1 / 4, 2
"""Limits of the reducers that a peer checks because others report evasions: their number, or this share of a group if
that is more, and the number of reports by one peer. Only for parts that are kept. With 12 of 53 peers evading checks,
the loss rose by 5.8 % at a limit of four, and by 3.1 % at a quarter of the group (`benchmarks/attacks/attacks.py
byzantine`)."""
LIE_WEIGHT = 9.0
"""Weight of a proof among a peer's faults: it is left out for an hour, the longest time. No accident signs a wrong
average."""
EVADED = b"evaded"
"""Mark beside the number of a part: the asking peer could not check this reducer recently."""
TRANSCRIPTS_KEPT = 8
"""Number of the last all-reduces about which groupmates may ask, and in which they may accuse a peer of a lie."""
CHECKS_AT_ONCE = 12
"""Most checks at a time. For each, this peer has a call open to every groupmate."""
PROOFS_AT_ONCE, PROOFS_IN_A_ROW, PROOF_PAUSE_SECONDS = 4, 2, 30.0
"""Most proofs that are read at a time, one of each peer; most proofs of one peer in a row, and the pause before each
further proof: a proof may take `LARGEST_HELD_BYTES` of memory, and some seconds."""
_VALUE_BYTES, _SLACK_BYTES = 4, 4096
"""Most bytes of a value, and of an encoded part beside its values."""

Caught = Callable[[str, float, str], None]
"""Reports a peer that this one has caught, with the weight of its fault and a description of the fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """Messages about one part that a groupmate shows."""

    receipt: Receipt | None = None
    commitments: tuple[Commitment, ...] | None = None
    """Commitments of the senders that a reducer has received."""
    part: runtime_pb2.Tensor | None = None


class Auditor(ServicerBase):
    """Checks reducers for this peer, and shows other peers the messages that they need for their checks.

    Args:
        connection: This peer's connection to the network.
        prefix: Prefix of the averager.
        signer: Signs with this peer's key.
        share: Share of the exchanged bytes that checks may take; see `Plan`.
        clipping: Rule by which the group averages; None: the weighted mean.
        caught: Called for reducers that lie, and for peers that evade checks.
        clock: Returns seconds; limits how often others may send proofs.
    """

    def __init__(
        self,
        connection: P2P,
        prefix: str,
        *,
        signer: Signer,
        share: float,
        clipping: Clipping | None,
        caught: Caught,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._connection, self._prefix, self._clipping, self._caught = connection, prefix, clipping, caught
        self._plan = Plan(prefix=prefix, signer=signer, share=share)
        self._transcripts: dict[bytes, Transcript] = {}
        self._evasions: Counter[tuple[PeerID, PeerID]] = Counter()
        """Number of checks that a peer has made impossible, by peer and reducer, which may be the same. A peer may show
        all others what it has sent to them and still hide what it has sent to an accomplice."""
        self._told: dict[PeerID, set[PeerID]] = {}
        """Reducers that evade checks, by the peer that reports it, until this peer has tried to check them."""
        most = {"at_once": PROOFS_AT_ONCE, "of_one": 1, "in_a_row": PROOFS_IN_A_ROW}
        self._proofs = Quota(**most, seconds=PROOF_PAUSE_SECONDS, clock=clock)
        self._tasks: set[asyncio.Task] = set()
        self._turns = asyncio.Semaphore(CHECKS_AT_ONCE)

    # -- an all-reduce of this peer ------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Makes the plan of the checks of the next all-reduce."""
        suspects = {reducer for _, reducer in self._evasions}
        # The reports may come from anybody: false ones only make this peer check more parts.
        peers = max((len(transcript.scope.peers) for transcript in self._transcripts.values()), default=0)
        most = max(MOST_TOLD, int(TOLD_SHARE * peers))
        told = sorted(set().union(*self._told.values()))
        suspects |= set(random.sample(told, min(len(told), most)))
        return replace(self._plan, suspects=frozenset(suspects))

    async def open(self) -> None:
        """Lets other peers call this one; see `RoundGuard`."""
        await self.add_p2p_handlers(self._connection, namespace=self._prefix)

    def begin(
        self, group_id: bytes, parts: Mapping[PeerID, Sequence[Part]], *, unvouched: frozenset[PeerID]
    ) -> Transcript:
        """Makes the guard of one all-reduce; see `RoundGuard`."""
        values = {peer: [part.values for part in ones] for peer, ones in parts.items()}
        own, on_finished = self._connection.peer_id, self.begin_checks
        transcript = Transcript(self.plan(), group_id, own, values, unvouched, on_finished=on_finished)
        self.keep(transcript)
        return transcript

    def keep(self, transcript: Transcript) -> None:
        """Lets groupmates ask about this all-reduce from now on, and about earlier small ones."""
        kept = 0
        # Two all-reduces may follow each other at once (`powersgd`), so the messages of more than one are kept.
        for one in reversed(self._transcripts.values()):
            kept += one.kept_bytes
            if kept > KEPT_BYTES:
                one.drop_messages()
        self._transcripts[transcript.scope.group_id] = transcript
        while len(self._transcripts) > TRANSCRIPTS_KEPT:
            del self._transcripts[next(iter(self._transcripts))]
        there = set(transcript.scope.peers)
        self._told = {peer: named & there for peer, named in self._told.items() if peer in there}

    async def begin_checks(self, transcript: Transcript) -> None:
        """Begins to check the drawn parts in the background; called when this peer has all answers of an all-reduce."""

        async def check_in_turn(reducer: PeerID, part: int) -> None:
            async with self._turns:
                await self._check(transcript, reducer, part)

        checks = [asyncio.create_task(check_in_turn(*one)) for one in sorted(transcript.chosen, key=repr)]
        for check in checks:
            self._tasks.add(check)
            check.add_done_callback(self._tasks.discard)
        if checks and not transcript.can_keep:
            await asyncio.wait(checks, timeout=ASK_SECONDS)

    async def _check(self, transcript: Transcript, reducer: PeerID, part: int) -> None:
        for named in self._told.values():
            named.discard(reducer)
        others = [peer for peer in transcript.scope.peers if peer != transcript.own]
        own = transcript.part(reducer, part)
        answers = await asyncio.gather(*(self._ask(transcript, peer, reducer, part) for peer in others))
        shown = dict(zip(others, answers, strict=True)) | {transcript.own: _Shown(part=own)}
        exchange = transcript.peers[reducer]
        receipt, kept = exchange.receipt, exchange.kept.pop(part, None)
        if own is None or receipt is None or kept is None:  # the tensors have changed before the check
            return
        facts = {"scope": transcript.scope, "reducer": reducer, "receiver": transcript.own, "receipt": receipt}
        for peer, one in shown.items():
            if one.receipt is not None and one.receipt.commitments != receipt.commitments:
                await self._judge(Case(**facts, other=(peer, one.receipt)))
        commitments = shown[reducer].commitments
        if commitments is None or digest_of_commitments(commitments) != receipt.commitments:
            evasive = {reducer} | {peer for peer in others if shown[peer] == _Shown()}
            await self._note_evasions(transcript, evasive, reducer, part)
            return
        case = Case(**facts, part=part, commitments=commitments)
        if are_sound(commitments, transcript.scope, reducer):
            evasive = {
                peer
                for peer, commitment in zip(transcript.scope.peers, commitments, strict=True)
                if (one := shown[peer].part) is None or digest_of_tensor(one) != commitment.digests[part]
            }
            if evasive:
                await self._note_evasions(transcript, evasive - {transcript.own}, reducer, part)
                return
            parts = tuple(shown[peer].part for peer in transcript.scope.peers)
            known = {"answers": tuple(exchange.answers), "values": exchange.parts[part].numel()}
            case = replace(case, parts=parts, answer=kept, **known)
        self._forgive(reducer)
        await self._judge(case)

    def _is_suspect(self, transcript: Transcript, reducer: PeerID) -> bool:
        """Returns True if a peer has recently evaded a check although its parts could have been kept."""
        return transcript.can_keep and any(checked == reducer for _, checked in self._evasions)

    def _forgive(self, reducer: PeerID) -> None:
        """Notes that a check of a reducer was possible.

        This reduces the counts of all evasions of this reducer's checks, also by peers that are not in the group: such
        a peer may never come back, and the reducer would be suspected for ever.
        """
        for role in [role for role in self._evasions if role[1] == reducer]:
            self._evasions[role] -= FORGIVEN
            if self._evasions[role] <= 0:
                del self._evasions[role]

    async def _note_evasions(self, transcript: Transcript, evasive: set[PeerID], reducer: PeerID, part: int) -> None:
        """Notes the peers that made a check of a reducer impossible, and reports new ones to the others.

        If these are most of the others, this peer itself was late, or is cut off, and nothing is noted. In a pair it
        may have been late if the parts are large, since the other need not wait for it. A peer that averages no part
        may be in client mode, where it cannot be called.
        """
        was_suspect = self._is_suspect(transcript, reducer)
        others = [one for one in transcript.scope.peers if one != transcript.own]
        if 2 * len(evasive) > len(others) and not (len(others) == 1 and transcript.can_keep):
            return
        for peer in evasive:
            # Many parts of one average may be asked for at once; if they are late, one cause delays them all.
            if transcript.peers[peer].parts and not transcript.peers[peer].evaded:
                transcript.peers[peer].evaded = True
                self._evasions[peer, reducer] += 1
                if self._evasions[peer, reducer] >= (MOST_EVASIONS if transcript.can_keep else MOST_OF_LARGE):
                    weight = EVASION_WEIGHT if transcript.can_keep else 1.0
                    self._caught(str(peer), weight, "does not show what it has averaged or sent, so it")
        if self._is_suspect(transcript, reducer) and not was_suspect:
            # The others hear of it when they are asked again; by then they have checked as often as this peer.
            await asyncio.gather(*(self._ask(transcript, peer, reducer, part) for peer in others))

    async def _judge(self, case: Case) -> None:
        lie = await asyncio.to_thread(lie_in, case, self._clipping)
        if lie is not None and self._convict(case, lie):
            others = [peer for peer in case.scope.peers if peer not in (case.receiver, case.reducer)]
            await asyncio.gather(*(self._accuse(peer, case) for peer in others))

    def _convict(self, case: Case, lie: str) -> bool:
        """Reports a proven lie to the trainer, once for each all-reduce. Returns True at the first time."""
        transcript = self._transcripts.get(case.scope.group_id)
        if transcript is None or transcript.peers[case.reducer].convicted:
            return False
        transcript.peers[case.reducer].convicted = True
        self._caught(str(case.reducer), LIE_WEIGHT, f"has {lie}, as its own signatures prove, and")
        return True

    # -- asking others -------------------------------------------------------------------------------------------------

    async def _ask(self, transcript: Transcript, peer: PeerID, reducer: PeerID, part: int) -> _Shown:
        """Asks a groupmate to show a part. The result is empty if the groupmate is gone, too slow, or sends something
        else."""
        facts = [part.to_bytes(4, "little"), *([EVADED] if self._is_suspect(transcript, reducer) else [])]
        request = averaging_pb2.MessageFromLeader(
            group_id=transcript.scope.group_id, suggested_leader=reducer.to_bytes(), gathered=facts
        )
        shown = _Shown()
        with suppress(Exception):  # after any error, this peer cannot check with the answer
            async with asyncio.timeout(CHECK_SECONDS):
                stub = self.get_stub(self._connection, peer, namespace=self._prefix)
                stream = first_of(await stub.rpc_show_part(request), 2)
                shown = _read_facts(await anext(stream), transcript, peer, reducer)
                message = (await anext(stream)).tensor_part
                if message.buffer and _fits(message, transcript):
                    shown = replace(shown, part=message)
                await anext(stream, None)  # closes the stream
        return shown

    async def _accuse(self, peer: PeerID, case: Case) -> None:
        with suppress(Exception):  # the groupmate is gone or busy; its own checks may find the lie
            async with asyncio.timeout(PROOF_SECONDS):
                await self.get_stub(self._connection, peer, namespace=self._prefix).rpc_accuse(_proof(case))

    # -- calls of groupmates -------------------------------------------------------------------------------------------

    async def rpc_show_part(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Answers a groupmate that checks a reducer, with the part that this peer has sent and its signed messages.

        Other callers get an empty answer.
        """
        async for message in until_hung_up(self._show(request, context.remote_id)):
            yield message

    async def _show(
        self, request: averaging_pb2.MessageFromLeader, peer: PeerID
    ) -> Messages[averaging_pb2.DownloadData]:
        transcript = self._transcripts.get(request.group_id)
        number, *more = request.gathered or [b""]
        if transcript is None or not self._may_ask(transcript, peer) or len(number) != 4 or more not in ([], [EVADED]):
            yield averaging_pb2.DownloadData()  # so that the caller need not wait
            return
        reducer = named_peer(request.suggested_leader)
        if more and reducer != transcript.own and transcript.can_keep:
            named = self._told.setdefault(peer, set())
            if len(named) < MOST_TOLD_BY_ONE:  # otherwise one peer could make all check every reducer
                named |= {reducer} & set(transcript.scope.peers)
        # Between this and the message, nothing else runs on this loop that could change the tensors.
        part = transcript.part(reducer, int.from_bytes(number, "little"))
        receipt = transcript.peers[reducer].receipt if reducer in transcript.peers else None
        commitments = transcript.commitments if reducer == transcript.own else None
        facts = [
            receipt.facts() if receipt is not None else None,
            [one.facts() for one in commitments] if commitments is not None else None,
        ]
        yield averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps(facts))
        yield averaging_pb2.DownloadData(tensor_part=part)

    def _may_ask(self, transcript: Transcript, peer: PeerID) -> bool:
        """Returns True if a caller is a groupmate and has not asked more often than a peer may."""
        if peer not in transcript.peers:
            return False
        transcript.peers[peer].asked += 1
        return transcript.peers[peer].asked <= transcript.most_asked

    async def rpc_accuse(
        self, stream: AsyncIterator[averaging_pb2.DownloadData], context: P2PContext
    ) -> averaging_pb2.MessageFromLeader:
        """Takes a proof of a groupmate that a reducer of a common all-reduce has lied.

        The answer is ACCEPTED if this peer finds the proof valid. It is NOT_DECLARED if this peer has not looked, since
        it reads others' proofs, or has read several of this groupmate's.
        """
        refused = averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
        if not any(context.remote_id in transcript.scope.peers for transcript in self._transcripts.values()):
            return refused
        with self._proofs.request(context.remote_id) as allowed:
            if not allowed:
                return averaging_pb2.MessageFromLeader(code=averaging_pb2.NOT_DECLARED)
            try:
                async with asyncio.timeout(PROOF_SECONDS):
                    case = await self._read_proof(stream, context.remote_id)
            except Exception:  # an error of any kind shows that this is not a proof
                return refused
            lie = await asyncio.to_thread(lie_in, case, self._clipping)
        if lie is None:
            return refused
        self._convict(case, lie)
        return averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)

    async def _read_proof(self, stream: Messages[averaging_pb2.DownloadData], accuser: PeerID) -> Case:
        """Reads a proof.

        Raises:
            ValueError: If it is malformed, too long, or of no all-reduce of this peer and the accuser.
        """
        facts = unpack((await anext(stream)).metadata)
        group_id, reducer, part, receipt, other, commitments, answers = facts
        transcript = self._transcripts.get(group_id) if type(group_id) is bytes else None
        if transcript is None or type(part) is not int or type(answers) is not bytes or len(commitments) > MOST_PEERS:
            raise ValueError("this is no proof")
        case = Case(
            scope=transcript.scope,
            reducer=named_peer(reducer),
            receiver=accuser,
            receipt=Receipt.read(receipt),
            part=part,
            other=None if other is None else (named_peer(other[0]), Receipt.read(other[1])),
            commitments=tuple(Commitment.read(one) for one in commitments),
            answers=tuple(answers[n : n + DIGEST_BYTES] for n in range(0, len(answers), DIGEST_BYTES)),
        )
        if not {accuser, case.reducer} <= set(transcript.scope.peers) - {transcript.own}:
            raise ValueError("this is a proof about somebody else")
        tensors, peers = [], len(transcript.scope.peers)
        left = LARGEST_HELD_BYTES + (peers + 1) * _SLACK_BYTES + _VALUE_BYTES * transcript.most_values
        async for message in first_of(stream, peers + 1):
            left -= message.ByteSize()
            if left < 0 or not _fits(message.tensor_part, transcript):
                raise ValueError("a proof is too long")
            tensors.append(message.tensor_part)
        averaged = transcript.peers[case.reducer].parts
        if not tensors or not 0 <= part < len(averaged):
            return case
        values = averaged[part].numel()
        return replace(case, parts=tuple(tensors[:-1]), answer=tensors[-1], values=values)


def _read_facts(message: averaging_pb2.DownloadData, transcript: Transcript, peer: PeerID, reducer: PeerID) -> _Shown:
    """Reads the messages that a peer shows about a part of a reducer.

    Raises:
        ValueError: If they are malformed.
    """
    receipt, commitments = unpack(message.metadata)
    receipt = None if receipt is None else Receipt.read(receipt)
    if receipt is not None and not receipt.holds(transcript.scope, reducer=reducer, receiver=peer):
        receipt = None
    if peer != reducer or commitments is None:
        return _Shown(receipt=receipt)
    if len(commitments) != len(transcript.scope.peers):
        raise ValueError("a reducer shows another number of commitments than there are peers")
    return _Shown(receipt=receipt, commitments=tuple(Commitment.read(one) for one in commitments))


def _fits(message: runtime_pb2.Tensor, transcript: Transcript) -> bool:
    """Returns True if a part is no longer than this peer's longest; a longer one is not decoded."""
    most = transcript.most_values
    if message.ByteSize() > _VALUE_BYTES * most + _SLACK_BYTES:
        return False
    sizes = list(message.size)
    return len(sizes) <= 8 and all(size >= 0 for size in sizes) and math.prod(sizes) <= most


async def _proof(case: Case) -> Messages[averaging_pb2.DownloadData]:
    """Yields the messages that carry a proof."""
    other = None if case.other is None else [case.other[0].to_bytes(), case.other[1].facts()]
    commitments = [one.facts() for one in case.commitments]
    facts = [case.scope.group_id, case.reducer.to_bytes(), case.part, case.receipt.facts(), other, commitments]
    yield averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps([*facts, b"".join(case.answers)]))
    if case.answer is not None:
        for message in (*case.parts, case.answer):
            yield averaging_pb2.DownloadData(tensor_part=message)
