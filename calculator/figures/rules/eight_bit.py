"""Eight-bit values: the dynamic type of bitsandbytes and even steps, with one scale per block or one for all."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

DECADES = 7
SCALE_BYTES = 4
"""Bytes of a block's scale, a float32."""


@cache
def dynamic_values() -> tuple[float, ...]:
    """The 256 values in [-1, 1] of the signed dynamic type, ascending.

    Each decade has twice as many values as the next smaller one, at the centres of equal intervals; 0 and 1 are added.
    Source: Dettmers 2015, arXiv:1511.04561; bitsandbytes/functional.py, `create_dynamic_map`.

    >>> len(dynamic_values()), dynamic_values()[-1], round(min(abs(value) for value in dynamic_values() if value), 10)
    (256, 1.0, 5.5e-07)
    """
    values = [0.0, 1.0]
    for decade in range(DECADES):
        count = 2**decade
        borders = [0.1 + 0.9 * index / count for index in range(count + 1)]
        for low, high in pairwise(borders):
            mean = 10.0 ** (decade - DECADES + 1) * (low + high) / 2
            values += [mean, -mean]
    return tuple(sorted(values))


@cache
def even_values() -> tuple[float, ...]:
    """255 evenly spaced values in [-1, 1], as in ordinary integer quantization."""
    return tuple(step / 127 for step in range(-127, 128))


@cache
def _borders(dynamic: bool) -> tuple[float, ...]:
    values = dynamic_values() if dynamic else even_values()
    return tuple((low + high) / 2 for low, high in pairwise(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Values stored in eight bits."""

    codes: tuple[int, ...]
    scales: tuple[float, ...]
    """For each block, its largest magnitude."""
    restored: tuple[float, ...]

    @property
    def size_bytes(self) -> int:
        """One byte per value and one scale per block."""
        return len(self.codes) + SCALE_BYTES * len(self.scales)


def stored(values: Sequence[float], block_size: int, *, dynamic: bool = True) -> Stored:
    """Divides each block by its largest magnitude and rounds each value to the nearest of the type's values.

    >>> stored([0.0, 1.0, -2.0, 0.0], 2).scales
    (1.0, 2.0)
    """
    blocks = [
        _stored_block(tuple(values[start : start + block_size]), dynamic) for start in range(0, len(values), block_size)
    ]
    return Stored(
        codes=tuple([code for codes, _, _ in blocks for code in codes]),
        scales=tuple([scale for _, scale, _ in blocks]),
        restored=tuple([value for _, _, restored in blocks for value in restored]),
    )


@lru_cache(maxsize=128)
def _stored_block(values: tuple[float, ...], dynamic: bool) -> tuple[list[int], float, list[float]]:
    """Codes, scale and decoded values. Cached: dragging one outlier changes only one block."""
    # For a block of zeros any scale is right, but the division needs one.
    scale = max(map(abs, values)) or 1.0
    table, borders = (dynamic_values() if dynamic else even_values()), _borders(dynamic)
    codes = [bisect(borders, value / scale) for value in values]
    return codes, scale, [table[code] * scale for code in codes]
