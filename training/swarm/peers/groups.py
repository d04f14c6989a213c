"""Which peers average together, and the results: of one all-reduce, and of a round with all its repetitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hivemind.p2p import PeerID

MOST_PEERS = 1024
"""Most peers of a group."""
FULL_WEIGHT = 1.0
"""Weight of a peer's parameters in their average, and the most that it can claim."""
UNVOUCHED_SHARE = 0.25
"""Share of the weight of a member without a voucher that counts: many such members may be one person."""


class AllReduceError(Exception):
    """An all-reduce that has come to nothing for this peer, whose tensors are as they were."""


class Misconduct(AllReduceError):
    """A groupmate has sent what no accident explains."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Time for which a round waited for one peer when it might have gone on without it."""

    seconds: float
    share: float
    """Share of the samples in the average that are the peer's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundReport:
    """Report of one peer on an averaging round."""

    group_size: int
    """Peers in the group, those without weight included."""
    senders: int
    """Peers whose tensors entered the average with weight, this one included; 1 means that nothing was averaged."""
    own_share: float | None
    """Share of this peer's own tensors in its result: its weight over all weights, 1 where a part did not come back.
    None if this peer reduces nothing and so does not see the others' weights."""
    weight: float | None
    """Sum of the weights in the average: for gradients, the samples of the update. None as above."""
    torn: bool
    """True if a peer was lost on the way: parts are the average of fewer peers, or this peer's own."""
    repeated: int = 0
    """Repetitions of the all-reduce because a peer was lost; the last result counts."""
    lost: tuple[str, ...] = ()
    """Peers of the group that took no part in the last repetition."""
    absent: tuple[str, ...] = ()
    """Lost peers that are alive, but say that they are not in the group."""
    spoiled_by: Mapping[str, float] = field(default_factory=dict)
    """Peers that have cost the group a repetition, each with the weight of what speaks against it; see
    `rounds.spoilers`."""
    delays: Mapping[str, Delay] = field(default_factory=dict)
    """Delays by the other peers; empty if nobody can tell who was slow."""
    brought: Mapping[str, float] = field(default_factory=dict)
    """Samples that each of the others says it brings, as far as this peer knows."""
    refused: tuple[str, ...] = ()
    """Peers that sent this one parts with numbers that are not finite, which it left out."""
    reduced_share: float = 0.0
    """Share of all values that this peer averaged for the group."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """Seconds from the group's forming to the last part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AveragedGroup:
    """The result of a round, beside the averaged tensors."""

    messages: dict[PeerID, object]
    """Messages of the group's peers, without the peers that were lost."""
    report: RoundReport

    @classmethod
    def of_those_left(cls, messages: dict[PeerID, object], report: RoundReport) -> AveragedGroup:
        """Leaves out the peers that were lost on the way."""
        left = {peer: message for peer, message in messages.items() if str(peer) not in report.lost}
        return cls(messages=left, report=report)

    @property
    def announcements(self) -> list[Announcement]:
        """Announcements of the peers of a gradients' group, without malformed ones."""
        return [one for packed in self.messages.values() if (one := Announcement.read(packed)) is not None]


@dataclass(frozen=True, slots=True)
class Announcement:
    """Facts that a peer tells a gradients' group of itself."""

    epoch: int
    wants_weights: bool
    """True if its parameters are not those of the others yet."""
    expected_peers: int
    """Peers that a newcomer knows to train, itself included; 0 from other peers, or if it knows of none."""

    @classmethod
    def read(cls, packed: object) -> Announcement | None:
        """Reads a groupmate's message; None if it is malformed.

        >>> Announcement.read([7, False, 3])
        Announcement(epoch=7, wants_weights=False, expected_peers=3)
        """
        is_list = isinstance(packed, (list, tuple))
        return cls(*packed) if is_list and [type(fact) for fact in packed] == [int, bool, int] else None

    def packed(self) -> list:
        """The message that carries it."""
        return [self.epoch, self.wants_weights, self.expected_peers]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution:
    """Weight that a peer brings to an average, and the time that the average is worth to it."""

    weight: float
    """Weight of its tensors."""
    cycle_seconds: float | None = None
    """Between two averages; a late peer is waited for as long as its share of that is worth. None: no limit."""
    free_seconds: float = 0.0
    """The trainer computes meanwhile, so that waiting costs nothing for so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Members of an all-reduce."""

    group_id: bytes
    peers: tuple[PeerID, ...]
    fractions: tuple[float, ...]
    """Share of the values that each peer averages; 0 in client mode."""
    unvouched: frozenset[PeerID] = frozenset()
    """Members whom nobody vouches for."""

    @property
    def reducers(self) -> list[PeerID]:
        """The members that accept connections."""
        return [peer for peer, fraction in zip(self.peers, self.fractions, strict=True) if fraction > 0]

    def of(self, members: Collection[PeerID], group_id: bytes) -> Group:
        """The members that repeat the all-reduce under another id."""
        left = [one for one in zip(self.peers, self.fractions, strict=True) if one[0] in members]
        return Group(
            group_id=group_id,
            peers=tuple(peer for peer, _ in left),
            fractions=tuple(fraction for _, fraction in left),
            unvouched=self.unvouched & frozenset(members),
        )

    def shares_of(self, peers: Sequence[PeerID]) -> list[float]:
        """Share of each peer's weight that counts, in a reduction that uses shares."""
        return [UNVOUCHED_SHARE if peer in self.unvouched else 1.0 for peer in peers]
