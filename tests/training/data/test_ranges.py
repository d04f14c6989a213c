"""Ranges of whole numbers, compared with Python's sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.ranges import Ranges

PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def numbers(ranges):
    return {number for begin, end in ranges for number in range(begin, end)}


def is_tidy(ranges):
    """Sorted, not empty, and with a gap between each two."""
    ends = [number for piece in ranges for number in piece]
    return ends == sorted(set(ends))


@given(PIECES, PIECES, st.integers(0, 70), st.integers(0, 70))
def test_they_are_the_set_of_their_numbers(pieces, others, begin, end):
    expected = numbers(pieces)
    found = Ranges(pieces)
    assert numbers(found) == expected and is_tidy(found) and found.total == len(expected)
    assert found.floor == min(set(range(62)) - expected)
    assert numbers(found.gaps(begin, end)) == set(range(begin, end)) - expected and is_tidy(found.gaps(begin, end))
    assert numbers(found.below(end)) == {number for number in expected if number < end}
    assert Ranges.unpack(found.pack(99)) == found == found.copy()
    one_by_one = found.copy()
    for piece in others:
        one_by_one.add(*piece)
    found.update(Ranges(others), [])
    assert one_by_one == found and numbers(found) == expected | numbers(others) and is_tidy(found)


def test_only_the_lowest_are_packed():
    assert Ranges.unpack(Ranges([(5, 7), (9, 10), (20, 30)]).pack(2)) == Ranges([(5, 7), (9, 10)])


@pytest.mark.parametrize("packed", [[1], [1, 2, 3], [0, -1], [-5, 9]])
def test_what_is_no_ranges_is_refused(packed):
    with pytest.raises(ValueError, match="ranges are pairs"):
        Ranges.unpack(packed)
