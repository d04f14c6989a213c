"""Matchmaking: a peer asks a leader to take it in, or leads peers that ask it.

Each peer that looks for a group announces in the DHT when its window ends. It asks peers whose windows end before its
own, the earliest first:

    follower                                leader
    rpc_join_group  --- its facts ------->  takes it in, or says why not
                    <-- ACCEPTED ---------
                    <-- BEGIN_ALLREDUCE --  all expected peers are there, or the window has ended: the group
                    <-- GROUP_DISBANDED --  too few have come, or the leader follows another peer: look again

A leader takes in only peers whose windows end after its own, so no two peers can follow each other. A group begins as
soon as all expected peers have come, and a smaller one only after some windows. The number of expected peers is a hint.
If it is too low, the peers form two groups for a round. If it is too high, for example after a peer's death, the group
waits for `PATIENCE_WINDOWS` windows, and then for `MAJORITY_WINDOWS` if it has fewer than most of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

import torch
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from calculator.swarm.forecast import PATIENCE_WINDOWS
from calculator.swarm.settings import MIN_GROUP_SIZE
from training.swarm.engine.ids import digest_of
from training.swarm.engine.process import DHT
from training.swarm.node.admission import admission_of
from training.swarm.node.dht import announced_peer, own_subkey
from training.swarm.node.slow_nodes import slow_peers
from training.swarm.peers.groups import Announcement
from training.swarm.round.gathering import FormedGroup, GroupMessage, NonsenseError, renewed
from training.swarm.round.pipe import AveragerSettings
from training.trust.check import TicketRefused

logger = logging.getLogger(__name__)

LATE_SHARE = 0.25
"""Share of a request's time-out by which a leader's last message may be late."""
IDLE_WEIGHT = 0.75
"""Weight of the fault of a leader that goes silent after taking a peer in; its machine may be busy."""
MAJORITY_WINDOWS = 2
"""Windows after `PATIENCE_WINDOWS` in which a group needs only the majority of the expected peers. If any two peers
could begin, one peer with a bad link would split the others into pairs, with weights that differ."""
LOOK_SECONDS, PAUSE_SHARE = 0.1, 0.25
"""Shortest pause before a look for leaders, and the pause's share of the time that the search has lasted; half a window
at most. Peers that come late look often, and find peers that wait."""

Message = averaging_pb2.MessageFromLeader


@dataclass(kw_only=True, slots=True, eq=False)
class Search:
    """A search for a group; needs a running event loop."""

    message: bytes
    """Packed message of this peer to its group."""
    deadline: float
    """DHT time at which the search ends."""
    expected: int
    """Number of peers that the group should have; 0: unknown."""
    faults: dict[PeerID, float]
    """Weight of the fault of each peer that has wasted this round's time; 1 or more: the fault is beyond doubt."""
    began: float = field(default_factory=time.monotonic)
    window_ends: float = -math.inf
    """DHT time at which this peer's own window ends."""
    asks: bool = False
    """True while a leader may be adding this peer to a group."""
    follows: bool = False
    """True once a leader has taken this peer in."""
    asked: set[tuple[float, PeerID]] = field(default_factory=set)
    """Announcements of leaders that this peer has asked: the end of the window, and the leader."""
    followers: dict[PeerID, bytes] = field(default_factory=dict)
    """Peers that follow this one, each with its packed message."""
    fate: asyncio.Future[FormedGroup | None] = field(default_factory=asyncio.Future)
    """Result for the followers: their group, or None if they are sent away."""
    found: asyncio.Future[FormedGroup] = field(default_factory=asyncio.Future)
    """Result for this peer: its group."""

    def send_followers_away(self) -> None:
        """Tells the followers to look for another leader."""
        self.fate.set_result(None)
        self.followers, self.fate = {}, asyncio.Future()

    def end(self) -> None:
        """Ends the search: from now on no peer can follow this one."""
        self.found.cancel()
        if not self.fate.done():
            self.fate.set_result(None)


