"""Groups that wait for the peers that are expected, and start at once when these are there."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from calculator.swarm.forecast import PATIENCE_WINDOWS
from training.swarm.node.admission import Admission, admission_of
from training.swarm.node.dht import announced_peer, own_subkey
from training.swarm.node.slow_nodes import slow_peers
from training.swarm.peers.groups import Announcement
from training.swarm.round.gathering import NonsenseError, Words, members_of, name_of, renewed
from training.trust.check import TicketRefused

logger = logging.getLogger(__name__)

TURN_SHARE = 0.75
"""A leader rejects a request that has waited for longer than this share of the requester's patience: its answer could
arrive when the requester has given up. The rest of the patience is for the answer's way."""
LATE_SECONDS = 0.5
"""A leader's last word may be so late."""
AVOIDED_SECONDS = 60.0
"""A leader that has said nothing more is not asked again for so long; it may still follow others."""
MOST_IDLE = 2
"""After so many times, with no group of it in between, it counts as one that spoils; once it may be a busy machine."""
MAJORITY_WINDOWS = 2
"""After `PATIENCE_WINDOWS`, a group needs only the majority of the expected peers, for so many windows. If any two
could go on then, one peer with a bad link would make the others part in pairs, with weights that differ."""
MUTE_WINDOWS = 1.5
"""A leader that does not answer in time, or answers nonsense, is not asked again for so many windows, if there may be
others. Else each window would be spent on the one peer whose link is full."""
MOST_REDIRECTS = 3
"""So often in a row this peer goes to another leader because the one that it has asked sends it there."""
_LOOK_SECONDS, _PAUSE_SHARE = 0.1, 0.25
"""Shortest pause before a look for leaders, and the pause's share of the time that the search has lasted; half a window
at most. hivemind's own loop asks the DHT without pause: it keeps a core busy, and fills the links of those who answer.
Peers that come late look often, and find those who wait."""


@dataclass(kw_only=True, slots=True)
class Search:
    """A search for a group, with the fields that hivemind's matchmaking reads of a step."""

    data_for_gather: bytes
    """What the group is told."""
    deadline: float
    """DHT time at which the search ends."""
    scheduled_time: float
    """DHT time at which this peer's first window ends."""

    def get_timeout(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.deadline - get_dht_time())


