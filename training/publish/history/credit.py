"""Credits volunteers with samples, but with no more than the epochs that they report can have had.

A peer reports its own totals. We believe them for the epochs that its record lists, for the current epoch, and for
epochs that no monitor has watched: for each epoch, at most twice the samples that end an epoch for all peers together
(`MOST_BATCHES`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from training.swarm.peers.epochs import MOST_BATCHES

if TYPE_CHECKING:  # pages read a history where hivemind is not installed
    from training.swarm.node.metrics import PeerRecord

EPOCHS_BEFORE_ALL = 64
"""Epochs that a newcomer may have trained before a history has its first epoch."""


def with_believed_epochs(record: PeerRecord, target_batch_size: int | None) -> PeerRecord:
    """Returns a record whose epochs have at most as many samples as one peer can have in an epoch.

    Args:
        record: Record of a peer, as it came.
        target_batch_size: Samples of all peers together that end an epoch; None: believe everything.
    """
    if target_batch_size is None:
        return record
    most = MOST_BATCHES * target_batch_size
    recent = [(epoch, loss, min(given, most), ended) for epoch, loss, given, ended in record.recent]
    return record.copy(update={"recent": recent})


def believed_totals(
    record: PeerRecord,
    target_batch_size: int | None,
    *,
    since_epoch: int | None,
    since_samples: int,
    unwatched: int,
    told: Collection[int],
) -> tuple[int, int]:
    """Believed totals of a peer's samples: without those of the current epoch, and with them.

    Args:
        record: Record of a peer, from `with_believed_epochs`.
        target_batch_size: Samples of all peers together that end an epoch; None: believe everything.
        since_epoch: Last epoch of the peer that the history has counted; None if it has counted none.
        since_samples: The peer's total at the end of that epoch.
        unwatched: Number of later epochs, before those that the record lists, that no other peer has reported.
        told: Epochs already counted for the peer, such as those from before a restart.
    """
    if target_batch_size is None:
        return record.samples, record.samples
    most, since = MOST_BATCHES * target_batch_size, -1 if since_epoch is None else since_epoch
    listed = {epoch: given for epoch, _, given, _ in record.recent}
    if not listed and record.loss is not None:
        listed = {record.epoch: most}
    new = sum(given for epoch, given in listed.items() if since < epoch <= record.epoch and epoch not in told)
    ended = since_samples + new + most * unwatched
    return min(record.samples, ended), min(record.samples, ended + most)
