"""Making of the optimizer that a recipe names."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import Tensor

from calculator.parts.optimizers import LAMB_MIN_8BIT_SIZE
from training.optim.adamw import AdamW8bit
from training.optim.config import OptimizerConfig
from training.optim.lamb import Lamb8bit
from training.optim.moments import MomentOptimizer
from training.optim.muon import MOMENTUM, Muon


def build_optimizer(
    config: OptimizerConfig,
    params: Iterable[Tensor] | Iterable[dict],
    *,
    lr: float,
    given_momentum: float = 0.0,
    min_8bit_size: int = LAMB_MIN_8BIT_SIZE,
) -> MomentOptimizer:
    """Makes the optimizer of a recipe, for host copies of the weights whose gradients are written again for each step.

    Args:
        config: Name of the optimizer and its settings.
        params: Groups as from `training.optim.groups.parameter_groups`; Muon updates parameters in no group as AdamW
            does.
        lr: Learning rate.
        given_momentum: Decay of the momentum that the gradients have already; 0 if they have none. If it is above 0,
            Muon adds no momentum of its own, and uses this decay.
        min_8bit_size: Least number of values of a tensor whose moments have 8 bits; those of smaller tensors have 32.
    """
    common = dict(
        lr=lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        min_8bit_size=min_8bit_size if config.name.endswith("8bit") else sys.maxsize,
    )
    if config.name == "muon":
        momentum = 0.0 if given_momentum else MOMENTUM
        return Muon(params, momentum=momentum, given_momentum=given_momentum, **common)
    if config.name.startswith("adamw"):
        return AdamW8bit(params, **common)
    return Lamb8bit(params, **common)
