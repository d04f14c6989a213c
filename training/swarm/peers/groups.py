"""Groups of peers that average together, and their results: of one all-reduce, and of a round with its repetitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hivemind.p2p import PeerID

MOST_PEERS = 1024
"""Most peers of a group."""
FULL_WEIGHT = 1.0
"""Weight of a peer's parameters in their average, and the most that it can claim."""
UNVOUCHED_SHARE = 0.25
"""Share of its weight that counts for a member without a voucher: many such members may be one person."""


class AllReduceError(Exception):
    """An all-reduce has failed for this peer, whose tensors are unchanged."""


class Misconduct(AllReduceError):
    """A groupmate has sent something that cannot be an accident."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Time for which a round waited for one peer although it could have gone on without this peer."""

    seconds: float
    share: float
    """The peer's share of the samples in the average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundReport:
    """Report of one peer on an averaging round."""

    group_size: int
    """Number of peers in the group, those without weight included."""
    senders: int
    """Number of peers whose tensors entered the average with weight, this one included; 1 means that nothing was
    averaged."""
    own_share: float | None
    """Share of this peer's own tensors in its result: its weight over all weights, 1 where a part did not come back.
    None if this peer reduces no part and so does not see the others' weights."""
    weight: float | None
    """Sum of the weights in the average: for gradients, the samples of the update. None if this peer reduces no
    part."""
    torn: bool
    """True if a peer was lost during the all-reduce: some parts are averages of fewer peers, or this peer's own
    values."""
    repeated: int = 0
    """Number of repetitions of the all-reduce because a peer was lost; the last result counts."""
    lost: tuple[str, ...] = ()
    """Ids of the group's peers that took no part in the last repetition."""
    absent: tuple[str, ...] = ()
    """Ids of lost peers that are alive but say that they are not in the group."""
    spoiled_by: Mapping[str, float] = field(default_factory=dict)
    """Weight of the evidence against each peer that has cost the group a repetition; see `rounds.spoilers`."""
    delays: Mapping[str, Delay] = field(default_factory=dict)
    """Delays by the other peers; empty if it is unknown which peers were slow."""
    brought: Mapping[str, float] = field(default_factory=dict)
    """Samples that each other peer says it brings, as far as this peer knows."""
    refused: tuple[str, ...] = ()
    """Ids of peers that sent this peer parts with non-finite numbers, which it left out."""
    reduced_share: float = 0.0
    """Share of all values that this peer averaged for the group."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """Seconds from the group's forming to the last part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AveragedGroup:
    """Result of a round, besides the averaged tensors."""

    messages: dict[PeerID, object]
    """Messages of the group's peers, without the peers that were lost."""
    report: RoundReport

    @classmethod
    def of_those_left(cls, messages: dict[PeerID, object], report: RoundReport) -> AveragedGroup:
        """Makes the result without the messages of peers that were lost during the round."""
        left = {peer: message for peer, message in messages.items() if str(peer) not in report.lost}
        return cls(messages=left, report=report)

    @property
    def announcements(self) -> list[Announcement]:
        """Announcements of the peers of a gradients' group; malformed ones are left out."""
        return [one for packed in self.messages.values() if (one := Announcement.read(packed)) is not None]


@dataclass(frozen=True, slots=True)
class Announcement:
    """Message of a peer about itself to a gradients' group."""

    epoch: int
    wants_weights: bool
    """True if the peer's parameters do not equal those of the others yet."""
    expected_peers: int
    """Number of peers that a newcomer knows to train, itself included; 0 from other peers, or if it knows no number."""

    @classmethod
    def read(cls, packed: object) -> Announcement | None:
        """Reads a groupmate's message; None if it is malformed.

        >>> Announcement.read([7, False, 3])
        Announcement(epoch=7, wants_weights=False, expected_peers=3)
        """
        is_list = isinstance(packed, (list, tuple))
        return cls(*packed) if is_list and [type(fact) for fact in packed] == [int, bool, int] else None

    def packed(self) -> list:
        """Returns the announcement as a list, for a message."""
        return [self.epoch, self.wants_weights, self.expected_peers]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution:
    """Weight that a peer brings to an average, and the time that the average is worth to it."""

    weight: float
    """Weight of the peer's tensors."""
    cycle_seconds: float | None = None
    """Seconds between two averages. The group waits for a late peer as long as its share of them. None: no limit."""
    free_seconds: float = 0.0
    """Seconds for which waiting costs nothing, since the trainer computes meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Members of an all-reduce."""

    group_id: bytes
    peers: tuple[PeerID, ...]
    fractions: tuple[float, ...]
    """Share of the values that each peer averages; 0 in client mode."""
    unvouched: frozenset[PeerID] = frozenset()
    """Members for which no ticket vouches."""

    @property
    def reducers(self) -> list[PeerID]:
        """Members that accept connections and therefore average parts."""
        return [peer for peer, fraction in zip(self.peers, self.fractions, strict=True) if fraction > 0]

    def of(self, members: Collection[PeerID], group_id: bytes) -> Group:
        """Makes the group of the members that repeat the all-reduce under another id."""
        left = [one for one in zip(self.peers, self.fractions, strict=True) if one[0] in members]
        return Group(
            group_id=group_id,
            peers=tuple(peer for peer, _ in left),
            fractions=tuple(fraction for _, fraction in left),
            unvouched=self.unvouched & frozenset(members),
        )

    def shares_of(self, peers: Sequence[PeerID]) -> list[float]:
        """Shares of the peers' weights that count, in a reduction that uses shares."""
        return [UNVOUCHED_SHARE if peer in self.unvouched else 1.0 for peer in peers]
