"""AdamW with 8-bit moments, which are those of LAMB.

One update of a tensor w with the direction u of directions.py, whose moments are corrected for their initial zeros:

    w   <- w - lr * u           u includes the decoupled decay, so that this is  w (1 - lr weight_decay) - lr m / ...

Sources: Loshchilov and Hutter 2019, arXiv:1711.05101 (AdamW); Dettmers et al. 2021, arXiv:2110.02861 (8-bit moments).
With 32-bit moments it computes what torch.optim.AdamW does; the gradients are clipped to a global norm before.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from calculator.parts.optimizers import LAMB_BLOCK_SIZE
from training.optim.moments import USUAL, MomentOptimizer


class AdamW8bit(MomentOptimizer):
    """AdamW whose moments are stored block-wise in 8 bit; `min_8bit_size=sys.maxsize` stores them in 32.

    Temporary memory is a few buffers of one chunk for each thread, regardless of the size of the tensors.

    Args:
        params: See `MomentOptimizer`.
        lr: Learning rate.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay; an update takes lr * weight_decay of the weight away.
        max_grad_norm: See `MomentOptimizer`.
        block_size: See `MomentOptimizer`.
        min_8bit_size: See `MomentOptimizer`.
        overwrite_gradients: See `MomentOptimizer`.
        native: See `MomentOptimizer`.

    Raises:
        BadInput: If a parameter is not float32 or not contiguous, or a setting is out of range.
    """

    title = "AdamW"

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        betas: tuple[float, float] = USUAL.betas,
        eps: float = USUAL.eps,
        weight_decay: float = USUAL.weight_decay,
        max_grad_norm: float = USUAL.max_grad_norm,
        block_size: int = LAMB_BLOCK_SIZE,
        min_8bit_size: int = USUAL.min_8bit_size,
        overwrite_gradients: bool = False,
        native: bool = True,
    ):
        super().__init__(
            params,
            dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=True),
            max_grad_norm=max_grad_norm,
            block_size=block_size,
            min_8bit_size=min_8bit_size,
            overwrite_gradients=overwrite_gradients,
            native=native,
        )

    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        """One pass over a tensor: no norm decides how far the weights move."""
        directions = self._directions(parameter, group, clip)

        def move(chunk: slice) -> tuple[float, float]:
            gradient = directions.gradient[chunk]
            out = gradient if self.overwrite_gradients else torch.empty_like(gradient)
            squares = directions.write(chunk, out, keep=True)
            directions.weights[chunk].sub_(out, alpha=group["lr"])
            return squares

        directions.each(move)
