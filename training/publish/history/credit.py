"""Credit: the samples of a peer that the averages of other volunteers show.

A peer's record lists its samples of each epoch, and the samples that it has seen others bring to its averages. No
peer's word on its own samples counts for more than what other volunteers have seen of it. Where nobody else has
averaged in an epoch, as when a volunteer trains alone, the peer's own word counts, up to `MOST_BATCHES` times the
samples that end an epoch for all peers together. Totals, which a peer may have read from its disk, never count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from training.swarm.node.metrics import Missed, PeerRecord


def with_believed_epochs(record: PeerRecord, most: float) -> PeerRecord:
    """Returns a record whose epochs have at most as many samples as one peer can have in an epoch.

    Args:
        record: Record of a peer, as it came.
        most: Largest number of samples of one peer in an epoch.
    """
    return record.copy(update={"recent": [one._replace(samples=min(one.samples, most)) for one in record.recent]})


@dataclass(frozen=True, slots=True)
class Averages:
    """The averages of an epoch, by the records of the volunteers that took part."""

    averaged: set[str] = field(default_factory=set)
    """Volunteers whose peers have averaged with others."""
    samples: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Samples of each peer, by the end of its id and by the volunteer that has seen them; None: it sees no numbers."""


def what_averages_show(
    records: Iterable[PeerRecord], volunteers: Mapping[str, str]
) -> dict[tuple[str | None, int], Averages]:
    """Collects what the records say of others, by lineage and epoch.

    Args:
        records: Records of all peers.
        volunteers: Volunteer of each peer id.
    """
    found: dict[tuple[str | None, int], Averages] = {}
    for record in records:
        witness = volunteers[record.peer_id]
        for epoch, peer, samples in record.seen:
            shown = found.setdefault((record.lineage, epoch), Averages())
            shown.averaged.add(witness)
            shown.samples.setdefault(peer, {})[witness] = samples
    return found


@dataclass(frozen=True, slots=True)
class Credit:
    """Samples of a peer in an epoch that count."""

    samples: int
    witnesses: int
    """Number of other volunteers whose averages show the peer."""
    missed: Missed | None
    """Reason why none count; None if some do."""


def credit_of(samples: int, said: Missed | None, seen: Mapping[str, int | None], *, others_averaged: bool) -> Credit:
    """Returns the credit for an epoch that a peer has reported.

    Args:
        samples: Samples that the peer reports.
        said: Reason that the peer reports why the update has none of them; None if it reports that the update has them.
        seen: Samples of the peer that each other volunteer reports who averaged with it; None: it sees no numbers.
        others_averaged: True if other volunteers have averaged in this epoch, with or without the peer.

    >>> credit_of(10**9, None, {"ada": 40, "alan": 40}, others_averaged=True)
    Credit(samples=40, witnesses=2, missed=None)
    >>> credit_of(40, None, {}, others_averaged=True)
    Credit(samples=0, witnesses=0, missed='unreachable')
    """
    told = [one for one in seen.values() if one is not None]
    if told:
        samples = min(samples, median_low(told))
    elif not seen and (others_averaged or said is not None):
        samples = 0
    reason = None if samples else said or ("refused" if seen else "unreachable")
    return Credit(samples, len(seen), reason)
