"""Lists of groups that their leaders have signed: a leader that puts a peer into two groups proves that it lies.

A leader sends its followers the list of their group: the members, and what each of them has told. With another list for
each follower, everybody is in a group of its own and finds all others missing, and nobody knows who is to blame. So

1. a leader signs the name of the group, which is a digest of the list, and the time;
2. whoever has lost members of its group shows them the list with that signature, its charter;
3. a peer that is shown a charter compares it with what it has asked its leader. Its words have another nonce in each
   request to a leader. If they are in the list, and it was told another list in answer to this request, or has never
   sent them to that leader, the leader lies.

This convinces the peer itself and nobody else; but all followers of such a leader see the same.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from training.swarm.gathering import NonsenseError, check_members, name_of
from training.swarm.receipts import Signer, digest_of, pack_signed, read_signed
from training.trust.proof import proven_peer_id

FRESH_SECONDS = 30.0
"""A list must have been signed so lately when a follower gets it."""
SHOWN_SECONDS = 300.0
"""A charter is judged until it is so old: whoever shows it has tried to average meanwhile."""
START_SECONDS = 10.0
"""What is signed so soon after this program's start may name a request of an earlier process of the same peer."""
_TIME = struct.Struct("<d")

Message = averaging_pb2.MessageFromLeader


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
        peers = [PeerID(peer) for peer in message.ordered_peer_ids]
        check_members(peers, message.gathered)
        if message.group_id != name_of(peers, message.gathered):
            raise NonsenseError("a leader names another group than that of its members")
        try:
            signed, (packed,) = read_signed(message.suggested_leader, more=1)
            (signed_at,) = _TIME.unpack(packed)
            key, signature = signed.key.decode("ascii"), signed.signature.decode("ascii")
        except (ValueError, struct.error):
            raise NonsenseError("a leader has not signed the list of its group") from None
        signer = proven_peer_id(key, _statement(prefix, message.group_id, packed), signature)
        leader = next((peer for peer in peers if str(peer) == signer), None)
        if leader is None or not math.isfinite(signed_at):
            raise NonsenseError("no member of a group has signed its list")
        words = dict(zip(peers, message.gathered, strict=True))
        return cls(leader=leader, signed_at=signed_at, group_id=message.group_id, words=words)


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
    group_id: bytes | None = None
    """Of the group that the leader has named in answer; None: this peer has heard of none."""


class Requests:
    """What this peer has asked leaders, each time in other words, and which groups they have named.

    Args:
        own: This peer.
        prefix: Of the averager.
        clock: DHT time.
    """

    def __init__(self, own: PeerID, prefix: str, *, clock: Callable[[], float] = get_dht_time):
        self._own, self._prefix, self._clock = own, prefix, clock
        self._began = clock()
        self._sent: dict[bytes, _Request] = {}

    def note_sent(self, leader: PeerID, words: bytes) -> None:
        """This peer asks a leader to take it into a group."""
        now = self._clock()
        while self._sent:
            oldest = next(iter(self._sent))
            if now - self._sent[oldest].sent_at <= 2 * SHOWN_SECONDS:
                break
            del self._sent[oldest]
        self._sent[words] = _Request(leader, now)

    def take(self, message: Message, leader: PeerID) -> None:
        """A leader has named a group in answer to a request.

        Raises:
            NonsenseError: If it has not signed the list, or long ago.
        """
        charter = Charter.read(message, self._prefix)
        if charter.leader != leader:
            raise NonsenseError("a leader names a group that another one has signed")
        if abs(self._clock() - charter.signed_at) > FRESH_SECONDS:
            raise NonsenseError("a leader names a group of another time")
        if (request := self._sent.get(charter.words.get(self._own, b""))) is not None:
            request.group_id = charter.group_id

    def liar_in(self, message: Message) -> PeerID | None:
        """The leader that has signed a charter which cannot be true; None if it may be true, or is no charter.

        Args:
            message: From anybody.
        """
        if self._own.to_bytes() not in message.ordered_peer_ids:
            return None
        try:
            charter = Charter.read(message, self._prefix)
        except NonsenseError:
            return None
        age = self._clock() - charter.signed_at
        if charter.leader == self._own or age > SHOWN_SECONDS or charter.signed_at < self._began + START_SECONDS:
            return None
        request = self._sent.get(charter.words[self._own])
        if request is None or request.leader != charter.leader:
            return charter.leader  # it has made this peer's words up, or got them from another leader
        was_told_another = request.group_id is not None and request.group_id != charter.group_id
        return charter.leader if was_told_another else None
