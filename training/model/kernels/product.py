"""Product of a matrix with one row or a few: sampling one token at a time spends most of its time in such products.

Such a product reads the whole matrix for little arithmetic. MKL, which PyTorch calls, reads it in blocks of rows, at a
third of the memory's rate; product.c reads it sequentially.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from training.native import NotNative, cache_folder, compiled

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("product.c")
MOST_ROWS = 8
"""Most rows of the compiled product; with more, PyTorch's is faster (one thread, model S of benchmarks/model)."""
MOST_THREADS = 2
"""Most threads of PyTorch at which the loop, which has one thread, is used; more are assumed to be faster together."""

Product = Callable[[Tensor], Tensor]
"""Function from inputs (B, columns) to outputs (B, rows)."""


def product_with(weight: Tensor, bias: Tensor | None, batch: int) -> Product:
    """Makes the function `inputs @ weight.T + bias`, prepared for repeated use without gradients.

    Args:
        weight: Matrix (rows, columns); neither it nor `bias` may change afterwards.
        bias: Vector (rows,); None: no bias.
        batch: B, the number of rows of the inputs.
    """
    on_host = weight.device.type == "cpu" and weight.dtype == torch.float32
    few = batch <= MOST_ROWS and torch.get_num_threads() <= MOST_THREADS
    loop = _loop() if on_host and few else None
    return _by_pytorch(weight, bias) if loop is None else _by_loop(loop, weight, bias, batch)


def _by_pytorch(weight: Tensor, bias: Tensor | None) -> Product:
    matrix = weight.t()
    if matrix.shape[0] <= matrix.shape[1]:  # for a wide matrix, reading along the outputs takes a third of the time
        matrix = matrix.contiguous()
    if bias is None:
        return lambda inputs: torch.mm(inputs, matrix)
    return lambda inputs: torch.addmm(bias, inputs, matrix)


def _by_loop(loop: Callable, weight: Tensor, bias: Tensor | None, batch: int) -> Product:
    rows, columns = weight.shape
    weight = weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    matrix_at, bias_at = weight.data_ptr(), None if bias is None else bias.data_ptr()

    # `_keep` holds the two tensors: the loop has only their addresses, and otherwise they could be freed.
    def product(inputs: Tensor, _keep: tuple = (weight, bias)) -> Tensor:
        inputs, out = inputs.contiguous(), inputs.new_empty(batch, rows)
        loop(matrix_at, bias_at, inputs.data_ptr(), out.data_ptr(), batch, rows, columns)
        return out

    return product


@cache
def _loop() -> Callable | None:
    """Returns the compiled loop, or None if it cannot be built; logs the reason once."""
    try:
        loop = compiled(SOURCE, cache_folder()).product
    except NotNative as reason:
        logger.info("Sampling runs in PyTorch alone, which takes about a third longer: %s.", reason)
        return None
    loop.argtypes, loop.restype = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3, None
    return loop
