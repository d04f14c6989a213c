"""Gradients are averaged when an epoch ends, and the peer waits for that; the update follows in the background."""

from __future__ import annotations

from training.swarm.epoch.strategies.strategy import Strategy
from training.swarm.peers.epochs import EpochEnd


class Awaited(Strategy):
    """Each update uses the gradients that all computed with the same weights, as on one machine with a large batch.

    The next epoch's first micro-batches compute with the weights from before the update.
    """

    def end_epoch(self, epoch_end: EpochEnd) -> None:
        """See `Strategy`."""
        # The last update may still read the gradients that `begin` overwrites.
        self.parts.updates.wait()
        self.parts.exchange.finish(self.parts.exchange.begin(epoch_end), epoch_end)
        self.parts.begin_update(epoch_end.epoch)
