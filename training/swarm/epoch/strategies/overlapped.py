"""Local updates whose exchange runs while the next stretch computes, so no peer waits for the network.

At the end of stretch t a peer offers how far it has moved, d_t, from its start s_t. It trains on at once, from
s_t - d_t. When the average is there, usually in the middle of stretch t + 1, the outer optimizer has made the next
common weights of it, from which s_(t+1) follows. The peer's own weights w then become

    w + (s_(t+1) - (s_t - d_t))

so that what the peer had offered is replaced by what all peers offered, and what it has moved since then is kept. The
next distance is again the way from the start, s_(t+1) - w. So no step of any peer counts twice or is lost, and the
common weights are those of an exchange that is awaited, but for the gradients: a peer computes these with weights that
lack the others' last stretch.

Sources: Zhou et al. 2020, arXiv:2006.00441 (DaSGD), for the rule with plain means; Maziane et al. 2026,
arXiv:2605.20866 (LOSCAR-SGD), for sparse ones. Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512) goes on with
the mean of own and common weights, which drops half of the progress.
"""

from __future__ import annotations

from training.swarm.epoch.strategies.delayed import Delayed
from training.swarm.epoch.strategies.local_updates import LocalUpdates
from training.swarm.epoch.strategies.sparse import SparseUpdates
from training.swarm.epoch.strategies.strategy import Parts
from training.swarm.peers.epochs import EpochEnd


class OverlappedUpdates(Delayed, LocalUpdates):
    """Strategy of local updates in which no peer waits for an exchange, unless the one before it is still under way.

    On the host a peer holds 4 more bytes a parameter: the weights with which it has offered its distance.
    """

    def __init__(self, parts: Parts):
        super().__init__(parts)
        parts.master.allow_overlap()

    def end_epoch(self, epoch_end: EpochEnd) -> None:
        """Begins the exchange; see `Delayed.end_epoch`."""
        self._end_inner_batch(epoch_end.epoch)
        super().end_epoch(epoch_end)


class OverlappedSparse(OverlappedUpdates, SparseUpdates):
    """Strategy of sparse local updates in which no peer waits for an exchange; see `OverlappedUpdates`."""
