"""Sparse local updates for the slowest links: peers send the largest of the distances that their weights have moved.

As with local updates (`local_updates`), each peer trains by itself for a while. Of the distance from the common weights
to its own, it then sends 64 of each 4096 values, in 0.16 bits a value, and keeps the rest for later exchanges
(`epoch.sparse`). Common weights move by the mean of what peers have sent: the rest that each peer keeps stands in for
the momentum of the outer optimizer.

Source: Sarfi et al. 2025, arXiv:2508.15706 (SparseLoCo).
"""

from __future__ import annotations

from training.recipe import RunConfig
from training.swarm.engine.process import DHT
from training.swarm.epoch.sparse import SparseMean
from training.swarm.epoch.strategies.local_updates import DistanceAverager, LocalUpdates
from training.swarm.epoch.strategies.strategy import Parts
from training.swarm.peers.epochs import EpochEnd
from training.swarm.round.pipe import AveragerSettings
from training.swarm.state.master_weights import MasterWeights


class SparseUpdates(LocalUpdates):
    """Strategy in which peers exchange sparse distances between stretches of local training; see the module.

    On the host a peer holds weights, distance and unsent distance (12 bytes a parameter).
    """

    outer_learning_rate, outer_momentum = 1.0, 0.0
    """The common weights move by the whole mean: peers that sent everything would meet at the mean of their own
    weights."""

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self._next_epoch: int | None = None

    @classmethod
    def make_averager(
        cls, master: MasterWeights, run: RunConfig, *, dht: DHT, settings: AveragerSettings
    ) -> DistanceAverager:
        """Makes the averager of the sparse distances; see `Strategy`."""
        method = SparseMean(master.shapes, kept=run.swarm.sparse_kept, decay=run.swarm.error_decay)
        return DistanceAverager(master.parameters, master.model_parameters, dht=dht, settings=settings, method=method)

    def end_epoch(self, epoch_end: EpochEnd) -> None:
        """Exchanges and updates; see `LocalUpdates.end_epoch`.

        A newcomer has nothing unsent. A peer that has skipped epochs drops what it has not sent: that led from weights
        that nobody has any more.
        """
        averager = self.parts.exchange.averager
        if epoch_end.epoch != self._next_epoch:
            with averager.get_tensors():
                averager.method.forget()
        super().end_epoch(epoch_end)
        self._next_epoch = epoch_end.epoch + 1
