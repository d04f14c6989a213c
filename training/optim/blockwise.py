"""Block-wise 8-bit storage: 256 dynamic values and one scale for every block of a tensor.

The form is that of Dettmers et al. 2021 (arXiv:2110.02861): a tensor is cut into blocks, each block is divided by its
largest magnitude, and each quotient is stored as the index of one of 256 values that are dense near zero. The indices
and scales are those of bitsandbytes' block-wise "dynamic" type, so either program can read the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

_DECADES = 7
_BFLOAT16_PATTERNS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """The 256 values of the dynamic type and the way to the nearest one."""

    values: torch.Tensor
    """(256,) float32, ascending; index i of a stored tensor means `values[i]` times the scale of its block."""
    nearest: torch.Tensor
    """(65536,) uint8, the index of the nearest value for each bit pattern of the upper half of a float32."""


@cache
def codebook(signed: bool) -> Codebook:
    """The dynamic type for values in [-1, 1] (signed) or [0, 1].

    Each decade below 1 has twice as many values as the one below it, in the middles of equal intervals; 0 and 1 are
    added. Source: Dettmers 2015, arXiv:1511.04561; bitsandbytes/functional.py, `create_dynamic_map`.

    >>> codebook(signed=True).values.numel(), float(codebook(signed=False).values.min())
    (256, 0.0)
    """
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        borders = torch.linspace(0.1, 1, (1 if signed else 2) * 2**decade + 1)
        means = (10.0 ** (decade - _DECADES + 1) * (borders[:-1] + borders[1:]) / 2).tolist()
        values += means + ([-mean for mean in means] if signed else [])
    ascending = torch.tensor(sorted(values))
    return Codebook(values=ascending, nearest=_nearest(ascending))


def _nearest(ascending: torch.Tensor) -> torch.Tensor:
    """For each upper half of a float32, the index of the value nearest to the middle of what it stands for."""
    upper = torch.arange(_BFLOAT16_PATTERNS, dtype=torch.int64)
    bits = (upper << 16) | (1 << 15)
    middles = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
    borders = (ascending[:-1] + ascending[1:]) / 2
    return torch.bucketize(middles.nan_to_num(0.0), borders).to(torch.uint8)


def block_count(size: int, block_size: int) -> int:
    """Blocks of a tensor with `size` values; the last one may be shorter."""
    return -(-size // block_size)


def quantize(values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, *, block_size: int, signed: bool) -> None:
    """Stores `values` in 8 bit. Overwrites `values` with the quotients.

    A quotient is rounded by its upper 16 bits, which moves the borders between neighbours by at most 0.4 %.

    Args:
        values: (size,) float32, contiguous; clobbered.
        codes: (size,) uint8, written.
        scales: (blocks,) float32, written with the largest magnitude of each block.
        block_size: Values a block; the last block may be shorter.
        signed: Whether values may be negative.
    """
    for rows, of_scales in _blocks(values, scales, block_size):
        largest = rows.amax(dim=1)
        of_scales.copy_(torch.maximum(largest, rows.amin(dim=1).neg_()) if signed else largest)
        rows.mul_(of_scales.clamp(min=torch.finfo(torch.float32).tiny).reciprocal().unsqueeze(1))
    upper_halves = values.view(torch.uint16)[1::2]
    _look_up(codebook(signed).nearest, upper_halves, codes)


def dequantize(codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, *, block_size: int, signed: bool) -> None:
    """Writes the stored values to `out`, (size,) float32; see `quantize`."""
    _look_up(codebook(signed).values, codes, out)
    for rows, of_scales in _blocks(out, scales, block_size):
        rows.mul_(of_scales.unsqueeze(1))


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
        # Every pattern of an index is in range, so that wrapping never happens; it only spares the check.
        table.numpy().take(index.numpy(), out=out.numpy(), mode="wrap")
    else:
        out.copy_(table.to(out.device)[index.to(torch.int64)])
