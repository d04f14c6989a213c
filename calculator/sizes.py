"""Whole numbers that remember how they follow from others, so that they can be worked out again for another setup.

A `Size` is an `int` in every respect. What is computed from it is a `Size` as well, and each comparison that decides
something is noted: for other numbers the same course holds as long as all comparisons come out the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence


class Size(int):
    """A number that stands for a formula; see `Formulas`."""

    formulas: Formulas
    number: int
    """Place of its formula among all of them."""


def _binary(function: Callable[[int, int], int]) -> tuple[Callable, Callable]:
    """An operator and its mirror image."""

    def straight(self: Size, other: int) -> Size:
        return self.formulas.result(function, self, other)

    def mirrored(self: Size, other: int) -> Size:
        return self.formulas.result(function, other, self)

    return straight, mirrored


def _comparison(function: Callable[[int, int], bool]) -> Callable:
    def compare(self: Size, other: object) -> bool:
        return self.formulas.decided(function, self, other) if isinstance(other, int) else NotImplemented

    return compare


for _name in ("add", "sub", "mul", "floordiv", "mod", "and"):
    _straight, _mirrored = _binary(getattr(operator, f"__{_name}__"))
    setattr(Size, f"__{_name}__", _straight)
    setattr(Size, f"__r{_name}__", _mirrored)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Size, f"__{_name}__", _comparison(getattr(operator, f"__{_name}__")))
Size.__neg__ = lambda self: 0 - self
Size.__pow__ = lambda self, exponent: self.formulas.result(operator.__pow__, self, exponent)
Size.__bool__ = lambda self: self.formulas.decided(operator.__ne__, self, 0)
Size.__hash__ = int.__hash__


class Formulas:
    """Formulas over some given numbers, in the order in which they were met, and what was decided by them.

    Args:
        given: The numbers that everything follows from.
    """

    def __init__(self, given: Sequence[int]) -> None:
        self._numbers: dict[tuple, int] = {}
        self._results: dict[tuple, Size] = {}
        self._formulas: list[tuple[Callable | None, int, int]] = []
        self._decisions: dict[tuple[Callable, int, int], bool] = {}
        self._given = len(given)
        self.given = tuple([self._size(value, number) for number, value in enumerate(given)])
        """The given numbers as sizes."""

    def _size(self, value: int, number: int) -> Size:
        size = Size(value)
        size.formulas = self
        size.number = number
        return size

    def number(self, value: int) -> int:
        """Place of a number's formula; of a plain number, its own."""
        if type(value) is Size:
            return value.number
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._given + len(self._formulas)
            self._formulas.append((None, int(value), 0))
        return number

    def result(self, function: Callable[[int, int], int], left: int, right: int) -> Size:
        """What an operator makes of two numbers."""
        key = (function, self.number(left), self.number(right))
        size = self._results.get(key)
        if size is None:
            value = function(int(left), int(right))
            size = self._results[key] = self._size(value, self._given + len(self._formulas))
            self._formulas.append(key)
        return size

    def decided(self, function: Callable[[int, int], bool], left: int, right: int) -> bool:
        """What a comparison of two numbers says; it is noted unless both are one."""
        outcome = function(int(left), int(right))
        key = (function, self.number(left), self.number(right))
        if key[1] != key[2]:
            self._decisions[key] = outcome
        return outcome

    def evaluate(self, given: Sequence[int]) -> list[int] | None:
        """All numbers for other given ones, by place; None if a comparison comes out otherwise for them."""
        values = [*given]
        append = values.append
        for function, left, right in self._formulas:
            append(left if function is None else function(values[left], values[right]))
        for (function, left, right), outcome in self._decisions.items():
            if function(values[left], values[right]) is not outcome:
                return None
        return values