class PatientMatchmaking(Matchmaking):
    """Matchmaking that knows how many peers to expect.

    hivemind's groups always wait for the end of a window, and start then with whoever has come: a peer that computes
    for longer than the window is left out. Here a group starts as soon as all expected peers have come, and a smaller
    one only after some windows. The number is a hint: if it is too low, the peers form two groups for a round; if it is
    too high, for example after a peer's death, the group waits for `PATIENCE_WINDOWS` windows, and then for
    `MAJORITY_WINDOWS` if it has fewer than the most of them.

    Args:
        min_group_size: A smaller group does not average.
        target_group_size: A group of this size starts at once; None: there is no largest size.
        epochs_apart: See `Strategy.epochs_apart`.
        kwargs: See hivemind.
    """

    _admission: Admission | None = None

    def __init__(self, *args, min_group_size: int, target_group_size: int | None, epochs_apart: int = 0, **kwargs):
        self._least, self._most, self._epochs_apart = min_group_size, target_group_size, epochs_apart
        self._expected, self._began = 0, -math.inf
        self._arrivals: dict[int, float] = {}
        self.left_out: frozenset[PeerID] = frozenset()
        """Peers that this one neither leads nor follows; see `standing`."""
        self._leader: PeerID | None = None
        self._following_until = math.inf
        self._idle: Counter[PeerID] = Counter()
        self._idle_at: dict[PeerID, float] = {}
        self._mute_at: dict[PeerID, float] = {}
        self._nonsense_at: dict[PeerID, float] = {}
        self._spoilers: set[PeerID] = set()
        self._asked: list[PeerID] = []
        """Whom this peer asks now, after those that have sent it there."""
        kwargs["servicer_type"] = _prompt(kwargs["servicer_type"], kwargs["request_timeout"])
        super().__init__(*args, min_group_size=min_group_size, target_group_size=target_group_size, **kwargs)
        # hivemind's constructor has made a manager, and gives no way to pass another one.
        manager = self.group_key_manager
        self._admission = admission_of(manager.dht)
        self.group_key_manager = PatientKeyManager(
            manager.dht,
            manager.prefix,
            manager.group_bits,
            manager.target_group_size,
            follows=self._follows,
            pause=self._pause_between_looks,
            window_seconds=self.min_matchmaking_time,
        )

    async def find_group(self, told: bytes, *, deadline: float, expected_peers: int) -> GroupInfo | None:
        """A group for one average; None if there was none until the deadline.

        Args:
            told: What its peers are told: packed `Words`.
            deadline: In DHT time.
            expected_peers: How many peers the group should have; 0: nobody knows.
        """
        self._expected = min(expected_peers, self._most or expected_peers)
        self._began = time.monotonic()
        window_ends = get_dht_time() + self.min_matchmaking_time
        search = Search(data_for_gather=renewed(told), deadline=deadline, scheduled_time=window_ends)
        try:
            group = await self.look_for_group(search)
            # hivemind takes a cancellation that comes while its search ends for that of a task of its own. The round
            # would go on, and wait for ever for a trainer that has given it up.
            if asyncio.current_task().cancelling():
                raise asyncio.CancelledError
            return group
        finally:
            # hivemind leaves a task for each follower, which waits for this event. Another search, which this one has
            # waited for in vain, still needs it.
            if not self.is_looking_for_group:
                self.was_accepted_to_group.set()
                self.was_accepted_to_group.clear()

    async def expect_fewer(self, gone: int) -> None:
        """So many of the expected peers are gone: a group that lacks nobody else starts now.

        A negative number: so many that were taken for dead have answered.
        """
        if not self.is_looking_for_group:
            return
        self._expected = max(self._expected - gone, 0)
        async with self.lock_request_join_group:
            is_leader = self.is_looking_for_group and self.current_leader is None and self.current_followers
            if is_leader and not self.assembled_group.done() and self._is_complete():
                await self.leader_assemble_group()

    def _is_complete(self) -> bool:
        most = self.target_group_size
        return most is not None and len(self.current_followers) + 1 >= most

    # hivemind compares the sizes of its groups with these two whenever a peer comes or a window ends. As properties,
    # they may change during a search. The setters are for hivemind's constructor, which assigns both.

    @property
    def target_group_size(self) -> int | None:
        """A group of this size starts at once."""
        return self._expected if self._expected >= self._least else self._most

    @target_group_size.setter
    def target_group_size(self, value: int | None) -> None:
        self._most = value

    @property
    def min_group_size(self) -> int:
        """A group of this size starts at the end of a window."""
        windows = (time.monotonic() - self._began) / self.min_matchmaking_time
        if windows < PATIENCE_WINDOWS:
            return max(self._expected, self._least)
        majority = self._expected // 2 + 1 if windows < PATIENCE_WINDOWS + MAJORITY_WINDOWS else 0
        return max(majority, self._least)

    @min_group_size.setter
    def min_group_size(self, value: int) -> None:
        self._least = value

    # -- as a follower -----------------------------------------------------------------------------------------------

    @property
    def current_leader(self) -> PeerID | None:
        """Whom this peer follows."""
        return self._leader

    @current_leader.setter
    def current_leader(self, leader: PeerID | None) -> None:
        self._leader = leader
        if leader is not None:
            left = max(0.0, self.get_request_expiration_time() - get_dht_time())
            self._following_until = time.monotonic() + left

    async def _request_join_group(self, leader: PeerID) -> GroupInfo | None:
        """Asks a peer to lead this one; notes a leader that does not answer, or accepts and then says nothing more.

        An honest one starts its group when its window ends, or sends its followers away.

        Raises:
            NonsenseError: If the leader answers what no leader says, or names no group; see `follower_assemble_group`.
        """
        # hivemind goes where a leader sends it: also to one that this peer leaves out, and round in circles.
        if leader in self.left_out or leader in self._asked or len(self._asked) > MOST_REDIRECTS:
            return None
        self._following_until, answered, asked_at = math.inf, False, time.monotonic()
        self._asked.append(leader)
        try:
            group = await super()._request_join_group(leader)
            answered = group is not None
            accepted = math.isfinite(self._following_until)
            if not (answered or accepted) and time.monotonic() - asked_at >= self.request_timeout:
                self._mute_at[leader] = time.monotonic()
        except TicketRefused:  # the leader's fault or late news of a ban: `follower_assemble_group` has judged that
            raise
        except ValueError:  # by hivemind, which looks up the name of a code that has none
            self._note_nonsense(leader)
            raise NonsenseError("a leader answers with a code that there is not") from None
        finally:  # also if the search is given up meanwhile, because the others have gone on
            self._asked.pop()
            if not answered and time.monotonic() >= self._following_until + LATE_SECONDS:
                self._note_idle(leader)
                self._following_until = math.inf  # whoever has sent this peer there is not to blame
        return group

    def _follows(self, leader: PeerID) -> bool:
        now, muted = time.monotonic(), MUTE_WINDOWS * self.min_matchmaking_time
        is_idle = now - self._idle_at.get(leader, -math.inf) < AVOIDED_SECONDS
        is_mute = self._expected > 2 and now - self._mute_at.get(leader, -math.inf) < muted
        return leader not in self.left_out and not (is_idle or is_mute)

    def _pause_between_looks(self) -> float:
        lasted = time.monotonic() - self._began
        return min(max(_LOOK_SECONDS, _PAUSE_SHARE * lasted), max(self.min_matchmaking_time / 2, _LOOK_SECONDS))

    def _note_idle(self, leader: PeerID) -> None:
        self._idle[leader] += 1
        self._idle_at[leader] = time.monotonic()
        if self._idle[leader] >= MOST_IDLE:
            self._spoilers.add(leader)

    def _note_nonsense(self, leader: PeerID) -> None:
        self._spoilers.add(leader)
        self._mute_at[leader] = self._nonsense_at[leader] = time.monotonic()

    async def follower_assemble_group(self, leader: PeerID, msg: averaging_pb2.MessageFromLeader) -> GroupInfo:
        """The group that a leader names.

        Raises:
            NonsenseError: If its words, or its members', make no sense.
            TicketRefused: If a member has no ticket that holds.
        """
        try:
            peers = members_of(msg)
            self._check_epochs(msg.gathered)
            for peer, words in zip(peers, msg.gathered, strict=True):
                self._check_ticket(peer, words)
            self._check_name(msg.group_id, peers, msg.gathered)
        except (NonsenseError, TicketRefused) as error:
            if not self._may_be_late_news(error):
                self._note_nonsense(leader)
            raise
        self._idle.pop(leader, None)
        return await super().follower_assemble_group(leader, msg)

    def _check_name(self, group_id: bytes, peers: Sequence[PeerID], gathered: Sequence[bytes]) -> None:
        if (self.peer_id, self.step_control.data_for_gather) not in zip(peers, gathered, strict=True):
            raise NonsenseError("a leader tells its group other words than this peer's own")
        if group_id != name_of(peers, gathered):
            raise NonsenseError("a leader names another group than that of its members")

    def _check_ticket(self, peer: PeerID, words: bytes) -> None:
        if self._admission is not None and peer != self.peer_id:
            self._admission.check(Words.read(words).ticket, str(peer), trains=True)

    def _may_be_late_news(self, error: Exception) -> bool:
        return isinstance(error, TicketRefused) and self._admission.may_be_late_news(error)

    def _check_epochs(self, gathered: Collection[bytes]) -> None:
        """A leader takes only followers near its own epoch, so no two members are further apart than this."""
        epochs = [told.epoch for words in gathered if (told := _announcement_in(words)) is not None]
        if epochs and max(epochs) - min(epochs) > 2 * self._epochs_apart:
            raise NonsenseError("a leader names members of different epochs")

    def take_spoilers(self) -> set[str]:
        """Leaders that have wasted this peer's time since the last call."""
        spoilers, self._spoilers = self._spoilers, set()
        for peer in spoilers:
            self._idle.pop(peer, None)
        return set(map(str, spoilers))

    # -- as a leader -------------------------------------------------------------------------------------------------

    @property
    def has_no_group(self) -> bool:
        """Whether this peer is surely in no group: it looks for one, and no leader can be adding it to one now."""
        asks = self.lock_request_join_group.locked() or self.current_leader is not None
        return self.is_looking_for_group and not asks and not self.assembled_group.done()

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """A peer asks this one to lead it.

        In hivemind, two peers that ask each other at the same moment both wait until they give up, since each holds
        the lock that the other's request needs. Then one may be in a group that the other knows nothing of. Here a
        request that would be rejected is rejected before it waits for the lock.
        """
        if (reason := self._check_reasons_to_reject(request, context)) is not None:
            yield reason
            return
        self._arrivals[id(context)], last = time.monotonic(), None
        try:
            async for message in super().rpc_join_group(request, context):
                if message.code == averaging_pb2.ACCEPTED:
                    yield message
                else:
                    last = message
        finally:
            del self._arrivals[id(context)]
        # hivemind's part ends first: until then, the leader's search waits. A follower that reads nothing would hold
        # up its leader for as long as it likes.
        if last is not None:
            yield last

    def _check_reasons_to_reject(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader | None:
        """hivemind's reasons, and more: the requester is left out, is no member, talks nonsense, may have given up, or
        its gradients are of another epoch.

        Without the last, a peer that is late for the end of an epoch forms a group with a peer that is early for the
        end of the next one. The two wait for that end, and a third peer finds neither of them.
        """
        reason = super()._check_reasons_to_reject(request, context)
        if reason is not None:
            return reason
        if not self._lets_in(context.remote_id, request.gather):
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
        arrived = self._arrivals.get(id(context))
        if arrived is not None and time.monotonic() - arrived > TURN_SHARE * self.request_timeout:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.NOT_LOOKING_FOR_GROUP)
        own, other = _announcement_in(self.step_control.data_for_gather), _announcement_in(request.gather)
        if own is None or other is None:
            return None
        if abs(own.epoch - other.epoch) > self._epochs_apart:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_KEY)
        if arrived is not None and self._expected:
            self._make_room_for(other)
        return None

    def _lets_in(self, peer: PeerID, words: bytes) -> bool:
        """Whether a peer may follow this one: its words make sense, and its ticket holds if it needs one."""
        with suppress(NonsenseError, TicketRefused):
            Words.read(words)
            self._check_ticket(peer, words)
            return peer not in self.left_out and not self._has_just_told_nonsense(peer)
        return False

    def _has_just_told_nonsense(self, peer: PeerID) -> bool:
        """Then the group does not expect it, and it would take an honest peer's place."""
        muted = MUTE_WINDOWS * self.min_matchmaking_time
        return time.monotonic() - self._nonsense_at.get(peer, -math.inf) < muted

    async def leader_assemble_group(self) -> GroupInfo:
        """The group of this peer and its followers, without those that have been banned since they came.

        As hivemind's, but for the group's id, which hivemind draws at random.

        Raises:
            NonsenseError: If no other is left.
        """
        for peer, request in list(self.current_followers.items()):
            if not self._lets_in(peer, request.gather):
                del self.current_followers[peer]
                if not self.current_followers:
                    raise NonsenseError("the last follower may no longer take part")
        words = {peer: request.gather for peer, request in self.current_followers.items()}
        words[self.peer_id] = self.step_control.data_for_gather
        peers = random.sample(list(words), len(words))
        gathered = tuple(words[peer] for peer in peers)
        group = GroupInfo(name_of(peers, gathered), tuple(peers), gathered)
        await self.group_key_manager.update_key_on_group_assembled(group)
        self.assembled_group.set_result(group)
        return group

    def _make_room_for(self, newcomer: Announcement) -> None:
        """The group waits for one peer more if a newcomer knows of more peers than are expected.

        The others do not count the newcomer yet. Without this it would complete the group in place of one of them.
        """
        most = min(self._expected + 1, self._most or self._expected + 1)
        self._expected = max(self._expected, min(newcomer.expected_peers, most))


