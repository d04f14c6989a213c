"""How often peers may ask."""

import doctest

from training.swarm.engine import quota
from training.swarm.engine.quota import Quota


def test_the_example():
    assert doctest.testmod(quota).failed == 0


def test_requests_that_are_open_count():
    asked = Quota(at_once=2, of_one=1, seconds=0.0)
    with asked.request("ada") as first, asked.request("ada") as again, asked.request("bob") as other:
        assert (first, again, other) == (True, False, True)
        with asked.request("cy") as too_many:
            assert not too_many
    with asked.request("cy") as later:
        assert later


def test_who_has_rested_is_forgotten():
    now = [0.0]
    asked = Quota(at_once=9, of_one=3, seconds=10.0, clock=lambda: now[0])
    for number in range(100):
        with asked.request(number):
            pass
    now[0] = 10.0
    with asked.request("new"):
        assert list(asked._rested_at) == ["new"]
