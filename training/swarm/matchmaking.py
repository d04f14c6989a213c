"""Groups that wait for the peers that are expected, and start at once when these are there."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.serializer import MSGPackSerializer

from calculator.swarm import PATIENCE_WINDOWS
from training.swarm.groups import Announcement

TURN_SHARE = 0.75
"""A leader rejects a request that has waited for longer than this share of the requester's patience: its answer could
arrive when the requester has given up. The rest of the patience is for the answer's way."""
_LOOK_SECONDS = 0.1
"""Pause between two looks for a group; hivemind's own loop asks the DHT without pause and keeps a core busy."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
    too high, for example after a peer's death, the group waits for `PATIENCE_WINDOWS` windows.

    Args:
        min_group_size: A smaller group does not average.
        target_group_size: A group of this size starts at once; None: there is no largest size.
        epochs_apart: See `Strategy.epochs_apart`.
        kwargs: See hivemind.
    """

    def __init__(self, *args, min_group_size: int, target_group_size: int | None, epochs_apart: int = 0, **kwargs):
        self._least, self._most, self._epochs_apart = min_group_size, target_group_size, epochs_apart
        self._expected, self._patient_until = 0, -math.inf
        self._arrivals: dict[int, float] = {}
        super().__init__(*args, min_group_size=min_group_size, target_group_size=target_group_size, **kwargs)
        # hivemind's constructor has made a manager, and gives no way to pass another one.
        manager = self.group_key_manager
        self.group_key_manager = _PatientKeyManager(
            manager.dht, manager.prefix, manager.group_bits, manager.target_group_size
        )

    async def find_group(self, told: bytes, *, deadline: float, expected_peers: int) -> GroupInfo | None:
        """A group for one average; None if there was none until the deadline.

        Args:
            told: What its peers are told.
            deadline: In DHT time.
            expected_peers: How many peers the group should have; 0: nobody knows.
        """
        self._expected = min(expected_peers, self._most or expected_peers)
        self._patient_until = time.monotonic() + PATIENCE_WINDOWS * self.min_matchmaking_time
        window_ends = get_dht_time() + self.min_matchmaking_time
        return await self.look_for_group(Search(data_for_gather=told, deadline=deadline, scheduled_time=window_ends))

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
        return max(self._expected, self._least) if time.monotonic() < self._patient_until else self._least

    @min_group_size.setter
    def min_group_size(self, value: int) -> None:
        self._least = value

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
        self._arrivals[id(context)] = time.monotonic()
        try:
            async for message in super().rpc_join_group(request, context):
                yield message
        finally:
            del self._arrivals[id(context)]

    def _check_reasons_to_reject(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader | None:
        """hivemind's reasons, and two more: the requester may have given up, or its gradients are of another epoch.

        Without the second, a peer that is late for the end of an epoch forms a group with a peer that is early for the
        end of the next one. The two wait for that end, and a third peer finds neither of them.
        """
        reason = super()._check_reasons_to_reject(request, context)
        if reason is not None:
            return reason
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

    def _make_room_for(self, newcomer: Announcement) -> None:
        """The group waits for one peer more if a newcomer knows of more peers than are expected.

        The others do not count the newcomer yet. Without this it would complete the group in place of one of them.
        """
        most = min(self._expected + 1, self._most or self._expected + 1)
        self._expected = max(self._expected, min(newcomer.expected_peers, most))


def _announcement_in(gather: bytes) -> Announcement | None:
    """The announcement in what hivemind's join requests carry: bandwidth, mode, and what the peer tells."""
    try:
        return Announcement.read(MSGPackSerializer.loads(MSGPackSerializer.loads(gather)[2]))
    except Exception:  # a stranger's bytes; the group makes of them what it can
        return None


class _PatientKeyManager(GroupKeyManager):
    async def get_averagers(self, group_key: str, only_active: bool) -> list:
        averagers = await super().get_averagers(group_key, only_active)
        await asyncio.sleep(_LOOK_SECONDS)
        return averagers