def _prompt(servicer: type[ServicerBase], seconds: float) -> type[ServicerBase]:
    """The same class, whose calls to leaders are open within so many seconds.

    hivemind holds the lock that other peers' requests need while the stream to a leader opens, however long that takes.
    """

    class Prompt(servicer):
        @classmethod
        def get_stub(cls, *args, **kwargs) -> _PromptStub:
            return _PromptStub(servicer.get_stub(*args, **kwargs), seconds)

    return Prompt


class _PromptStub:
    def __init__(self, stub: object, seconds: float):
        self._stub, self._seconds = stub, seconds

    async def rpc_join_group(self, request: averaging_pb2.JoinRequest) -> AsyncIterator:
        return await asyncio.wait_for(self._stub.rpc_join_group(request), self._seconds)


def _announcement_in(gather: bytes) -> Announcement | None:
    """The announcement in what hivemind's join requests carry."""
    with suppress(NonsenseError):
        return Announcement.read(Words.read(gather).told)
    return None


class PatientKeyManager(GroupKeyManager):
    """Announces averagers by signed records, and looks for them with pauses.

    Args:
        args: hivemind's.
        follows: Whether this peer would follow another one.
        pause: Seconds to the next look.
        window_seconds: So long from now an announcement is valid at most.
    """

    def __init__(self, *args, follows: Callable[[PeerID], bool], pause: Callable[[], float], window_seconds: float):
        self._follows, self._pause, self._window_seconds = follows, pause, window_seconds
        super().__init__(*args)

    # hivemind takes the subkey of an announcement for a peer id. Ours is the key that signs it, so that nobody can
    # announce another peer, and is passed to hivemind as if it were such an id.

    async def declare_averager(self, group_key: str, _peer_id: PeerID, *args, **kwargs) -> bool:
        return await super().declare_averager(group_key, PeerID(own_subkey(self.dht)), *args, **kwargs)

    async def get_averagers(self, group_key: str, only_active: bool) -> list:
        """See hivemind. An error, such as that of a node that is too busy to answer, is the same as nobody: hivemind's
        search would look for no leader any more, and say nothing."""
        await asyncio.sleep(self._pause())
        try:
            return await self._leaders(group_key, only_active)
        except Exception as error:
            logger.debug("The leaders of a group could not be looked up: %r", error)
            return []

    async def _leaders(self, group_key: str, only_active: bool) -> list:
        announced = await super().get_averagers(group_key, only_active)
        averagers = [(announced_peer(self.dht, subkey.to_bytes()), until) for subkey, until in announced]
        # hivemind looks for no new leaders while it knows of one that is announced for longer than its search lasts,
        # and does not follow that one. A single announcement by a clock that is ahead, or by somebody who wishes it,
        # would keep all others from finding each other.
        latest = get_dht_time() + self._window_seconds
        averagers = [
            (peer, min(until, latest)) for peer, until in averagers if peer is not None and self._follows(peer)
        ]
        # A leader with a full link would hold up its whole group.
        ask = partial(slow_peers, [peer for peer, _ in averagers])
        slow = await self.dht.run_coroutine(ask, return_future=True)
        return [(peer, until) for peer, until in averagers if peer not in slow]
