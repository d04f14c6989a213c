"""Block-wise 8-bit storage: 256 dynamic values and one scale for every block of a tensor.

The format is that of Dettmers et al. 2021 (arXiv:2110.02861): a tensor is cut into blocks, each block is divided by its
largest magnitude, and each quotient is stored as the index of one of 256 values that are dense near zero. The indices
and scales are those of bitsandbytes' block-wise "dynamic" type, so each program can read the other's.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from training.optim.eight_bit.codebook import codebook
from training.optim.eight_bit.kernels import Kernels, kernels

_NO_LESS_THAN_ONE = 1 + 2**-22
"""Factor of two units in the last place: rounding must not bring the quotient of a block's largest value below 1."""


def block_count(size: int, block_size: int) -> int:
    """Number of blocks of a tensor with `size` values; the last one may be shorter."""
    return -(-size // block_size)


def quantize(
    values: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    *,
    block_size: int,
    signed: bool,
    native: bool = True,
) -> None:
    """Stores `values` in 8 bits. May overwrite `values` with the quotients.

    A quotient is rounded by its upper 16 bits, which moves the borders between neighbours by at most 0.4 %.

    Args:
        values: Values to store, (size,) float32, contiguous and finite; may be overwritten.
        codes: Memory for the codes, (size,) uint8.
        scales: Memory for the largest magnitude of each block, (blocks,) float32.
        block_size: Number of values per block; the last block may be shorter.
        signed: True if values may be negative.
        native: Use the compiled loops if they are available; the codes are equal.
    """
    if compiled := _compiled(native, values, codes, scales):
        compiled.quantize(values, codes, scales, block_size=block_size, signed=signed)
        return
    for rows, of_scales in _blocks(values, scales, block_size):
        largest = rows.amax(dim=1)
        of_scales.copy_(torch.maximum(largest, rows.amin(dim=1).neg_()) if signed else largest)
        # A block of zeros has the scale 0: 0 times an infinite reciprocal would be NaN.
        factors = of_scales.clamp(min=torch.finfo(torch.float32).tiny).reciprocal().mul_(_NO_LESS_THAN_ONE)
        rows.mul_(factors.unsqueeze(1))
    # In little-endian memory, the second half of a float32 is the upper one.
    upper_halves = values.view(torch.uint16)[1::2]
    _look_up(codebook(signed).nearest, upper_halves, codes)


def dequantize(
    codes: torch.Tensor,
    scales: torch.Tensor,
    out: torch.Tensor,
    *,
    block_size: int,
    signed: bool,
    native: bool = True,
) -> None:
    """Writes the stored values to `out`, (size,) float32; see `quantize`."""
    if compiled := _compiled(native, codes, scales, out):
        compiled.dequantize(codes, scales, out, block_size=block_size, signed=signed)
        return
    _look_up(codebook(signed).values, codes, out)
    for rows, of_scales in _blocks(out, scales, block_size):
        rows.mul_(of_scales.unsqueeze(1))


def _compiled(native: bool, *tensors: torch.Tensor) -> Kernels | None:
    """Returns the compiled loops if they are wanted, available, and suitable for the tensors; otherwise None."""
    fit = native and all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
    return kernels() if fit else None


def _blocks(values: torch.Tensor, scales: torch.Tensor, block_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the full blocks as one matrix with their scales, then the short last block with its own."""
    full = values.numel() // block_size
    if full:
        yield values[: full * block_size].view(full, block_size), scales[:full]
    if values.numel() > full * block_size:
        yield values[full * block_size :].unsqueeze(0), scales[full:]


def _look_up(table: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """Computes out[i] = table[index[i]]; numpy's `take` on the host needs a third of the time of torch's."""
    if out.device.type == "cpu":
        # Every bit pattern of an index is in range, so wrapping never happens; the mode only avoids the range check.
        table.numpy().take(index.numpy(), out=out.numpy(), mode="wrap")
    else:
        out.copy_(table.to(out.device)[index.to(torch.int64)])
