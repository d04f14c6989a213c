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
"""Two units in the last place: rounding must not bring the quotient of a block's largest value below 1."""


def block_count(size: int, block_size: int) -> int:
    """Blocks of a tensor with `size` values; the last one may be shorter."""
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
    """Stores `values` in 8 bit. May overwrite `values` with the quotients.

    A quotient is rounded by its upper 16 bits, which moves the borders between neighbours by at most 0.4 %.

    Args:
        values: (size,) float32, contiguous and finite; clobbered.
        codes: (size,) uint8, written.
        scales: (blocks,) float32, written with the largest magnitude of each block.
        block_size: Values per block; the last block may be shorter.
        signed: Whether values may be negative.
        native: Use the compiled loops if they are available; the codes are the same.
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
    """The compiled loops, if they are wanted, available, and made for such tensors."""
    fit = native and all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
    return kernels() if fit else None


def _blocks(values: torch.Tensor, scales: torch.Tensor, block_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The full blocks as one matrix with their scales, then the short last block with its own."""
    full = values.numel() // block_size
    if full:
        yield values[: full * block_size].view(full, block_size), scales[:full]
    if values.numel() > full * block_size:
        yield values[full * block_size :].unsqueeze(0), scales[full:]


def _look_up(table: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """out[i] = table[index[i]]; numpy's `take` on the host needs a third of the time of torch's."""
    if out.device.type == "cpu":
        # Every bit pattern of an index is in range, so wrapping never happens; the mode only avoids the range check.
        table.numpy().take(index.numpy(), out=out.numpy(), mode="wrap")
    else:
        out.copy_(table.to(out.device)[index.to(torch.int64)])
