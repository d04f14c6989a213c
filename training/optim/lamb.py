"""LAMB with 8-bit moments, for large batches and little host memory.

One update of a tensor w with the direction u of directions.py, which includes the decay:

    w   <- w - lr * (min(|w|, trust_clamp) / |u|) * u     trust ratio; 1 if either norm is 0

Sources: You et al. 2020, arXiv:1904.00962, algorithm 2 (LAMB); Dettmers et al. 2021, arXiv:2110.02861 (8-bit moments).
The defaults differ from the paper's LAMB in the same way as the 2021 run: no bias correction, clipping before the
update. bitsandbytes' class of that name applies no trust ratio on a CPU; therefore it is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from calculator.parts.optimizers import LAMB_BLOCK_SIZE
from training.errors import BadInput
from training.optim.moments import USUAL, MomentOptimizer


class Lamb8bit(MomentOptimizer):
    """LAMB whose moments are stored block-wise in 8 bit.

    Temporary memory is a few buffers of one chunk, regardless of the size of the tensors.

    Args:
        params: See `MomentOptimizer`.
        lr: Learning rate.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay, part of the direction.
        max_grad_norm: See `MomentOptimizer`.
        bias_correction: Whether moments are corrected for their initial zeros (the 2021 run: no).
        trust_clamp: The weight norm in the trust ratio is at most this (the 2021 run: practically no limit).
        block_size: See `MomentOptimizer`.
        min_8bit_size: See `MomentOptimizer`.
        overwrite_gradients: Store the direction in the gradients' memory, which avoids computing it twice; see
            `MomentOptimizer`.
        native: See `MomentOptimizer`.

    Raises:
        BadInput: If a parameter is not float32 or not contiguous, or a setting is out of range.
    """

    title = "LAMB"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        betas: tuple[float, float] = USUAL.betas,
        eps: float = USUAL.eps,
        weight_decay: float = USUAL.weight_decay,
        max_grad_norm: float = USUAL.max_grad_norm,
        bias_correction: bool = False,
        trust_clamp: float = 10_000.0,
        block_size: int = LAMB_BLOCK_SIZE,
        min_8bit_size: int = USUAL.min_8bit_size,
        overwrite_gradients: bool = False,
        native: bool = True,
    ):
        if not trust_clamp > 0:
            raise BadInput(
                f"LAMB needs trust_clamp > 0; got {trust_clamp}.", cure="Change it in the recipe's `[optimizer]`."
            )
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(
            params,
            {**defaults, "bias_correction": bias_correction, "trust_clamp": trust_clamp},
            max_grad_norm=max_grad_norm,
            block_size=block_size,
            min_8bit_size=min_8bit_size,
            overwrite_gradients=overwrite_gradients,
            native=native,
        )

    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        """Two passes over a tensor: the direction in chunks and its norm, then the weights."""
        directions = self._directions(parameter, group, clip)
        weights, gradient = directions.weights, directions.gradient

        def first_pass(chunk: slice) -> tuple[float, float]:
            out = gradient[chunk] if self.overwrite_gradients else torch.empty_like(gradient[chunk])
            return directions.write(chunk, out, keep=self.overwrite_gradients)

        squares = directions.each(first_pass)
        norms = (math.sqrt(math.fsum(sums)) for sums in zip(*squares, strict=True))
        rate = group["lr"] * trust_ratio(*norms, clamp=group["trust_clamp"])
        if self.overwrite_gradients:
            # The gradient's memory holds the direction by now.
            weights.sub_(gradient, alpha=rate)
            return
        again = torch.empty_like(gradient[: directions.longest])
        for chunk in directions.chunks:  # the directions were not kept: compute them again, and store the moments
            out = again[: gradient[chunk].numel()]
            directions.write(chunk, out, keep=True)
            weights[chunk].sub_(out, alpha=rate)


def trust_ratio(weight_norm: float, direction_norm: float, *, clamp: float) -> float:
    """The clamped norm of the weights divided by that of the direction.

    >>> trust_ratio(2.0, 4.0, clamp=10.0), trust_ratio(0.0, 4.0, clamp=10.0)
    (0.5, 1.0)
    """
    return min(weight_norm, clamp) / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0
