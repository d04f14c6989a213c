"""The optimizer that a recipe names."""

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
    """The optimizer of a recipe, for host copies of the weights whose gradients are written again for each step.

    Args:
        config: Names it, with its settings.
        params: See `training.optim.groups.parameter_groups`; Muon is AdamW for parameters that are in no group.
        lr: Learning rate.
        given_momentum: Decay of the momentum that the gradients have already; 0 if they have none. Muon then has no
            other, and reads the decay.
        min_8bit_size: Tensors with fewer values have their moments in 32 bits.
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
