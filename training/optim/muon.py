"""Muon: makes the momentum of each hidden matrix orthogonal before it changes the matrix; AdamW for other parameters.

One update of a hidden matrix W of shape (A, B) with the clipped gradient G:

    M   <- momentum M + (1 - momentum) G                  momentum
    U    = momentum M + (1 - momentum) G                  Nesterov: a step further
         = M + momentum (M - M of the update before)
    O    = U with all singular values near 1              five steps of Newton-Schulz
    W   <- W (1 - lr weight_decay) - lr 0.2 sqrt(max(A, B)) O

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, arXiv:2502.16982, section 2.2,
for the factor 0.2 sqrt(max(A, B)). With it an update's root mean square is that of AdamW's updates, so that one
learning rate and one decay, those of AdamW, serve all parameters; a recipe has but one of each.

It computes what torch.optim.Muon does with `adjust_lr_fn="match_rms_adamw"`, but Newton-Schulz in float32, not in
bfloat16: processors without instructions for bfloat16 need a fourth of the time for it, and the weights of peers on
unlike processors differ less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from training.errors import BadInput
from training.optim.adamw import AdamW8bit

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the polynomial a s + b s^3 + c s^5 that each step applies to the singular values (Jordan et al.
2024)."""
MOMENTUM = 0.95
"""Decay of the momentum of hidden matrices (Jordan et al. 2024)."""
STEPS = 5
_SMALLEST_NORM = 1e-7
"""Least norm by which a matrix is divided, for a matrix of zeros; torch.optim.Muon's `eps`."""
_RMS_OF_ADAMW = 0.2
"""Usual root mean square of AdamW's updates (Liu et al. 2025)."""


class Muon(AdamW8bit):
    """Muon for the groups with `hidden = True`, AdamW for the others; all state has 32 bits.

    The state takes 4 bytes per parameter of hidden matrices, 8 of others. Temporary memory is one copy of the largest
    hidden matrix and two squares of its shorter side.

    Args:
        params: Groups from `training.optim.groups.parameter_groups`; parameters of hidden groups have two dimensions.
        lr: Learning rate of all groups.
        momentum: Decay of the momentum of hidden matrices; 0 if the gradients have momentum already.
        given_momentum: Decay of the momentum that the gradients have already, such as averages of peers' momenta; 0 if
            they have none. The state then holds the last gradients.
        kwargs: Further arguments of `MomentOptimizer`.

    Raises:
        BadInput: If a parameter is not float32, not contiguous, or hidden without being a matrix, or if a setting is
            out of range.
    """

    title = "Muon"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        momentum: float = MOMENTUM,
        given_momentum: float = 0.0,
        **kwargs,
    ):
        self.momentum, self.given_momentum = momentum, given_momentum
        groups = [group if isinstance(group, dict) else {"params": [group]} for group in params]
        super().__init__(({"hidden": False, **group} for group in groups), lr, **kwargs)
        self.defaults["hidden"] = False

    def _check_parameter(self, parameter: Tensor, group: dict) -> None:
        super()._check_parameter(parameter, group)
        if group["hidden"] and parameter.ndim != 2:
            raise BadInput(
                f"Muon updates hidden matrices; got a hidden parameter of shape {tuple(parameter.shape)}. "
                "Put it into a group without `hidden`, which AdamW updates."
            )

    def _zero_state(self, parameter: Tensor, group: dict) -> dict:
        if not group["hidden"]:
            return super()._zero_state(parameter, group)
        return {"step": 0, "moment1": torch.zeros(parameter.numel(), device=parameter.device)}

    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        if not group["hidden"]:
            super()._update(parameter, group, clip)
            return
        gradient = parameter.grad.mul_(clip)
        momentum = self.state[parameter]["moment1"].view_as(parameter)
        if self.given_momentum:
            # The gradient is M, and the state is the M of the previous update, which serves as the memory for U.
            further = momentum.lerp_(gradient, 1 + self.given_momentum)
        else:
            further = gradient.lerp_(momentum.lerp_(gradient, 1 - self.momentum), self.momentum)
        moved = orthogonal(further)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(moved, alpha=group["lr"] * _RMS_OF_ADAMW * math.sqrt(max(parameter.shape)))
        if self.given_momentum:
            momentum.copy_(gradient)


def orthogonal(matrix: Tensor) -> Tensor:
    """Makes the singular values of a matrix nearly 1: five Newton-Schulz steps; about 30 (A B min(A, B)) operations.

    Singular values of at least 0.2 % of the root of the sum of their squares come to lie between 0.68 and 1.21; smaller
    ones grow almost 500-fold.

    Args:
        matrix: Matrix of shape (A, B); overwritten.
    """
    a, b, c = COEFFICIENTS
    matrix.div_(torch.linalg.matrix_norm(matrix).clamp_(min=_SMALLEST_NORM))
    # The squares have the shorter side.
    wide, other = (each.T if matrix.shape[0] > matrix.shape[1] else each for each in (matrix, torch.empty_like(matrix)))
    square = wide.new_empty(wide.shape[0], wide.shape[0])
    polynomial = torch.empty_like(square)
    for _ in range(STEPS):
        torch.mm(wide, wide.T, out=square)
        torch.addmm(square, square, square, beta=b, alpha=c, out=polynomial)
        torch.addmm(wide, polynomial, wide, beta=a, out=other)
        wide, other = other, wide
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
