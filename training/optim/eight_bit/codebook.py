"""Codebook of the dynamic 8-bit type: its 256 values, and the lookup of the value nearest to a number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from calculator.figures.rules.eight_bit import DECADES

_BFLOAT16_PATTERNS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """Values of the dynamic type, and a table of the nearest ones."""

    values: torch.Tensor
    """(256,) float32, ascending; index i of a stored tensor means `values[i]` times the scale of its block."""
    nearest: torch.Tensor
    """(65536,) uint8, the index of the nearest value for each bit pattern of the upper half of a float32."""
    zero: int
    """Index of the value 0."""


@cache
def codebook(signed: bool) -> Codebook:
    """Makes the dynamic type for values in [-1, 1] (signed) or [0, 1].

    Each decade below 1 has twice as many values as the next smaller one, in the middles of equal intervals; 0 and 1 are
    added. Source: Dettmers 2015, arXiv:1511.04561; bitsandbytes/functional.py, `create_dynamic_map`.

    >>> codebook(signed=True).values.numel(), float(codebook(signed=False).values.min())
    (256, 0.0)
    """
    values = [0.0, 1.0]
    for decade in range(DECADES):
        borders = torch.linspace(0.1, 1, values_in(decade, signed) + 1)
        means = (10.0 ** (decade - DECADES + 1) * (borders[:-1] + borders[1:]) / 2).tolist()
        values += means + ([-mean for mean in means] if signed else [])
    ascending = torch.tensor(sorted(values))
    return Codebook(values=ascending, nearest=_nearest(ascending), zero=int((ascending == 0).nonzero()))


def values_in(decade: int, signed: bool) -> int:
    """Number of positive values between 10**(decade - 7) and ten times that."""
    return (1 if signed else 2) * 2**decade


def _nearest(ascending: torch.Tensor) -> torch.Tensor:
    """Finds the nearest value for each upper half of a float32: the index of the value nearest to the middle of the
    numbers that begin with this half."""
    upper = torch.arange(_BFLOAT16_PATTERNS, dtype=torch.int64)
    # The middle of the 65,536 numbers that begin with this half.
    bits = (upper << 16) | (1 << 15)
    # The bits as a signed number, since int32 holds nothing from 2**31 on.
    middles = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
    borders = (ascending[:-1] + ascending[1:]) / 2
    return torch.bucketize(middles.nan_to_num(0.0), borders).to(torch.uint8)
