"""Lists of groups that their leaders have signed: a leader that puts a peer into two groups proves that it lies.

A leader sends its followers the list of their group: the members, and what each of them has told. With another list for
each follower, everybody is in a group of its own and finds all others missing, and nobody knows who is to blame. So

1. a leader signs the name of the group, which is a digest of the list, and the time;
2. whoever has lost members of its group shows them the list with that signature, its charter;
3. a peer that is shown a charter compares it with what it has asked its leader. Its words have another nonce in each
   request to a leader, and an honest leader puts a request into one group. A second list for the same request is proof.
   A list with words that this peer has never sent to that leader is a fault; an earlier process of this peer may have
   sent them.

This convinces the peer itself and nobody else. It says nothing of a leader that averages with each of its followers in
a group of two, whose lists do not name the others, and nobody can show anything to peers that accept no connections.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from training.swarm.auditor import LIE_WEIGHT
from training.swarm.gathering import NonsenseError, members_of, name_of
from training.swarm.receipts import Signer, digest_of, pack_signed, read_signed

FAULT_WEIGHT = 1.0
"""What words that this peer has not sent count among a leader's faults; a second list for one request is a lie."""
FRESH_SECONDS = 30.0
"""A list must have been signed so lately when a follower gets it."""
SHOWN_SECONDS = 900.0
"""A charter is judged until it is so old: whoever shows it has tried to average meanwhile. Requests are remembered for
twice this time."""
START_SECONDS = 10.0
"""What is signed so soon after this program's start may name a request of an earlier process of the same peer."""
MOST_LIST_BYTES = 2 << 20
"""Longest list that is accepted. It must fit into a message of libp2p's daemon, or nobody could be shown it."""
_TIME = struct.Struct("<d")

Message = averaging_pb2.MessageFromLeader


class OldListError(NonsenseError):
    """A list that was signed at another time, by the clock of this peer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Charter:
    """A group's list, with the peer that has signed it."""

    leader: PeerID
    signed_at: float
    """DHT time."""
    group_id: bytes
    words: dict[PeerID, bytes]
    """What each member has told, packed."""

    @classmethod
    def read(cls, message: Message, prefix: str) -> Charter:
        """From a leader's message that begins an all-reduce.

        Raises:
            NonsenseError: If it is no list of a group, or none that one of its members has signed.
        """
        signer, signed_at = signed_by(message, prefix)
        peers = members_of(message)
        if message.group_id != name_of(peers, message.gathered):
            raise NonsenseError("a leader names another group than that of its members")
        leader = next((peer for peer in peers if str(peer) == signer), None)
        if leader is None:
            raise NonsenseError("no member of a group has signed its list")
        words = dict(zip(peers, message.gathered, strict=True))
        return cls(leader=leader, signed_at=signed_at, group_id=message.group_id, words=words)


def signed_by(message: Message, prefix: str) -> tuple[str, float]:
    """Who has signed the name of a group, and when; what the message lists is not looked at.

    Raises:
        NonsenseError: If nobody has.
    """
    try:
        signed, (packed,) = read_signed(message.suggested_leader, more=1)
        (signed_at,) = _TIME.unpack(packed)
    except (ValueError, struct.error):
        raise NonsenseError("a leader has not signed the list of its group") from None
    signer = signed.signer(_statement(prefix, message.group_id, packed))
    if signer is None or not math.isfinite(signed_at):
        raise NonsenseError("a leader has not signed the list of its group")
    return signer, signed_at


def signature_of(signer: Signer, prefix: str, group_id: bytes) -> bytes:
    """A leader's signature of a group, as its messages carry it; takes a millisecond."""
    packed = _TIME.pack(get_dht_time())
    return pack_signed(signer.signed(_statement(prefix, group_id, packed)), packed)


def _statement(prefix: str, group_id: bytes, packed_time: bytes) -> bytes:
    return digest_of(b"training-group 1", prefix.encode(), group_id, packed_time)


@dataclass(slots=True)
class _Request:
    leader: PeerID
    sent_at: float
    """By `time.monotonic`."""
    group_id: bytes | None = None
    """Of the first group that its leader has signed for it, as far as this peer knows; None: it knows of none."""


class Requests:
    """What this peer has asked leaders, each time in other words, and which groups they have named.

    Args:
        own: This peer.
        prefix: Of the averager.
        clock: DHT time; None: hivemind's, which is looked up at each call, since `clocks` puts another in its place.
    """

    def __init__(self, own: PeerID, prefix: str, *, clock: Callable[[], float] | None = None):
        self._own, self._prefix = own, prefix
        self._clock = clock or (lambda: get_dht_time())
        self._began = self._clock()
        self._sent: dict[bytes, _Request] = {}

    def note_sent(self, leader: PeerID, words: bytes) -> None:
        """This peer asks a leader to take it into a group."""
        now = time.monotonic()
        while self._sent:
            oldest = next(iter(self._sent))
            if now - self._sent[oldest].sent_at <= 2 * SHOWN_SECONDS:
                break
            del self._sent[oldest]
        self._sent[words] = _Request(leader, now)

    def take(self, message: Message, leader: PeerID) -> Message:
        """A leader has named a group in answer to a request; what to show others of it.

        Raises:
            OldListError: If it was signed at another time than now.
            NonsenseError: If the leader has not signed the list, or another one for this request, or it is too long.
        """
        charter = Charter.read(message, self._prefix)
        if charter.leader != leader:
            raise NonsenseError("a leader names a group that another one has signed")
        # Without fields that this program does not know, which might make the message too long to be shown.
        names = ("code", "group_id", "ordered_peer_ids", "gathered", "suggested_leader")
        shown = Message(**{name: getattr(message, name) for name in names})
        if shown.ByteSize() > MOST_LIST_BYTES:
            raise NonsenseError("a leader names a group by a message that is too long")
        if abs(self._clock() - charter.signed_at) > FRESH_SECONDS:
            raise OldListError("a leader names a group of another time")
        if (request := self._sent.get(charter.words.get(self._own, b""))) is not None:
            if request.group_id not in (None, charter.group_id):
                raise NonsenseError("a leader puts this peer into two groups at once")
            request.group_id = charter.group_id
        return shown

    def liar_in(self, message: Message) -> tuple[PeerID, float] | None:
        """The leader that has signed a charter which cannot be true, with the weight of that; None if it may be true.

        Also None if it is no charter, or of a leader that this peer has not asked: so nobody whom this peer does not
        know can make it read long lists, or fill its memory with liars.

        Args:
            message: From anybody.
        """
        if self._own.to_bytes() not in message.ordered_peer_ids:
            return None
        try:
            signer, _ = signed_by(message, self._prefix)
            if not any(str(request.leader) == signer for request in self._sent.values()):
                return None
            charter = Charter.read(message, self._prefix)
        except NonsenseError:
            return None
        age = self._clock() - charter.signed_at
        if charter.leader == self._own or not -FRESH_SECONDS <= age <= SHOWN_SECONDS:
            return None
        request = self._sent.get(charter.words[self._own])
        if request is None or request.leader != charter.leader:
            is_recent = charter.signed_at >= self._began + START_SECONDS
            return (charter.leader, FAULT_WEIGHT) if is_recent else None
        if request.group_id is None:
            request.group_id = charter.group_id
        return (charter.leader, LIE_WEIGHT) if request.group_id != charter.group_id else None
