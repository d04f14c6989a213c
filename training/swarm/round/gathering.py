"""Messages of a forming group: packed, read and checked.

A leader passes on the messages of its followers. All members compute from them how much each of them averages, so a
malformed message would fail the average of all members. A leader refuses a peer with such a message, and a member
refuses a group with one.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer

from calculator.swarm.exchange import quickest_parts
from training.errors import TrainingError
from training.swarm.engine.bounds import is_plain, unpack
from training.swarm.engine.ids import MOST_ID_BYTES, digest_of
from training.swarm.peers.groups import MOST_PEERS

MOST_BYTES = 4096
"""Largest message of one peer, in bytes; a newcomer's has less than a hundred."""
NONCE_BYTES = 16
"""Random bytes at the end of each peer's message, so that no group has the id of an earlier one."""
FASTEST_MBITS = 100_000.0
"""Largest bandwidth in Mbit/s that a peer is believed to have."""
MOST_TIMES_FASTER = 16.0
"""Largest ratio of a peer's bandwidth to that of half of its group. A peer with more bandwidth averages more values."""
SLOWEST_MBITS = 0.01
"""Smallest bandwidth in Mbit/s that is used; a slower link counts as this, so that no division overflows."""


class NonsenseError(TrainingError):
    """Another peer has sent a message that this program does not write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMessage:
    """Message of a peer to its group."""

    mbits: float | None
    """Bandwidth of the peer's link in Mbit/s; None if unknown."""
    client_mode: bool
    """True if the peer accepts no connections, and so averages nothing for the others."""
    announcement: object
    """The trainer's own message, such as `groups.Announcement`."""
    ticket: str = ""
    """Ticket of the peer, in a run that admits members only."""

    def packed(self) -> bytes:
        """Packs the message for a join request."""
        announcement, nonce = MSGPackSerializer.dumps(self.announcement), secrets.token_bytes(NONCE_BYTES)
        return MSGPackSerializer.dumps([self.mbits, self.client_mode, announcement, self.ticket, nonce])

    @classmethod
    def read(cls, packed: bytes) -> GroupMessage:
        """Reads a packed message.

        Raises:
            NonsenseError: If this program does not write such a message.

        >>> sent = GroupMessage(mbits=100.0, client_mode=False, announcement=[7, False, 2])
        >>> GroupMessage.read(sent.packed()).announcement
        [7, False, 2]
        """
        if len(packed) > MOST_BYTES:
            raise NonsenseError(f"a peer tells its group {len(packed)} bytes")
        try:
            mbits, client_mode, announcement, ticket, _nonce = unpack(packed)
            message = cls(mbits=mbits, client_mode=client_mode, announcement=unpack(announcement), ticket=ticket)
        except Exception as error:  # errors of many kinds show that this program has not sent the message
            raise NonsenseError(f"what a peer tells its group cannot be read: {type(error).__name__}") from None
        if mbits is not None and not (type(mbits) in (int, float) and math.isfinite(mbits) and mbits >= 0):
            raise NonsenseError("a peer tells its group a bandwidth that is no number")
        if type(client_mode) is not bool:
            raise NonsenseError("a peer does not tell its group whether it accepts connections")
        if not is_plain(message.announcement):  # otherwise the trainer would never hear how its round has ended
            raise NonsenseError("a peer tells its group something nested too deeply, or of an unknown type")
        return message


def renewed(packed: bytes) -> bytes:
    """Returns the message with another nonce, which is its last bytes."""
    return packed[:-NONCE_BYTES] + secrets.token_bytes(NONCE_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormedGroup:
    """Group as its leader names it: its members and their messages."""

    peers: tuple[PeerID, ...]
    messages: tuple[bytes, ...]
    """Packed `GroupMessage` of each member, in the members' order."""

    @classmethod
    def of(cls, messages: Mapping[PeerID, bytes]) -> FormedGroup:
        """Makes a group with the members in a random order: the first one is the first referee (`agreement`)."""
        peers = random.sample(list(messages), len(messages))
        return cls(peers=tuple(peers), messages=tuple(messages[peer] for peer in peers))

    @property
    def group_id(self) -> bytes:
        """Digest of members, order and messages.

        A leader that passes on different messages of a member puts its followers into different groups. Otherwise they
        would divide the tensors differently, and blame that member.
        """
        return digest_of(*(peer.to_bytes() for peer in self.peers), *self.messages)

    def message(self) -> averaging_pb2.MessageFromLeader:
        """Packs the group into the leader's message."""
        ids = [peer.to_bytes() for peer in self.peers]
        return averaging_pb2.MessageFromLeader(
            code=averaging_pb2.BEGIN_ALLREDUCE, ordered_peer_ids=ids, gathered=self.messages
        )

    @classmethod
    def read(cls, message: averaging_pb2.MessageFromLeader) -> FormedGroup:
        """Reads a leader's message.

        Raises:
            NonsenseError: If there are too many members, a member is named twice or by too long an id (which would take
                seconds to read), a member's message is malformed, or no member averages anything.
        """
        ids = message.ordered_peer_ids
        if not len(set(ids)) == len(ids) == len(message.gathered) <= MOST_PEERS:
            raise NonsenseError("a leader names a member twice, or too many, or not the message of each")
        if any(len(one) > MOST_ID_BYTES for one in ids):
            raise NonsenseError("a leader names a member by too long a name")
        if all(rate == 0 for rate in bandwidths([GroupMessage.read(one) for one in message.gathered])):
            raise NonsenseError("a leader names a group of which nobody averages anything")
        return cls(peers=tuple(map(PeerID, ids)), messages=tuple(message.gathered))


def bandwidths(group: Sequence[GroupMessage]) -> list[float | None]:
    """Bandwidths of the peers in Mbit/s; 0 for peers that accept no connections, None if unknown.

    >>> node = dict(client_mode=False, announcement=None)
    >>> bandwidths([GroupMessage(mbits=mbits, **node) for mbits in (100.0, 50.0, 1e12, None)])
    [100.0, 50.0, 1600.0, None]
    """
    numbers = [min(max(one.mbits, SLOWEST_MBITS), FASTEST_MBITS) if one.mbits else one.mbits for one in group]
    known = [mbits for mbits in numbers if mbits]
    most = MOST_TIMES_FASTER * statistics.median_low(known) if known else FASTEST_MBITS
    believed = [None if mbits is None else min(mbits, most) for mbits in numbers]
    return [0.0 if one.client_mode else mbits for one, mbits in zip(group, believed, strict=True)]


def shares(values: int, group: Sequence[GroupMessage]) -> list[int]:
    """Divides values among the peers of a group by their bandwidths; each peer computes equal numbers by itself.

    >>> claims = (8.0, False), (None, False), (9.0, True)
    >>> shares(100, [GroupMessage(mbits=mbits, client_mode=client, announcement=None) for mbits, client in claims])
    [50, 50, 0]
    """
    rates = bandwidths(group)
    known = [rate for rate in rates if rate]
    usual = math.fsum(known) / len(known) if known else 1.0
    fractions = quickest_parts([usual if rate is None else rate for rate in rates])
    # As whole numbers, all their sums are exact, also in the code that divides the tensors by these numbers.
    found = [int(values * fraction) for fraction in fractions]
    found[fractions.index(max(fractions))] += values - sum(found)
    return found
