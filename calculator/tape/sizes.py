"""Whole numbers that remember how they were computed, so that they can be computed again for another setup.

A `Size` is an `int` in every respect. What is computed from it is a `Size` as well, and each comparison of sizes is
noted. As long as all comparisons have the same outcome for other numbers, the code that made them would have taken the
same branches, and the noted formulas hold. Playing a step once in this way makes further estimates cheap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence


class Size(int):
    """A number that stands for a formula; see `Formulas`."""

    formulas: Formulas
    number: int
    """Index of its formula in `Formulas`."""


def _binary(function: Callable[[int, int], int]) -> tuple[Callable, Callable]:
    """The method of an operator and that of its reflected form, such as `__sub__` and `__rsub__`."""

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
# A class with its own `__eq__` would otherwise have no hash.
Size.__hash__ = int.__hash__


def power_of_two_from(size: int) -> int:
    """The least power of two that is not less than a size, as a formula.

    >>> [power_of_two_from(size) for size in (1, 2, 3, 1024, 1025)]
    [1, 2, 4, 1024, 2048]
    """
    return size.formulas.result(_power_of_two, size, 0) if isinstance(size, Size) else _power_of_two(size, 0)


def _power_of_two(size: int, _unused: int) -> int:
    return 1 << (size - 1).bit_length()


class Formulas:
    """Formulas over some given numbers, in the order of their first use, and the outcomes of all comparisons.

    Args:
        given: The numbers that the formulas start from.
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
        """Index of a number's formula; a plain number becomes a constant formula."""
        if type(value) is Size:
            return value.number
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = self._given + len(self._formulas)
            self._formulas.append((None, int(value), 0))
        return number

    def result(self, function: Callable[[int, int], int], left: int, right: int) -> Size:
        """The result of an operator on two numbers; the same operator on the same numbers gives the same formula."""
        key = (function, self.number(left), self.number(right))
        size = self._results.get(key)
        if size is None:
            value = function(int(left), int(right))
            size = self._results[key] = self._size(value, self._given + len(self._formulas))
            self._formulas.append(key)
        return size

    def decided(self, function: Callable[[int, int], bool], left: int, right: int) -> bool:
        """The outcome of a comparison; it is noted unless both sides are the same formula."""
        outcome = function(int(left), int(right))
        key = (function, self.number(left), self.number(right))
        # A formula compared with itself has the same outcome for all numbers.
        if key[1] != key[2]:
            self._decisions[key] = outcome
        return outcome

    def evaluate(self, given: Sequence[int]) -> list[int] | None:
        """The values of all formulas for other given numbers; None if a comparison has another outcome for them."""
        values = [*given]
        append = values.append
        try:
            for function, left, right in self._formulas:
                append(left if function is None else function(values[left], values[right]))
        except ZeroDivisionError:
            return None  # formulas come before comparisons, of which one has kept these numbers from that division
        for (function, left, right), outcome in self._decisions.items():
            if function(values[left], values[right]) is not outcome:
                return None
        return values
