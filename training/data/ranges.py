"""Sets of whole numbers as ranges: which samples of a run are done."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain


class Ranges:
    """Whole numbers from 0 on, as ranges that neither overlap nor touch; a range has its begin and not its end.

    >>> done = Ranges([(0, 10), (20, 30)])
    >>> done.add(8, 12)
    >>> list(done), done.total, list(done.gaps(5, 25))
    ([(0, 12), (20, 30)], 22, [(12, 20)])
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()):
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.update(ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(list(self._begins), list(self._ends), strict=True)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._begins)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and list(self) == list(other)

    __hash__ = None

    def below(self, end: int) -> Ranges:
        """The numbers below one."""
        if not self._ends or self._ends[-1] <= end:
            return self
        return Ranges((begin, min(stop, end)) for begin, stop in self if begin < end)

    def copy(self) -> Ranges:
        """Another set of the same numbers."""
        copy = Ranges()
        copy._begins, copy._ends = list(self._begins), list(self._ends)
        return copy

    @property
    def total(self) -> int:
        """How many numbers."""
        return sum(self._ends) - sum(self._begins)

    @property
    def floor(self) -> int:
        """All numbers below are in the set."""
        return self._ends[0] if self._begins and self._begins[0] == 0 else 0

    def add(self, begin: int, end: int) -> None:
        """Adds the numbers from `begin` to `end`."""
        if begin >= end:
            return
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:  # these overlap it or touch it
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def update(self, *others: Iterable[tuple[int, int]]) -> None:
        """Adds those of other sets."""
        fresh = set(chain(*others)).difference(self)  # peers say much the same
        if len(fresh) < len(self) // 4:
            for begin, end in fresh:
                self.add(begin, end)
            return
        begins, ends = [], []
        for begin, end in sorted(chain(self, fresh)):
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            elif begin < end:
                begins.append(begin)
                ends.append(end)
        self._begins, self._ends = begins, ends

    def gaps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges between `begin` and `end` that are not in the set."""
        for at in range(bisect_right(self._ends, begin), len(self._begins)):
            if begin >= end or self._begins[at] >= end:
                break
            if begin < self._begins[at]:
                yield begin, self._begins[at]
            begin = max(begin, self._ends[at])
        if begin < end:
            yield begin, end

    def pack(self, most: int) -> list[int]:
        """At most so many ranges, the lowest: in turn how many numbers are not in the set, and how many are.

        >>> Ranges([(0, 12), (20, 30)]).pack(9)
        [0, 12, 8, 10]
        """
        packed, at = [], 0
        for begin, end in list(self)[:most]:
            packed += [begin - at, end - begin]
            at = end
        return packed

    @classmethod
    def unpack(cls, packed: Sequence[int]) -> Ranges:
        """What was packed.

        Raises:
            ValueError: If a number is missing or negative.
        """
        if len(packed) % 2 or any(number < 0 for number in packed):
            raise ValueError("ranges are pairs of numbers that are not negative")
        found, at = cls(), 0
        for gap, length in zip(packed[::2], packed[1::2], strict=True):
            found.add(at + gap, at + gap + length)
            at += gap + length
        return found
