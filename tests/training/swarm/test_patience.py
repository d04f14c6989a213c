"""For how long an all-reduce waits for those who alone are late."""

import asyncio

import pytest

from training.swarm import patience
from training.swarm.coroutine import wait_for_result
from training.swarm.groups import Contribution
from training.swarm.patience import NEARLY, Late, Patience, limit_of

ADA, ALAN, GRACE, MALLORY = "ada", "alan", "grace", "mallory"
LIMIT = 5.9
"""Seconds; the first look after it is at 6."""
LOOKS = 20


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.001)


def watched(late, *, others=3, seconds=LIMIT, suspects=()):
    """Who is given up, and after how many seconds; None if nobody is within twenty looks, each a second after the last.

    Args:
        late: Who is late at a second.
        others: Peers in the group beside this one.
        seconds: The limit.
        suspects: Peers that have spoiled averages before.
    """

    async def play():
        now, given = [-1], []

        def clock():
            now[0] += 1
            return float(now[0])

        one = Patience(others, seconds, lambda: late(now[0]), suspects, on_overdue=given.append, clock=clock)
        watching = asyncio.create_task(one.watch())
        while now[0] < LOOKS and not watching.done():
            await asyncio.sleep(0)
        watching.cancel()
        return (set(given[0]), now[0]) if given else None

    return wait_for_result(play())


def senders(*peers):
    return lambda second: Late(frozenset(peers), reduce=False)


def reducers(*peers):
    return lambda second: Late(frozenset(peers), reduce=True)


def test_a_peer_that_alone_is_late_is_given_up_at_its_limit():
    assert watched(senders(MALLORY)) == ({MALLORY}, 6)
    assert watched(reducers(MALLORY)) == ({MALLORY}, 9)
    assert watched(senders()) is None
    assert watched(senders(MALLORY), seconds=None) is None


def test_a_peer_that_has_spoiled_averages_before_is_given_up_in_half_the_time():
    assert watched(senders(MALLORY), suspects={MALLORY, ADA}) == ({MALLORY}, 3)
    assert watched(reducers(MALLORY), suspects={MALLORY}) == ({MALLORY}, 5)


def test_all_seconds_count_in_which_an_all_reduce_has_waited_for_a_peer():
    """A part now and then does not help: others may be late in between."""
    late = [{MALLORY}, {MALLORY}, {ALAN}, {MALLORY}, {ADA, ALAN, MALLORY}]
    assert watched(lambda second: Late(frozenset(late[second % 5]), reduce=False)) == ({MALLORY}, 10)


def test_whoever_misses_more_than_half_of_the_others_gives_nobody_up():
    """Its own link may be what all wait for. In a pair nobody can tell."""
    assert watched(senders(MALLORY), others=1) is None
    assert watched(senders(ADA, MALLORY)) is None
    assert watched(senders(ADA, MALLORY), others=4) == ({ADA, MALLORY}, 6)


def test_honest_peers_that_hear_of_a_failure_name_the_same_peer():
    one = Patience(3, LIMIT, lambda: senders(MALLORY)(0), on_overdue=print)
    one._look(NEARLY * LIMIT - 0.1)
    assert not one.overdue(NEARLY)
    one._look(0.2)
    assert one.overdue(NEARLY) == {MALLORY} and not one.overdue()


def test_a_peer_is_worth_its_share_of_the_time_between_two_averages():

    def limit(cycle, peers, chunk=5.0, free=0.0):
        return limit_of(Contribution(weight=1.0, cycle_seconds=cycle, free_seconds=free), peers, chunk)

    assert limit(600.0, 4) == 150.0
    assert limit(600.0, 100) == 60.0  # a tenth at least
    assert limit(8.0, 4) == 5.0  # no sooner than a peer that sends nothing
    assert limit(600.0, 4, free=600.0) == 750.0
    assert limit(None, 4) is limit(8.0, 4, chunk=None) is None
