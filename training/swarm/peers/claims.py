"""How much of what a peer tells of its progress counts: as much as it brings to averages.

A record of progress ends everybody's epoch if it says that the samples are there, or that its peer has begun the next
epoch. Epochs that end early cost an average each, and the schedule passes with batches that are too small. So each peer
compares, after an average, what the others told with what came of it:

- Of a peer that told at least twice the samples that it brought, the share that it brought counts from then on. It has
  broken its word, and is believed again after as many averages as it has broken its word before.
- If single peers have ended the epoch by telling of the next one, but most were there to end this one and its samples
  were not, these have broken their word, too. Until they are believed again, they lead nobody; their samples count.
- A peer that comes to no average brings nothing. In a large run it may be in another group, so it counts until this
  peer should have met it `MEETINGS` times. Groups wait for it three times, and then ever more rarely.

A peer that is believed less than it deserves only makes epochs longer. If only some believe it less, the others end the
epoch without these, which then believe everybody again: they would otherwise come too late each time. A peer whose word
is true and whose gradients are worth nothing is not found here; see `training.volunteer.checks`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

KEPT_SHARE = 0.5
"""A peer that brings this share of what it told has kept its word: it may have had to pause since it told it."""
MOST_BROKEN = 8
"""More often nobody's word counts as broken, so that a peer is believed again that falters now and then."""
MEETINGS = 3.0
"""A peer that has missed so many averages at which it should have been counts for nothing until it comes to one."""
FORGIVEN_AVERAGES = 20
"""After so many averages in which it has kept its word, one of the times that it has broken it is forgotten."""
MOST_PEERS = 4096
"""Of so many it keeps what it has found out; those whom it has heard of last."""
ENDINGS_KEPT = 4
"""Averages in the background end after later epochs have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What a peer knew of the others when an epoch ended for it."""

    told: Mapping[bytes, float]
    """The samples of this epoch that each of the others should have, by its word."""
    leaders: frozenset[bytes]
    """Those by whose word alone the epoch has ended: that they are at a later one."""
    present: frozenset[bytes]
    """The others that should take part in averages."""


@dataclass(slots=True)
class _Peer:
    share: float = 1.0
    broken: int = 0
    """How often it has broken its word; some of these times are forgotten."""
    kept: int = 0
    """Averages since it last broke its word."""
    missed: float = 0.0
    is_believed: bool = True


_UNKNOWN = _Peer()


@dataclass(slots=True)
class Claims:
    """What this peer has found out of the others' words.

    >>> claims = Claims(target_batch_size=64)
    >>> claims.note_end(7, Ending(told={b"ada": 20, b"eve": 64}, leaders=frozenset(), present=frozenset()))
    >>> claims.note_average(7, brought={b"ada": 22, b"eve": 4}, members=[b"ada", b"eve"], own_samples=20)
    >>> claims.share(b"ada"), claims.share(b"eve")
    (1.0, 0.0625)
    """

    target_batch_size: int
    _peers: dict[bytes, _Peer] = field(default_factory=dict)
    _endings: dict[int, Ending] = field(default_factory=dict)

    def share(self, peer: bytes) -> float:
        """How much of the samples that it tells counts, from 0 to 1."""
        return self._peers.get(peer, _UNKNOWN).share

    def may_lead(self, peer: bytes) -> bool:
        """Whether its word that it is at a later epoch can end this one."""
        return self._peers.get(peer, _UNKNOWN).is_believed

    def is_awaited(self, peer: bytes) -> bool:
        """Whether the next group waits for it: if it has missed 0, 1, 2, 4, 8, 16 ... in a row."""
        missed = int(self._peers.get(peer, _UNKNOWN).missed)
        return missed & (missed - 1) == 0

    def believe_all(self) -> None:
        """The others have ended an epoch that this peer did not take for ended."""
        self._peers = {}

    def note_end(self, epoch: int, ending: Ending) -> None:
        """This peer has ended an epoch, and goes to its average."""
        self._endings[epoch] = ending
        for older in sorted(self._endings)[:-ENDINGS_KEPT]:
            self._endings.pop(older, None)  # an average in the background may take it meanwhile

    def note_average(
        self,
        epoch: int,
        *,
        brought: Mapping[bytes, float],
        members: Collection[bytes],
        lost: Collection[bytes] = (),
        own_samples: float,
    ) -> None:
        """The average of an epoch has ended.

        Args:
            epoch: The one in `note_end`.
            brought: Samples of each of the others; without those of which this peer cannot tell.
            members: The others that were there to the end.
            lost: Those that were not.
            own_samples: That this peer has brought.
        """
        if not members or (ending := self._endings.pop(epoch, None)) is None:
            return
        knows_all = all(peer in brought for peer in members)
        too_early = knows_all and own_samples + sum(brought.values()) < KEPT_SHARE * self.target_batch_size
        misled = ending.leaders if too_early and 2 * len(members) >= len(ending.present) else frozenset()
        heard: dict[bytes, _Peer] = {}
        for peer in {*ending.told, *ending.present, *misled}:
            state = replace(self._peers.get(peer, _UNKNOWN))
            told, samples = ending.told.get(peer, 0.0), brought.get(peer)
            if peer in misled:
                _break(state)
            elif samples is not None and peer in ending.told:
                kept = samples / told if told > 0 else 1.0
                _keep(state) if kept >= KEPT_SHARE else _break(state, kept)
            if peer in members or peer in lost:
                state.missed = 0.0
                # Enough words kept; or it has broken none, and counted for nothing because it came to no average.
                if peer in members and state.kept >= state.broken:
                    state.share, state.is_believed = 1.0, True
            elif peer in ending.present:
                state.missed += len(members) / len(ending.present | set(members))
                if state.missed >= MEETINGS:
                    state.share, state.is_believed = 0.0, False
            heard[peer] = state
        peers = {peer: state for peer, state in self._peers.items() if peer not in heard} | heard
        # Another thread reads meanwhile: it finds the old dictionary or the new one. Those heard of now are last.
        self._peers = dict(list(peers.items())[-MOST_PEERS:])


def _break(peer: _Peer, share: float | None = None) -> None:
    peer.broken, peer.kept, peer.is_believed = min(peer.broken + 1, MOST_BROKEN), 0, False
    peer.share = peer.share if share is None else share


def _keep(peer: _Peer) -> None:
    peer.kept += 1
    if peer.kept % FORGIVEN_AVERAGES == 0:
        peer.broken = max(peer.broken - 1, 0)
