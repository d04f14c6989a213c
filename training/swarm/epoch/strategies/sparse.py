"""Sparse local updates for the slowest links: peers send the largest of the distances that their weights have moved.

As with local updates (`local_updates`), each peer trains by itself for a while. Of the distance from the common weights
to its own, it then sends the largest values, and keeps the rest for later exchanges (`epoch.sparse`). Common weights
move by the mean of what peers have sent.

Source: Sarfi et al. 2025, arXiv:2508.15706 (SparseLoCo), but for two things. There peers go on from the common weights,
and what a peer has not sent fades: by 5 % in each exchange. Here nothing fades, and a peer goes on from weights that
are ahead of the common ones by a share of what it has not sent (`SparseUpdates.own_share`). Otherwise its gradients
point again to where it has been, and the same distance is added up twice.
"""

from __future__ import annotations

from training.recipe import RunConfig
from training.swarm.engine.process import DHT
from training.swarm.epoch.sparse import SparseMean
from training.swarm.epoch.strategies.local_updates import CommonWeights, DistanceAverager, LocalUpdates
from training.swarm.round.pipe import AveragerSettings


class SparseUpdates(LocalUpdates):
    """Strategy in which peers exchange sparse distances between stretches of local training; see the module.

    On the host a peer holds weights, distance and unsent distance (12 bytes a parameter).
    """

    outer_learning_rate, outer_momentum = 1.0, 0.0
    """The common weights move by the whole mean: peers that sent everything would meet at the mean of their own
    weights."""
    own_share = 0.5
    """Share of what it has not sent by which a peer's own weights are ahead of the common ones."""

    @classmethod
    def make_averager(
        cls, master: CommonWeights, run: RunConfig, *, dht: DHT, settings: AveragerSettings
    ) -> DistanceAverager:
        """Makes the averager of the sparse distances; see `Strategy`."""
        method = SparseMean(master.shapes, kept=run.swarm.sparse_kept)
        master.unsent, master.own_share = method.unsent, cls.own_share
        return DistanceAverager(master, dht=dht, settings=settings, method=method)
