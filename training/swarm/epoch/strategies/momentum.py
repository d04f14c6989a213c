"""The place of a run's momentum: in the optimizer, or, with centered-clip, in each peer before the average."""

from __future__ import annotations

from training.optim.config import OptimizerConfig
from training.optim.muon import MOMENTUM
from training.recipe import RunConfig


def peer_momentum(run: RunConfig) -> float:
    """Decay of each peer's own momentum; 0 if the optimizer, which is common to all peers, has the momentum."""
    if run.swarm.aggregation != "centered-clip":
        return 0.0
    return MOMENTUM if run.optimizer.name == "muon" else run.optimizer.betas[0]


def optimizer_of_averages(run: RunConfig) -> OptimizerConfig:
    """Returns the settings of the optimizer of averaged gradients, without momentum if the peers have it already.

    Muon then makes the peers' averaged momentum orthogonal, with Nesterov's step further, since it knows the previous
    average. The scale of the momentum does not matter, as Newton-Schulz divides by the norm. A second momentum would
    add a second delay to the first one's.
    """
    if not peer_momentum(run):
        return run.optimizer
    return run.optimizer.model_copy(update={"betas": (0.0, run.optimizer.betas[1])})
