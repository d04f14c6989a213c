"""The faults that a seed draws."""

import itertools

import pytest

from tests.chaos import plan
from tests.chaos.plan import KINDS, MOST_AT_ONCE, draw

VOLUNTEERS = ("ada", "grace", "alan", "edsger", "barbara")


def drawn(seed, seconds=3600.0):
    return draw(seed, volunteers=VOLUNTEERS, seconds=seconds, every=20.0)


def test_a_seed_draws_the_same_faults_again_and_another_seed_others():
    assert drawn(3) == drawn(3) != drawn(4)


@pytest.mark.parametrize("seed", range(20))
def test_an_hour_has_a_fault_every_20_seconds_of_every_kind(seed):
    faults = drawn(seed)
    assert {fault.kind for fault in faults} == set(KINDS)
    # Faults that hit the same volunteers wait for each other, so there are a little fewer than 180.
    assert 120 <= len(faults) <= 220
    assert all(fault.begins >= 0 and fault.ends <= 3600 for fault in faults)
    for fault in faults:
        shortest, longest = KINDS[fault.kind].seconds
        assert shortest <= fault.seconds <= longest


@pytest.mark.parametrize("seed", range(20))
def test_there_are_survivors_and_one_fault_of_the_servers_at_a_time(seed):
    for one, other in itertools.combinations(drawn(seed), 2):
        if one.ends <= other.begins or other.ends <= one.begins:
            continue
        kinds = {KINDS[one.kind].hits, KINDS[other.kind].hits}
        assert not kinds <= {"server", "disk"}, (one, other)
        assert not set(one.volunteers) & set(other.volunteers), (one, other)
        if "everyone" not in kinds:
            assert len({*one.volunteers, *other.volunteers}) <= MOST_AT_ONCE


def test_only_the_kinds_that_were_asked_for_are_drawn():
    faults = draw(1, volunteers=VOLUNTEERS, seconds=600.0, every=20.0, kinds=["cut", "monitor"])
    assert {fault.kind for fault in faults} == {"cut", "monitor"}


def test_each_kind_has_a_beginning_and_an_end():
    from tests.chaos import faults

    assert plan.KINDS.keys() == faults._BEGIN.keys() == faults._END.keys()
