"""Compiled inner loops (kernels.c). Where they cannot be built, PyTorch computes equal results more slowly."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training.native import NotNative, cache_folder, compiled
from training.optim.eight_bit.codebook import DECADES, codebook, values_in

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.c")


class _Map(ctypes.Structure):
    # In the order of the C structure: ctypes finds fields by their place.
    _fields_ = [
        ("values", ctypes.c_float * 256),
        ("threshold", ctypes.c_float * (DECADES + 1)),
        ("slope", ctypes.c_float * (DECADES + 1)),
        ("offset", ctypes.c_float * (DECADES + 1)),
        ("last", ctypes.c_float * (DECADES + 1)),
    ]


class Settings(NamedTuple):
    """Numbers that an update of one tensor needs, in the order of the C structure; see directions.py."""

    clip: float
    gain1: float
    decay2: float
    gain2: float
    root_factor: float
    root_shift: float
    weight_decay: float


class Kernels:
    """Functions of kernels.c for contiguous host tensors. They let other threads run meanwhile."""

    def __init__(self, library: ctypes.CDLL):
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._quantize, self._dequantize, self._direction = (
            library.quantize,
            library.dequantize,
            library.lamb_direction,
        )
        self._quantize.argtypes = [pointer, pointer, pointer, size, size, ctypes.c_int, pointer]
        self._dequantize.argtypes = [pointer, pointer, pointer, size, size, pointer]
        self._direction.argtypes = [pointer] * 8 + [size, size] + [pointer] * 4
        for function in (self._quantize, self._dequantize, self._direction):
            function.restype = None
        self._maps = {signed: _map(signed) for signed in (True, False)}

    def quantize(self, values: Tensor, codes: Tensor, scales: Tensor, *, block_size: int, signed: bool) -> None:
        """Stores values as `blockwise.quantize` does, but leaves `values` unchanged."""
        pointers = (tensor.data_ptr() for tensor in (values, codes, scales))
        self._quantize(*pointers, values.numel(), block_size, signed, ctypes.addressof(self._maps[signed]))

    def dequantize(self, codes: Tensor, scales: Tensor, out: Tensor, *, block_size: int, signed: bool) -> None:
        """Reads values as `blockwise.dequantize` does."""
        pointers = (tensor.data_ptr() for tensor in (codes, scales, out))
        self._dequantize(*pointers, out.numel(), block_size, ctypes.addressof(self._maps[signed]))

    def direction(
        self,
        gradient: Tensor,
        weights: Tensor,
        out: Tensor,
        *moments: Tensor,
        block_size: int,
        settings: Settings,
    ) -> tuple[float, float]:
        """Updates the moments of whole blocks of a tensor, and writes the direction to `out` (may be the gradient).

        Args:
            gradient: Gradient of the tensor, (size,) float32.
            weights: Weights of the tensor, (size,) float32.
            out: Memory for the direction, (size,) float32.
            moments: Codes and scales of the first moment, then of the second.
            block_size: Number of values per block.
            settings: Numbers of the update; see directions.py.

        Returns:
            The sums of squares of the weights and of the direction.
        """
        # A buffer for each call, because several threads call at the same time.
        buffer, squares = torch.empty(2 * block_size), (ctypes.c_double * 2)()
        of_update = (ctypes.c_float * len(settings))(*settings)
        self._direction(
            *(tensor.data_ptr() for tensor in (gradient, weights, out, *moments, buffer)),
            weights.numel(),
            block_size,
            ctypes.addressof(of_update),
            ctypes.addressof(self._maps[True]),
            ctypes.addressof(self._maps[False]),
            ctypes.addressof(squares),
        )
        return squares[0], squares[1]


@cache
def kernels() -> Kernels | None:
    """Returns the compiled loops, or None if they cannot be built; logs once which of the two is used."""
    try:
        made = Kernels(compiled(SOURCE, cache_folder()))
    except NotNative as reason:
        logger.warning("The 8-bit optimizer runs in PyTorch alone, which takes about three times as long: %s.", reason)
        return None
    logger.info("The 8-bit optimizer runs in loops compiled for this processor.")
    return made


def _map(signed: bool) -> _Map:
    """Makes the C structure that finds a codebook's nearest value: equal steps within each decade, no step at 1."""
    book = codebook(signed)
    positive, rank = book.values[book.zero :].double().tolist(), 1
    arrays: dict[str, list[float]] = {name: [] for name in ("threshold", "slope", "offset", "last")}
    for decade in range(DECADES + 1):
        steps, top = (values_in(decade, signed), 10.0 ** (decade - DECADES + 1)) if decade < DECADES else (1, 1.0)
        slope = steps / (0.9 * top) if decade < DECADES else 0.0
        arrays["threshold"].append((positive[rank - 1] + positive[rank]) / 2)
        arrays["slope"].append(slope)
        arrays["offset"].append(rank - 0.1 * top * slope)
        rank += steps
        arrays["last"].append(rank - 1)
    made = _Map(values=(ctypes.c_float * 256)(*book.values.tolist()))
    for name, values in arrays.items():
        getattr(made, name)[:] = values
    return made
