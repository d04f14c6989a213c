"""Groups that wait for the peers that are expected, and start at once when these are there."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator

from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer

from calculator.swarm import PATIENCE_WINDOWS
from training.swarm.groups import Standing

TURN_SHARE = 0.75
"""Of the longest wait for an answer; what is left is for the way there and back, and who waits longer is sent away."""
_LOOK_SECONDS = 0.1
"""Pause between two looks for a group; hivemind's own loop asks the DHT without pause and keeps a core busy."""


class PatientMatchmaking(Matchmaking):
    """Matchmaking that knows how many peers to expect.

    hivemind's groups always wait for the end of a window, and start then with whoever has come: a peer that computes
    for longer than the window is left out. Here a group starts as soon as all expected peers have come, and a smaller
    one only after some windows. The number is a hint: too low a one splits a group for a round, too high a one, as
    after a peer's death, costs `PATIENCE_WINDOWS` windows.
    """

    epochs_apart = 0
    """So far apart the epochs of a group's gradients may be."""

    def __init__(self, *args, min_group_size: int, target_group_size: int | None, **kwargs):
        self._least, self._most = min_group_size, target_group_size
        self._expected, self._patient_until = 0, -math.inf
        self._arrivals: dict[int, float] = {}
        super().__init__(*args, min_group_size=min_group_size, target_group_size=target_group_size, **kwargs)
        manager = self.group_key_manager
        self.group_key_manager = _PatientKeyManager(
            manager.dht, manager.prefix, manager.group_bits, manager.target_group_size
        )

    def expect(self, peers: int) -> None:
        """A search for a group of so many peers begins; 0: nobody knows."""
        self._expected = min(peers, self._most or peers)
        self._patient_until = time.monotonic() + PATIENCE_WINDOWS * self.min_matchmaking_time

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
        """Whether this peer looks for a group, and no other peer may have made it a part of one meanwhile."""
        asks = self.lock_request_join_group.locked() or self.current_leader is not None
        return self.is_looking_for_group and not asks and not self.assembled_group.done()

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        """As in hivemind, where two peers that ask each other at once both wait until they give up, and then are in a
        group of which one knows nothing. Here the one that would refuse does so at once."""
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
        """As in hivemind, but who has waited long for its turn may have given up, and is sent away.

        And peers whose gradients are of epochs too far apart do not form a group. One that comes late to the end of an
        epoch would else wait with one of the others for the end of the next, and leave a third one without them. For
        the same reason a group waits for one peer more if a newcomer joins that knows of more: it is not counted yet.
        """
        reason = super()._check_reasons_to_reject(request, context)
        if reason is not None:
            return reason
        arrived = self._arrivals.get(id(context))
        if arrived is not None and time.monotonic() - arrived > TURN_SHARE * self.request_timeout:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.NOT_LOOKING_FOR_GROUP)
        own, other = _standing_of(self.step_control.data_for_gather), _standing_of(request.gather)
        if own is None or other is None:
            return None
        if abs(own.epoch - other.epoch) > self.epochs_apart:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_KEY)
        if arrived is not None and self._expected:
            most = min(self._expected + 1, self._most or self._expected + 1)
            self._expected = max(self._expected, min(other.expected_peers, most))
        return None


def _standing_of(gather: bytes) -> Standing | None:
    """From what hivemind's join requests carry: bandwidth, mode, and what the peer tells."""
    try:
        return Standing.read(MSGPackSerializer.loads(MSGPackSerializer.loads(gather)[2]))
    except Exception:  # a stranger's bytes; the group makes of them what it can
        return None


class _PatientKeyManager(GroupKeyManager):
    async def get_averagers(self, group_key: str, only_active: bool) -> list:
        averagers = await super().get_averagers(group_key, only_active)
        await asyncio.sleep(_LOOK_SECONDS)
        return averagers
