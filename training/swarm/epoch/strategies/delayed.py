"""The strategy that averages gradients in the background of the next epoch, so no peer waits for the network."""

from __future__ import annotations

from functools import partial

from training.swarm.epoch.strategies.strategy import Strategy
from training.swarm.peers.epochs import EpochEnd


class Delayed(Strategy):
    """Strategy in which an update's gradients are computed with weights that lack the previous update."""

    epochs_apart = 1

    def end_epoch(self, epoch_end: EpochEnd) -> None:
        # The last average and update may still use the gradients that `begin` overwrites.
        self.parts.updates.wait()
        round_ = self.parts.exchange.begin(epoch_end)
        if round_ is None:  # no other peer trains
            self.parts.exchange.finish(None, epoch_end)
            self.parts.begin_update(epoch_end.epoch)
            return
        epoch_end.in_background = True
        self.parts.begin_update(epoch_end.epoch, gradients_ready=partial(self._finish, round_, epoch_end))

    def _finish(self, round_, epoch_end: EpochEnd) -> None:
        """Runs in the background: waits for the average and reports the epoch, even if the average has failed."""
        try:
            self.parts.exchange.finish(round_, epoch_end)
        finally:
            self.parts.report(epoch_end)
