"""Credits volunteers with samples: with no more than the epochs that they report can have had.

A peer's totals are what it says of itself. It is believed for the epochs that its record lists, for the one under way,
and for those that no monitor has watched; in each of them, for twice the samples that end an epoch for all peers
together (`MOST_BATCHES`).
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
    """A record in which no epoch has more samples than one peer can have in it.

    Args:
        record: A peer's, as it came.
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
    """The totals that a peer is believed to have: of the epochs that it has ended, and with the one under way.

    Args:
        record: A peer's, with believed epochs.
        target_batch_size: See above.
        since_epoch: Its last epoch that is counted; None: none is.
        since_samples: Its total then.
        unwatched: Epochs since then, before those that its record lists, of which no other peer has told.
        told: Epochs that are counted for it already, such as before it was started again.
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
