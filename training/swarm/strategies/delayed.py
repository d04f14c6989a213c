"""Gradients are averaged in the background while the next epoch computes: nobody waits for the network."""

from __future__ import annotations

from functools import partial

from training.swarm.epochs import EpochEnd
from training.swarm.strategies.strategy import Strategy


class Delayed(Strategy):
    """Each update uses gradients that were computed with weights which lack the update before it."""

    epochs_apart = 1

    def end_epoch(self, end: EpochEnd) -> None:
        """See `Strategy`."""
        self.parts.updates.wait()
        round_ = self.parts.exchange.begin(end)
        if round_ is None:  # nobody else trains
            self.parts.exchange.finish(None, end)
            self.parts.begin_update(end.epoch)
            return
        end.in_background = True
        self.parts.begin_update(end.epoch, gradients_ready=partial(self._finish, round_, end))

    def _finish(self, round_, end: EpochEnd) -> None:
        """In the background: waits for the average, and reports the epoch as soon as it is known how it went."""
        try:
            self.parts.exchange.finish(round_, end)
        finally:
            self.parts.report(end)
