"""Credits volunteers with samples: with no more than the epochs that they report can have had.

A peer's totals are what it says of itself. It is believed for the epochs that its record lists, for the one under way,
and for those that no monitor has watched; in each of them, for twice the samples that end an epoch for all peers
together (`MOST_BATCHES`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from training.swarm.peers.epochs import MOST_BATCHES

EPOCHS_BEFORE_ALL = 64
"""Epochs that a newcomer may have trained before a history has its first epoch."""


@dataclass(frozen=True, kw_only=True)
class PeerReport(Protocol):
    """The fields of a peer's metric record that the history reads; `training.swarm.node.metrics.PeerRecord` has
    them.
    """

    name: str
    peer_id: str
    status: str
    """`joining`, `training`, `waiting` or `leaving`."""
    lineage: str | None
    """Lineage of its weights; None: not known."""
    epoch: int
    """Updates in the peer's weights, made by itself or downloaded."""
    loss: float | None
    """Mean over its samples of the last complete epoch."""
    samples: int
    """All samples of this peer, including those before a restart."""
    samples_per_second: float
    seconds: float
    """All the time that this peer has trained."""
    time: float
    """Time at which the peer wrote the record, by its own clock; another value means that it was renewed."""
    recent: Sequence[tuple[int, float, int, float]]
    """Its last epochs, oldest first, each with its loss, its samples and when it ended, by the peer's clock."""


@dataclass(frozen=True, kw_only=True)
class Credited(PeerReport):
    """A report whose samples are as many as are believed."""


def with_believed_epochs(report: PeerReport, target_batch_size: int | None) -> Credited:
    """A report in which no epoch has more samples than one peer can have in it.

    Args:
        report: As it came.
        target_batch_size: Samples of all peers together that end an epoch; None: believe everything.
    """
    facts = {field.name: getattr(report, field.name) for field in fields(Credited)}
    if target_batch_size is not None:
        most = MOST_BATCHES * target_batch_size
        facts["recent"] = [(epoch, loss, min(given, most), ended) for epoch, loss, given, ended in report.recent]
    return Credited(**facts)


def believed_totals(
    report: PeerReport,
    target_batch_size: int | None,
    *,
    since_epoch: int | None,
    since_samples: int,
    unwatched: int,
    told: Collection[int],
) -> tuple[int, int]:
    """The totals that a peer is believed to have: of the epochs that it has ended, and with the one under way.

    Args:
        report: With believed epochs.
        target_batch_size: See above.
        since_epoch: Its last epoch that is counted; None: none is.
        since_samples: Its total then.
        unwatched: Epochs since then, before those that its record lists, of which no other peer has told.
        told: Epochs that are counted for it already, such as before it was started again.
    """
    if target_batch_size is None:
        return report.samples, report.samples
    most, since = MOST_BATCHES * target_batch_size, -1 if since_epoch is None else since_epoch
    listed = {epoch: given for epoch, _, given, _ in report.recent}
    if not listed and report.loss is not None:
        listed = {report.epoch: most}
    new = sum(given for epoch, given in listed.items() if since < epoch <= report.epoch and epoch not in told)
    ended = since_samples + new + most * unwatched
    return min(report.samples, ended), min(report.samples, ended + most)