class Matchmaking:
    """Finds groups for an averager.

    Args:
        connection: This peer's connection to the network.
        dht: A running node, where peers announce themselves.
        servicer: Class of the averager's process, which leaders run as well.
        settings: The averager's settings.
        schema: Digest of the averager's tensors; only peers with the same digest form a group.
    """

    def __init__(
        self, connection: P2P, dht: DHT, servicer: type[ServicerBase], settings: AveragerSettings, *, schema: bytes
    ):
        self._connection, self._dht, self._servicer, self._schema = connection, dht, servicer, schema
        self._own = connection.peer_id
        self._settings, self._window = settings, settings.matchmaking_seconds
        self._key, self._admission = announcements_key(settings.prefix), admission_of(dht)
        self.left_out: frozenset[PeerID] = frozenset()
        """Peers that this peer neither leads nor follows."""
        self._search: Search | None = None
        self._one_search = asyncio.Lock()

    async def find_group(
        self, message: bytes, *, deadline: float, expected_peers: int, faults: dict[PeerID, float]
    ) -> FormedGroup | None:
        """Looks for a group for one average. Returns None if there was no group until the deadline.

        Args:
            message: Message for the group's peers: packed `GroupMessage`.
            deadline: End of the search, in DHT time.
            expected_peers: Number of peers that the group should have; 0: unknown.
            faults: Weights of faults by peer, as in `Search`; peers that waste this peer's time are added.
        """
        async with self._one_search:  # a search that was given up may not have ended yet
            search = Search(message=renewed(message), deadline=deadline, expected=expected_peers, faults=faults)
            self._search, looking = search, asyncio.create_task(self._look(search))
            try:
                await asyncio.wait({looking, search.found}, return_when=asyncio.FIRST_COMPLETED)
                if not search.found.done():
                    looking.result()
                return search.found.result() if search.found.done() else None
            finally:
                self._search = None
                search.end()
                looking.cancel()
                await asyncio.wait({looking})
                self._announce(search, is_looking=False)

    async def _look(self, search: Search) -> None:
        """Looks for leaders, window after window; returns at the deadline."""
        while get_dht_time() < search.deadline:
            search.window_ends = min(get_dht_time() + self._window, search.deadline)
            self._announce(search)
            while (left := search.window_ends - get_dht_time()) > 0:
                await asyncio.sleep(min(self._pause(search), left))
                for one in await self._leaders(search):
                    if self._may_ask(search, *one):
                        search.asked.add(one)
                        await self._ask(search, one[1])
                        self._begin_if_complete(search)
            if not self._begin(search, self._fewest(search)):
                search.send_followers_away()

    def _announce(self, search: Search, *, is_looking: bool = True) -> None:
        """Announces in the DHT that this peer leads until its window ends, or no longer leads; does not wait for the
        node."""
        if not self._settings.client_mode:
            until = search.window_ends if is_looking else math.nextafter(search.window_ends, math.inf)
            subkey = own_subkey(self._dht)
            self._dht.store(self._key, subkey=subkey, value=is_looking, expiration_time=until, return_future=True)

    def _pause(self, search: Search) -> float:
        lasted = time.monotonic() - search.began
        return min(max(LOOK_SECONDS, PAUSE_SHARE * lasted), max(self._window / 2, LOOK_SECONDS))

    # -- as a follower -----------------------------------------------------------------------------------------------

    async def _leaders(self, search: Search) -> list[tuple[float, PeerID]]:
        """Returns the peers that announce a search, with the ends of their windows, except those behind a slow link.

        A leader behind a slow link would hold up its whole group. After an error, such as that of a busy node, the list
        is empty.
        """
        try:
            async with asyncio.timeout(max(search.window_ends - get_dht_time(), 0.0)):
                found = await announced(self._dht, self._key)
                ask = partial(slow_peers, [peer for _, peer in found])
                slow = await self._dht.run_coroutine(ask, return_future=True)
        except Exception as error:
            logger.debug("The leaders of a group could not be looked up: %r", error)
            return []
        return [(until, peer) for until, peer in found if peer not in slow]

    def _may_ask(self, search: Search, until: float, leader: PeerID) -> bool:
        """Returns True if this peer would follow a leader whose window ends at the DHT time `until`.

        A leader that has not answered (weight 0) is asked again only in a pair, where there is nobody else to ask.
        Among more peers, this peer would spend each window on the leader whose link is full.
        """
        has_wasted = leader in search.faults and (search.faults[leader] > 0 or search.expected > 2)
        if leader == self._own or leader in self.left_out or has_wasted:
            return False
        return (until, leader) not in search.asked and (until, leader) < (self._expiration(search), self._own)

    def _expiration(self, search: Search) -> float:
        """DHT time until which this peer would follow a leader."""
        if self._settings.client_mode:
            return min(get_dht_time() + self._window, search.deadline)
        return search.window_ends

    async def _ask(self, search: Search, leader: PeerID) -> None:
        """Asks a peer to lead this one; follows it to its group if it does."""
        timeout, expiration = self._settings.request_timeout_seconds, self._expiration(search)
        began, answered, search.asks = get_dht_time(), False, True
        request = averaging_pb2.JoinRequest(schema_hash=self._schema, expiration=expiration, gather=search.message)
        stub = self._servicer.get_stub(self._connection, leader, namespace=self._settings.prefix)
        try:
            async with asyncio.timeout(min(timeout, expiration - began)) as limit:
                async with aclosing(await stub.rpc_join_group(request)) as messages:
                    if (await anext(messages)).code != averaging_pb2.ACCEPTED:
                        return
                    search.follows = True
                    search.send_followers_away()
                    left = expiration - get_dht_time() + timeout
                    limit.reschedule(asyncio.get_running_loop().time() + left)
                    last = await anext(messages)
                    answered = True
                    if last.code == averaging_pb2.BEGIN_ALLREDUCE:
                        self._join(search, leader, last)
        except TimeoutError:
            if not search.follows and get_dht_time() - began >= timeout:
                search.faults.setdefault(leader, 0.0)
        except Exception as error:  # after any error, this peer asks the next leader
            logger.debug("%s does not lead this peer: %r", leader, error)
        finally:  # also if the search is given up meanwhile, because the others have gone on
            if search.follows and not answered and get_dht_time() > expiration + LATE_SHARE * timeout:
                search.faults.setdefault(leader, IDLE_WEIGHT)
            search.asks = search.follows = False

    def _join(self, search: Search, leader: PeerID, message: Message) -> None:
        """Joins the group that a leader names, unless the message makes no sense or a member has no valid ticket."""
        try:
            group = FormedGroup.read(message)
            self._check_epochs(group)
            for peer, message in zip(group.peers, group.messages, strict=True):
                self._check_ticket(peer, message)
            if (self._own, search.message) not in zip(group.peers, group.messages, strict=True):
                raise NonsenseError("a leader tells its group another message than this peer's own")
        except TicketRefused as refused:
            if not self._admission.may_be_late_news(refused):  # the leader has not heard of a member's ban yet
                self._blame(search, leader)
            return
        except NonsenseError:
            self._blame(search, leader)
            return
        if not search.found.done():
            search.found.set_result(group)

    def _check_ticket(self, peer: PeerID, message: bytes) -> None:
        if self._admission is not None and peer != self._own:
            self._admission.check(GroupMessage.read(message).ticket, str(peer), trains=True)

    def _check_epochs(self, group: FormedGroup) -> None:
        """Raises NonsenseError if a group's members are too many epochs apart.

        A leader takes in only followers that are at most `epochs_apart` from its own epoch, so two members are at most
        twice as far apart.
        """
        epochs = [
            announcement.epoch for message in group.messages if (announcement := _announcement_in(message)) is not None
        ]
        if epochs and max(epochs) - min(epochs) > 2 * self._settings.epochs_apart:
            raise NonsenseError("a leader names members of different epochs")

    def _blame(self, search: Search, leader: PeerID) -> None:
        """Notes that a leader has sent nonsense: this round's groups neither expect it nor take it in."""
        search.faults[leader] = 1.0
        search.expected = max(search.expected - 1, 0)

    # -- as a leader -------------------------------------------------------------------------------------------------

    @property
    def has_no_group(self) -> bool:
        """True if this peer is certainly in no group: it looks for one, and no leader can be adding it to one now."""
        search = self._search
        return search is not None and not search.asks and not search.found.done()

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """Answers a peer that asks this one to lead it: refuses, or accepts and later sends the group."""
        search, peer = self._search, context.remote_id
        if (refusal := self._refusal(search, request, peer)) is not None:
            yield Message(code=refusal)
            return
        followers, fate = search.followers, search.fate
        followers[peer] = request.gather
        try:
            yield Message(code=averaging_pb2.ACCEPTED)
            self._begin_if_complete(search)
            group = await asyncio.shield(fate)
        finally:  # also if the follower hangs up
            del followers[peer]
        if group is None or peer not in group.peers:
            yield Message(code=averaging_pb2.GROUP_DISBANDED)
        else:
            yield group.message()

    def _refusal(self, search: Search | None, request: averaging_pb2.JoinRequest, peer: PeerID) -> int | None:
        """Returns the code with which this peer refuses to lead another peer; None if it accepts.

        If epochs differed, a peer that is late for the end of an epoch would form a group with a peer that is early for
        the end of the next one. The two would wait for that end, and a third peer would find neither of them.
        """
        if search is None or search.found.done():
            return averaging_pb2.NOT_LOOKING_FOR_GROUP
        if request.schema_hash != self._schema:
            return averaging_pb2.BAD_SCHEMA_HASH
        if not (search.window_ends, self._own) < (request.expiration, peer):
            return averaging_pb2.BAD_EXPIRATION_TIME
        if search.follows:
            return averaging_pb2.NOT_A_LEADER
        if peer in search.followers:
            return averaging_pb2.DUPLICATE_PEER_ID
        if self._is_full(search):
            return averaging_pb2.GROUP_IS_FULL
        if not self._lets_in(search, peer, request.gather):
            return averaging_pb2.PROTOCOL_VIOLATION
        own, other = _announcement_in(search.message), _announcement_in(request.gather)
        if own is not None and other is not None:
            if abs(own.epoch - other.epoch) > self._settings.epochs_apart:
                return averaging_pb2.BAD_GROUP_KEY
            self._make_room_for(search, other)
        return None

    def _lets_in(self, search: Search, peer: PeerID, message: bytes) -> bool:
        """Returns True if a peer may follow this one: its message is sound, and its ticket holds if it needs one."""
        with suppress(NonsenseError, TicketRefused):
            GroupMessage.read(message)
            self._check_ticket(peer, message)
            return peer not in self.left_out and search.faults.get(peer, 0.0) < 1
        return False

    def _make_room_for(self, search: Search, newcomer: Announcement) -> None:
        """Makes the group wait for one more peer if a newcomer knows of more peers than are expected.

        The others do not count the newcomer yet. Without this, the newcomer would complete the group in place of one of
        the others.
        """
        if search.expected and newcomer.expected_peers > search.expected:
            search.expected += 1

    def expect_fewer(self, gone: int) -> None:
        """Lowers the number of expected peers; begins the group if it is then complete.

        A negative `gone` raises the number again: peers that were considered dead have answered.
        """
        if self._search is not None:
            self._search.expected = max(self._search.expected - gone, 0)
            self._begin_if_complete(self._search)

    def _is_full(self, search: Search) -> bool:
        return MIN_GROUP_SIZE <= search.expected <= len(search.followers) + 1

    def _fewest(self, search: Search) -> int:
        """Number of peers with which a group begins at the end of the current window."""
        windows = (time.monotonic() - search.began) / self._window
        if windows < PATIENCE_WINDOWS:
            return max(search.expected, MIN_GROUP_SIZE)
        majority = search.expected // 2 + 1 if windows < PATIENCE_WINDOWS + MAJORITY_WINDOWS else 0
        return max(majority, MIN_GROUP_SIZE)

    def _begin_if_complete(self, search: Search) -> None:
        if not search.asks and self._is_full(search):
            self._begin(search, len(search.followers) + 1)

    def _begin(self, search: Search, fewest: int) -> bool:
        """Begins the group of this peer and its followers, unless it has fewer than `fewest` peers.

        Leaves out followers that were banned after they came. Returns whether this peer has a group now.
        """
        if search.found.done():
            return True
        messages = {peer: one for peer, one in search.followers.items() if self._lets_in(search, peer, one)}
        if len(messages) + 1 < fewest:
            return False
        group = FormedGroup.of({self._own: search.message, **messages})
        search.found.set_result(group)
        search.fate.set_result(group)
        return True


def announcements_key(prefix: str) -> str:
    """Returns the DHT key under which averagers that look for a group announce themselves; it equals hivemind's."""
    return f"{prefix}.0b"


async def announced(dht: DHT, key: str) -> list[tuple[float, PeerID]]:
    """Returns the peers that look for a group, with the ends of their windows, the earliest first."""
    found = await dht.get(key, latest=True, return_future=True)
    if found is None or not isinstance(found.value, dict):
        return []
    records = ((announced_peer(dht, subkey), record) for subkey, record in found.value.items())
    return sorted(
        (record.expiration_time, peer) for peer, record in records if peer is not None and record.value is True
    )


def schema_of(tensors: Iterable[torch.Tensor]) -> bytes:
    """Returns a digest of shapes and types. It must be equal for the tensors of two averagers that average together."""
    return digest_of(*(str(tuple(tensor.shape)).encode() for tensor in tensors))


def _announcement_in(message: bytes) -> Announcement | None:
    with suppress(NonsenseError):
        return Announcement.read(GroupMessage.read(message).announcement)
    return None
