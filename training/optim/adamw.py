"""AdamW with moments in 8 bits, stored as those of LAMB.

One update of a tensor w with the direction u of directions.py, whose moments are corrected for their initial zeros:

    w   <- w - lr * u           u includes the decoupled decay, so that this is  w (1 - lr weight_decay) - lr m / ...

Sources: Loshchilov and Hutter 2019, arXiv:1711.05101 (AdamW); Dettmers et al. 2021, arXiv:2110.02861 (8-bit moments).
With 32-bit moments it computes what torch.optim.AdamW computes; the gradients are clipped to a global norm first.
"""

from __future__ import annotations

from torch import Tensor

from training.optim.moments import MomentOptimizer


class AdamW8bit(MomentOptimizer):
    """AdamW whose moments are stored block-wise in 8 bit; `min_8bit_size=sys.maxsize` stores them in 32.

    Temporary memory is a few buffers of one chunk for each thread, regardless of the size of the tensors.
    """

    title = "AdamW"
    corrects_start = True

    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        """Updates a tensor in one pass: no norm decides how far the weights move."""
        directions = self._directions(parameter, group, clip)

        def move(chunk: slice) -> tuple[float, float]:
            squares = directions.write(chunk)
            directions.weights[chunk].sub_(directions.gradient[chunk], alpha=group["lr"])
            return squares

        directions.each(move)
