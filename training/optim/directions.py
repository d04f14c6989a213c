"""Direction of an update from block-wise moments: the stages that LAMB and AdamW share.

For a tensor w with gradient g, in the order of the code below:

    g   <- g * min(1, max_grad_norm / |all g|)            clip to a global norm
    m   <- beta1 m + (1 - beta1) g                        moments
    v   <- beta2 v + (1 - beta2) g^2
    u   =  m / (sqrt(v) + eps) + weight_decay w           direction (moments corrected for their start, if asked)

If the machine has a C compiler, kernels.c computes all of it in one pass over memory and gives the same codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from training.optim.eight_bit import blockwise
from training.optim.eight_bit.kernels import Kernels, Settings

CHUNK_VALUES = 65_536
"""Values that PyTorch processes at once: four float32 buffers of this size stay in a core's second-level cache."""
_COMPILED_CHUNK_VALUES = 262_144
"""Values that one thread of the compiled loops processes at once; a call costs as much as some thousand values."""


class Directions:
    """Direction of one tensor's update, computed chunk by chunk.

    Args:
        weights: Weights of the tensor, (size,) float32.
        gradient: Gradient of the tensor, (size,) float32, not yet clipped; `write` overwrites it.
        state: Moments of the tensor; with 8 bits, their scales as well.
        settings: Numbers of the update; see `update_settings`.
        block_size: Number of values that share one scale.
        compiled: Compiled loops; None: PyTorch computes.
    """

    def __init__(
        self,
        weights: Tensor,
        gradient: Tensor,
        state: dict,
        settings: Settings,
        *,
        block_size: int,
        compiled: Kernels | None,
    ):
        self.weights, self.gradient = weights, gradient
        self._state, self._settings, self._block_size, self._compiled = state, settings, block_size, compiled
        most = _COMPILED_CHUNK_VALUES if compiled else CHUNK_VALUES
        # Whole blocks, because two chunks must not write the scale of the same block.
        step = most // block_size * block_size
        self.chunks = [slice(start, start + step) for start in range(0, weights.numel(), step)]
        """Chunks of the tensor, in its order."""
        self._buffers = None if compiled else torch.empty(2, min(step, weights.numel()), device=weights.device)

    def write(self, chunk: slice) -> tuple[float, float]:
        """Updates a chunk's moments, and overwrites its gradient with the direction.

        Returns:
            The sums of squares of the weights and of the direction.
        """
        return self._write_compiled(chunk) if self._compiled else self._write(chunk)

    def each(self, function: Callable[[slice], tuple[float, float]]) -> list[tuple[float, float]]:
        """Returns the function's results for all chunks, in order; the compiled loops run in several threads."""
        threads = torch.get_num_threads() if self._compiled else 1
        if threads == 1 or len(self.chunks) <= 1:
            return [function(chunk) for chunk in self.chunks]
        with ThreadPoolExecutor(min(threads, len(self.chunks))) as pool:
            return list(pool.map(function, self.chunks))

    def _write_compiled(self, chunk: slice) -> tuple[float, float]:
        moments = [
            tensor
            for moment in ("moment1", "moment2")
            for tensor in (self._state[moment][chunk], self._state[f"{moment}_scales"][self._blocks_of(chunk)])
        ]
        return self._compiled.direction(
            self.gradient[chunk],
            self.weights[chunk],
            self.gradient[chunk],
            *moments,
            block_size=self._block_size,
            settings=self._settings,
        )

    def _write(self, chunk: slice) -> tuple[float, float]:
        gradient, weights, settings = self.gradient[chunk], self.weights[chunk], self._settings
        moment1, moment2 = self._buffers[:, : gradient.numel()]
        self._read(chunk, "moment1", moment1)
        self._read(chunk, "moment2", moment2)
        update_moments(moment1, moment2, gradient.mul_(settings.clip), settings)
        direction(moment1, moment2, weights, settings, out=gradient)
        self._store(chunk, "moment1", moment1)
        self._store(chunk, "moment2", moment2)
        return float(weights.dot(weights)), float(gradient.dot(gradient))

    def _read(self, chunk: slice, moment: str, out: Tensor) -> None:
        codes = self._state[moment][chunk]
        if f"{moment}_scales" not in self._state:
            out.copy_(codes)
            return
        scales = self._state[f"{moment}_scales"][self._blocks_of(chunk)]
        signed = moment == "moment1"
        blockwise.dequantize(codes, scales, out, block_size=self._block_size, signed=signed, native=False)

    def _store(self, chunk: slice, moment: str, values: Tensor) -> None:
        """Stores a chunk of a moment; overwrites `values`."""
        codes = self._state[moment][chunk]
        if f"{moment}_scales" not in self._state:
            codes.copy_(values)
            return
        scales = self._state[f"{moment}_scales"][self._blocks_of(chunk)]
        signed = moment == "moment1"
        blockwise.quantize(values, codes, scales, block_size=self._block_size, signed=signed, native=False)

    def _blocks_of(self, chunk: slice) -> slice:
        return slice(chunk.start // self._block_size, chunk.stop // self._block_size)


def clip_factor(gradients: Iterable[Tensor], max_norm: float) -> float:
    """Factor that clips the joint norm of all gradients to `max_norm`; not finite if a gradient is not.

    >>> clip_factor([torch.tensor([3.0, 4.0])], max_norm=2.5)
    0.5
    """
    squares = sum(float(torch.linalg.vector_norm(gradient)) ** 2 for gradient in gradients)
    # NaN also for infinite gradients: with infinity, the factor would be 0, and the step would not be skipped.
    norm = math.sqrt(squares) if math.isfinite(squares) else math.nan
    return 1.0 if norm <= max_norm else max_norm / norm


def update_settings(group: Mapping, step: int, clip: float, *, corrects_start: bool) -> Settings:
    """Computes the numbers that the stages from clipping to the direction need.

    Moments corrected for their initial zeros are m / c1 and v / c2 with c = 1 - beta ** step. The direction
    m/c1 / (sqrt(v/c2) + eps) equals m / (sqrt(v) * root_factor + root_shift) with the two numbers returned here.

    Args:
        group: Parameter group with betas, eps and weight_decay.
        step: Number of updates of this tensor, including this one.
        clip: Factor of the gradient; see `clip_factor`.
        corrects_start: True to correct moments for their initial zeros.
    """
    beta1, beta2 = group["betas"]
    correction1, correction2 = (1 - beta1**step, 1 - beta2**step) if corrects_start else (1.0, 1.0)
    return Settings(
        clip=clip,
        gain1=1 - beta1,
        decay2=beta2,
        gain2=1 - beta2,
        root_factor=correction1 / math.sqrt(correction2),
        root_shift=group["eps"] * correction1,
        weight_decay=group["weight_decay"],
    )


def update_moments(moment1: Tensor, moment2: Tensor, gradient: Tensor, settings: Settings) -> None:
    """Updates the running means of the clipped gradient and of its square, in place."""
    moment1.lerp_(gradient, settings.gain1)
    moment2.mul_(settings.decay2).addcmul_(gradient, gradient, value=settings.gain2)


def direction(moment1: Tensor, moment2: Tensor, weights: Tensor, settings: Settings, *, out: Tensor) -> None:
    """Writes the direction of the update, including the decoupled decay, to `out`."""
    torch.sqrt(moment2, out=out).mul_(settings.root_factor).add_(settings.root_shift)
    torch.div(moment1, out, out=out)
    if settings.weight_decay:
        out.add_(weights, alpha=settings.weight_decay)
