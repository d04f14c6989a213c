"""The order of a peer's samples: a permutation by index over the whole set; three numbers give a peer's place in it.

A pass takes every sample once. The blocks of the set (row groups of shards, which are fetched as a whole) are permuted
over the whole set; as many of them as have `SHUFFLED_SAMPLES` together form a window, and the samples of a
window are permuted. The first windows of a pass have 1, 2, 4, ... blocks, so that the first batch waits for one block
only. Another seed, pass or window has other permutations. Nothing is stored: a restarted peer computes the order again.

    place = Place(seed=7)
    for window in order.windows(place):
        for block, row in window.picks: ...
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from training.storage.whole import write_whole

PASSES_KEPT = 2
"""Passes whose order of blocks is in memory: while one pass ends, samples of the next pass are fetched."""
ROUNDS = 8
"""Rounds of the Feistel network; four with independent keys suffice for large sets (Luby and Rackoff 1988)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Place of a peer in its order: the next sample is the one at `position` of this pass."""

    seed: int
    """Seed in [0, 2**32)."""
    finished_passes: int = 0
    position: int = 0

    def write(self, path: Path, *, order: Order) -> None:
        """Keeps the place in a file, whole or not at all."""
        write_whole(path, f"{self.seed} {self.finished_passes} {self.position} {order.digest}\n")


def read_place(path: Path, *, order: Order) -> Place | None:
    """Reads the place kept in a file; None if there is none, or it belongs to another order."""
    try:
        words = re.fullmatch(r"(\d+) (\d+) (\d+) (\w+)\n", path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if words is None or words[4] != order.digest or int(words[3]) >= order.samples:
        return None
    return Place(seed=int(words[1]), finished_passes=int(words[2]), position=int(words[3]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Samples that are mixed with each other."""

    start: Place | None
    """Place of the first pick; the other picks follow it. None for repeated samples."""
    blocks: tuple[int, ...]
    """Numbers of its blocks."""
    picks: np.ndarray
    """int64 (n, 2): for each sample, in order, the index of its block in `blocks` and its row in that block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """Arrangement of the blocks of a pass in windows."""

    blocks: np.ndarray
    """Numbers of the blocks, in order."""
    borders: list[int]
    """Numbers of blocks before each window, and before the end."""
    window_ends: list[int]
    """Numbers of samples up to the end of each window."""


class Order:
    """Orders of the samples of a set, one for each seed and pass.

    Args:
        block_rows: Samples of each block.
        window_samples: Samples that are mixed with each other, at most; a window has at least one block.
        content: Identifies the samples, so that a place is not used in another set of the same sizes.

    Raises:
        ValueError: If there are no samples.
    """

    def __init__(self, block_rows: Sequence[int], *, window_samples: int, content: str = ""):
        self._rows = np.asarray(block_rows, dtype=np.int64)
        self._passes: OrderedDict[str, _Layout] = OrderedDict()
        if not len(self._rows) or self._rows.min() < 1:
            raise ValueError("an order needs blocks with samples")
        self.samples = int(self._rows.sum())
        """Samples of a pass."""
        self.window_blocks = max(1, window_samples // int(self._rows.max()))
        described = self._rows.tobytes() + f"{self.window_blocks} {content}".encode()
        self.digest = hashlib.sha256(described).hexdigest()[:16]
        """Differs between sets: a position means something in its own order only."""

    def windows(self, place: Place) -> Iterator[Window]:
        """Yields the windows from a place on, pass after pass, without end; the first one begins at that place."""
        while True:
            yield from self._pass(place)
            place = replace(place, finished_passes=place.finished_passes + 1, position=0)

    def behind(self, start: Place, count: int) -> Place:
        """Returns the place `count` samples after `start`; after the last sample of a pass, the next pass begins."""
        more, position = divmod(start.position + count, self.samples)
        return Place(seed=start.seed, finished_passes=start.finished_passes + more, position=position)

    def _layout(self, key: str) -> _Layout:
        """Returns the arrangement of a pass's blocks, and keeps it for a while. Two threads may call this at once."""
        if (layout := self._passes.get(key)) is not None:
            return layout
        count = len(self._rows)
        blocks = permuted(np.arange(count), count, key)
        size, borders = 1, [0, 1]
        while borders[-1] < count:
            size = min(2 * size, self.window_blocks)
            borders.append(min(borders[-1] + size, count))
        ends = np.cumsum(self._rows[blocks])[np.array(borders[1:]) - 1]
        layout = self._passes[key] = _Layout(blocks=blocks, borders=borders, window_ends=ends.tolist())
        while len(self._passes) > PASSES_KEPT:
            self._passes.popitem(last=False)
        return layout

    def _pass(self, place: Place) -> Iterator[Window]:
        key = f"{place.seed}/{place.finished_passes}"
        layout = self._layout(key)
        for at in range(bisect_right(layout.window_ends, place.position), len(layout.window_ends)):
            first, last = layout.borders[at : at + 2]
            blocks, begin = layout.blocks[first:last], layout.window_ends[at - 1] if at else 0
            picks = self._picks(blocks, f"{key}/{first}")[max(place.position - begin, 0) :]
            start = replace(place, position=max(place.position, begin))
            yield Window(start=start, blocks=tuple(blocks.tolist()), picks=picks)

    def _picks(self, blocks: np.ndarray, key: str) -> np.ndarray:
        ends = np.cumsum(self._rows[blocks])
        samples = permuted(np.arange(ends[-1]), int(ends[-1]), key)
        at = np.searchsorted(ends, samples, side="right")
        return np.stack([at, samples - (ends - self._rows[blocks])[at]], axis=1)


def permuted(places: np.ndarray, count: int, key: str) -> np.ndarray:
    """Returns the values at `places` of a permutation of `range(count)`, computed for these places alone.

    A Feistel network permutes the numbers of an even number of bits. From a number outside of `range(count)`, it walks
    on until it is inside again (Black and Rogaway 2002, "cycle walking"), on average less than four steps.

    Args:
        places: Integers in [0, count), of any shape.
        count: Length of the permutation.
        key: Text that chooses the permutation, which is the same on every machine and in every version of numpy.

    >>> sorted(permuted(np.arange(5), 5, "key").tolist())
    [0, 1, 2, 3, 4]
    """
    half = max(1, (int(count - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest(), dtype="<u8")
    values = _feistel(places.astype(np.uint64), half, keys)
    while (outside := values >= count).any():
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    """Permutes numbers of 2 * `half` bits: each round replaces one half by the other, mixed with the round's key."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return left << bits | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """Mixes bits by the finalizer of SplitMix64 (Steele et al.
    2014): each result bit depends on all bits of the value."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
