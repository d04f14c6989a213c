"""Where a run's momentum is: in the optimizer, or, with centered-clip, in each peer before the average."""

from __future__ import annotations

from training.optim.config import OptimizerConfig
from training.optim.muon import MOMENTUM
from training.recipe import RunConfig


def peer_momentum(run: RunConfig) -> float:
    """Decay of the momentum that each peer has of its own; 0: the optimizer has the momentum, for all."""
    if run.swarm.aggregation != "centered-clip":
        return 0.0
    return MOMENTUM if run.optimizer.name == "muon" else run.optimizer.betas[0]


def optimizer_of_averages(run: RunConfig) -> OptimizerConfig:
    """The optimizer of averaged gradients: without momentum of its own if these have it already.

    Muon then makes the peers' averaged momentum orthogonal, with Nesterov's step further: it knows the average
    before. Any scale of it will do, as Newton-Schulz divides by the norm. A second momentum would delay what the
    first one has delayed already.
    """
    if not peer_momentum(run):
        return run.optimizer
    return run.optimizer.model_copy(update={"betas": (0.0, run.optimizer.betas[1])})
