"""Units that people read: none loses digits that matter, and none needs an exponent or a number with a long tail."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calculator.units import show_number, show_rate, show_time

UNITS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86_400, "years": 365 * 86_400}


def value_of(text: str, sizes: dict[str, float]) -> float:
    """Reads a shown value again: numbers, each with its unit."""
    words = text.replace("\u202f", "").split()
    return sum(float(number) * sizes[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


@given(st.floats(1e-4, 999 * UNITS["years"]))
def test_a_shown_time_is_nearly_the_time(seconds):
    shown = show_time(seconds)
    coarse = 0.26 if 119 <= seconds < 600 else 0.06  # whole minutes; two digits of others
    assert value_of(shown, UNITS) == pytest.approx(seconds, rel=coarse)
    assert len(shown) <= 12 and "e" not in shown.replace("years", "")


def test_times_are_those_of_the_pages():
    """The page's own test has the same values."""
    script = Path(__file__).parent.parent / "site" / "scripts" / "format.test.mjs"
    theirs = re.findall(r'\[(\d+), "([^"]+)"\]', script.read_text(encoding="utf-8"))
    assert len(theirs) == 12 and [(seconds, show_time(int(seconds))) for seconds, _ in theirs] == theirs


@pytest.mark.parametrize("seconds", [0, 1e-9, math.inf])
def test_times_without_measure_have_words(seconds):
    assert re.fullmatch(r"0 s|under 0\.1 ms|over 1\u202f000 years", show_time(seconds))


@given(st.floats(1e-6, 1e15) | st.floats(-1e15, -1e-6))
def test_a_shown_number_has_three_digits_and_no_exponent(value):
    shown = show_number(value)
    assert float(shown.replace("\u202f", "")) == pytest.approx(value, rel=0.005) and "e" not in shown


@given(st.floats(1e-3, 9.99e17))
def test_a_rate_has_the_prefix_that_makes_it_shortest(per_second):
    shown = show_rate(per_second, "bit")
    sizes = {f"{prefix}bit/s": 10 ** (3 * power) for power, prefix in enumerate(["", "k", "M", "G", "T", "P"])}
    assert value_of(shown, sizes) == pytest.approx(per_second, rel=0.005)
    number = float(shown.replace("\u202f", "").split()[0])
    assert number < 1000 and (number >= 1 or per_second < 1)
