"""LAMB with 8-bit moments, for large batches and little host memory.

One update of a tensor w with the direction u of directions.py, which includes the decay:

    w   <- w - lr * (min(|w|, TRUST_CLAMP) / |u|) * u     trust ratio; 1 if either norm is 0

Sources: You et al. 2020, arXiv:1904.00962, algorithm 2 (LAMB); Dettmers et al. 2021, arXiv:2110.02861 (8-bit moments).
Its defaults differ from the paper's LAMB as in the 2021 run: no bias correction, clipping before the update.
bitsandbytes' class of that name applies no trust ratio on a CPU; therefore it is not used.
"""

from __future__ import annotations

import math

from torch import Tensor

from training.optim.moments import MomentOptimizer

TRUST_CLAMP = 10_000.0
"""Largest weight norm in the trust ratio, as in the 2021 run: practically no limit."""


class Lamb8bit(MomentOptimizer):
    """LAMB whose moments are stored block-wise in 8 bit.

    Temporary memory is a few buffers of one chunk, regardless of the size of the tensors.
    """

    title = "LAMB"
    corrects_start = False

    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        """Updates a tensor in two passes: the direction in chunks and its norm, then the weights."""
        directions = self._directions(parameter, group, clip)
        squares = directions.each(directions.write)
        norms = (math.sqrt(math.fsum(sums)) for sums in zip(*squares, strict=True))
        # The gradient's memory holds the direction now.
        directions.weights.sub_(directions.gradient, alpha=group["lr"] * trust_ratio(*norms, clamp=TRUST_CLAMP))


def trust_ratio(weight_norm: float, direction_norm: float, *, clamp: float) -> float:
    """Ratio of the clamped norm of the weights to the norm of the direction; 1 if either is 0.

    >>> trust_ratio(2.0, 4.0, clamp=10.0), trust_ratio(0.0, 4.0, clamp=10.0)
    (0.5, 1.0)
    """
    return min(weight_norm, clamp) / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0
