"""Sparse exchange of plain numbers: the values that a peer sends of its distances, and those that it keeps for later.

`mode = "sparse"` does the same to tensors (training/swarm/epoch/sparse.py and sparse_code.py). `exchange.sparse_bytes`
counts the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import copysign, fsum

from calculator.swarm.exchange import SPARSE_BLOCK

SMALL, LARGE = 0.875, 1.375
"""The two magnitudes of a value in 2 bits, as multiples of the mean magnitude. For normally distributed values the
code's relative squared error is 0.015, for Laplace's 0.015, for Student's with three degrees of freedom 0.12."""
BITS = (1, 2, 32)
"""Bits of a sent value: its sign, its sign and one of two magnitudes as the trainer sends it, or the value as it is."""


def kept_of(values: int, kept: int) -> int:
    """Number of values that are sent of a block of `values`, if `kept` are sent of each 4096; at least 1.

    >>> kept_of(4096, 64), kept_of(256, 64), kept_of(256, 8)
    (64, 4, 1)
    """
    return -(-values * kept // SPARSE_BLOCK)


def coded(values: Sequence[float], kept: int, bits: int = 2) -> dict[int, float]:
    """The largest values of a block, by their places, as receivers decode them.

    Args:
        values: Finite values of the block.
        kept: Number of values that are sent.
        bits: One of `BITS`.

    >>> coded([3.0, -0.5, -1.0, 0.25], 2)
    {0: 2.75, 2: -1.75}
    """
    magnitudes = list(map(abs, values))
    places = sorted(sorted(range(len(values)), key=magnitudes.__getitem__)[-kept:])
    if bits == max(BITS):
        return {place: values[place] for place in places}
    scale = _bfloat16(fsum(magnitudes[place] for place in places) / kept)
    small, large = (1.0, 1.0) if bits == 1 else (SMALL, LARGE)
    limit = scale * (SMALL + LARGE) / 2
    return {
        place: copysign((large if magnitudes[place] >= limit else small) * scale, values[place]) for place in places
    }


def exchanged(
    distances: Sequence[float], unsent: Sequence[float], *, kept: int, bits: int = 2, decay: float = 1.0
) -> tuple[dict[int, float], list[float]]:
    """What a peer sends in one exchange, by places, and what it has not sent afterwards (error feedback).

    With a decay of 1, everything that was sent so far and the rest add up to all distances so far.

    Args:
        distances: How far the peer's weights have moved since the last exchange.
        unsent: What it had not sent before.
        kept: Number of values that are sent.
        bits: One of `BITS`.
        decay: Factor by which what was not sent counts less.

    Source: Sarfi et al. 2025, arXiv:2508.15706 (SparseLoCo).

    >>> exchanged([1.0, 0.5], [0.0, 0.75], kept=1, bits=32)
    ({1: 1.25}, [1.0, 0.0])
    """
    rest = [decay * old + new for old, new in zip(unsent, distances, strict=True)]
    sent = coded(rest, kept, bits)
    for place, value in sent.items():
        rest[place] -= value
    return sent, rest


def _bfloat16(value: float) -> float:
    """The nearest number in bfloat16, which has the first 16 bits of a number in 32; of two, the even one."""
    (whole,) = struct.unpack("<I", struct.pack("<f", value))
    whole += 0x7FFF + (whole >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", whole & 0xFFFF0000))[0]
