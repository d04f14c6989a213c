"""Memory that the kernels of fused attention take beside their results.

No trace shows it: kernels allocate it themselves. The rules were read from the sources of PyTorch 2.13, of flash
attention in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_bwd), of memory-efficient attention in
attention.cu and attention_backward.cu beside that folder, and in mem_eff_attention/kernel_forward.h, kernel_backward.h
and kernels/cutlassB.h. Memory-efficient attention has kernels of several block sizes. Those counted here are the ones
that run on GPUs of compute capability 8.0, 9.0 and 10.0 (A100, H100, B200); others have less shared memory, where
blocks of wide heads are smaller.

Letters: T queries of a sequence, S keys, H head width; a row is a sequence's head.
"""

from __future__ import annotations

from calculator.tape.autograd import rounded

NARROW_HEAD, USUAL_HEAD = 64, 128
"""Widths of heads up to which memory-efficient attention takes one kernel, and the next one."""
SPLITS_OF_ALL_ROWS = 200
"""Parts into which the keys of all rows together are split at most, where each part has a sum of its own."""


def flash_backward_bytes(*, rows: int, queries: int, head_dim: int, expanded: int) -> int:
    """Bytes that the backward of flash attention takes.

    It sums the queries' gradient in 32 bits, for 128 queries at a time, with one number for each of them.

    Args:
        rows: Sequences times heads.
        queries: T.
        head_dim: H, a multiple of 8.
        expanded: Values of keys of all query heads, where several share one head of keys: gradients of keys and values
            have this size before they are summed (dk_expanded); 0: none share.
    """
    padded = _up(queries, 128)
    width = _up(head_dim, 32) if head_dim <= USUAL_HEAD else _up(head_dim, 64)
    return rounded(4 * rows * padded * width) + rounded(4 * rows * padded) + 2 * rounded(2 * expanded)


def efficient_forward_bytes(*, itemsize: int, values: int, widest: int) -> int:
    """Bytes that the forward of memory-efficient attention takes: of wide heads in 16 bits, a result in 32 bits.

    Args:
        itemsize: Bytes of a value of the operands.
        values: Values of the result.
        widest: Width of a head of queries or of values, whichever is more.
    """
    return rounded(4 * values) if itemsize == 2 and widest > USUAL_HEAD else 0


def efficient_backward_bytes(
    *, itemsize: int, rows: int, queries: int, keys: int, head_dim: int, value_dim: int, transposed: bool
) -> tuple[int, ...]:
    """Bytes that the backward of memory-efficient attention takes, at each of its instants.

    It needs a number for each query: the sum over a head of the result times its gradient. In 32 bits, that product is
    made first. Then the kernel sums the queries' gradient in 32 bits, block by block, each with a lock of four numbers;
    of wide heads in 16 bits, also the gradients of keys and values.

    Args:
        itemsize: Bytes of a value of the operands.
        rows: Sequences times heads.
        queries: T.
        keys: S.
        head_dim: H of queries and keys.
        value_dim: H of values.
        transposed: Whether the numbers of each query must be copied to lie by head: not for one head or one query.
    """
    numbers = rounded(4 * rows * queries)
    widest = value_dim if value_dim > head_dim else head_dim
    tall, wide = _block(itemsize, widest)
    sums = -(-queries // tall) * -(-head_dim // wide) * (tall * wide + 4)
    if itemsize == 2 and widest > USUAL_HEAD:
        sums += _splits(rows, keys, wide) * wide * (_up(head_dim, tall) + _up(value_dim, tall))
    summing = numbers + rounded(4 * rows * sums)
    if itemsize == 2:
        return (summing,)
    return (rounded(4 * rows * queries * value_dim) + (2 if transposed else 1) * numbers, summing)


def _up(count: int, multiple: int) -> int:
    """The least multiple that is not less than a count."""
    return -(-count // multiple) * multiple


def _block(itemsize: int, widest: int) -> tuple[int, int]:
    """Queries and keys of a block."""
    if widest <= NARROW_HEAD:
        return 64, 64
    return 128, 128 if itemsize == 2 and widest <= USUAL_HEAD else 64


def _splits(rows: int, keys: int, wide: int) -> int:
    """Parts into which the keys of a row are split."""
    blocks, most = -(-keys // wide), SPLITS_OF_ALL_ROWS // rows
    if most < 1:
        return 1
    return blocks if blocks < most else most
