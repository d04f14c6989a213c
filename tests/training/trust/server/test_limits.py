"""Limits: how many may ask at once, and how soon again."""

from __future__ import annotations

import doctest
from types import SimpleNamespace

import pytest

from training.trust.server import limits
from training.trust.server.limits import MOST_BUCKETS, RateLimit, asker


def test_the_examples_hold():
    assert doctest.testmod(limits).failed == 0 < doctest.testmod(limits).attempted


def test_a_bucket_gives_so_many_permits_and_fills_again():
    clock = SimpleNamespace(now=0.0)
    limit = RateLimit(per_second=0.5, at_once=3, clock=lambda: clock.now)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 2]
    assert limit.take("b") == 0
    clock.now = 1
    assert limit.take("a") == 1
    clock.now = 2
    assert [limit.take("a"), limit.take("a")] == [0, 2]
    clock.now = 1000
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 2]


def test_buckets_do_not_grow_without_bound():
    limit = RateLimit(per_second=1e-9, at_once=1)
    assert limit.take("first") == 0 and limit.take("first") > 0
    for number in range(MOST_BUCKETS):
        limit.take(str(number))
    assert len(limit._buckets) == MOST_BUCKETS
    assert limit.take("first") == 0  # it was forgotten, as the one that had not asked for longest


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("203.0.113.7", "203.0.113.8", False),
    ],
)
def test_a_home_is_one_asker(one, other, same):
    assert (asker(one) == asker(other)) == same
