"""The strategy that averages gradients when an epoch ends and awaits the average; the update is made in the
background."""

from __future__ import annotations

from training.swarm.epoch.strategies.strategy import Strategy
from training.swarm.peers.epochs import EpochEnd


class Awaited(Strategy):
    """Strategy in which an update's gradients are all computed with the same weights, as for one large batch on one
    machine.

    The first micro-batches of the next epoch still compute with the weights from before the update.
    """

    def end_epoch(self, epoch_end: EpochEnd) -> None:
        """Waits for the previous update, averages the gradients, and begins the update; see `Strategy.end_epoch`."""
        # The last update may still read the gradients that `begin` overwrites.
        self.parts.updates.wait()
        self.parts.exchange.finish(self.parts.exchange.begin(epoch_end), epoch_end)
        self.parts.begin_update(epoch_end.epoch)
