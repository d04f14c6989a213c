"""A peer that spoils averages is left out by all honest ones, and nobody else is."""

import re
from functools import partial

import pytest
from hivemind.p2p import PeerID

from tests.training.swarm.real_peers import faults, reducers
from tests.training.swarm.real_peers.faults import Fault
from tests.training.swarm.real_peers.scenarios import ALL_THREE, BOTH
from tests.training.swarm.real_peers.started_peers import meet
from training.swarm.defence.auditor import LIE_WEIGHT
from training.swarm.peers.table import Peers
from training.swarm.peers.times import FORGOTTEN_SECONDS, LEFT_OUT_SECONDS, LONGEST_LEFT_OUT_SECONDS

SPOILERS = {
    "stands still": partial(faults.spoil, Fault.STAND_STILL),
    "breaks off": partial(faults.spoil, Fault.FAIL_REDUCING),
    "answers slowly": faults.answer_slowly,
    "answers very slowly": partial(faults.answer_slowly, seconds=faults.SILENCE_SECONDS * 1.5),
    "averages wrongly": reducers.lie_from_now_on,
}
WHY = {
    "answers slowly": "costs the others",
    "averages wrongly": "has answered with a wrong average, as its own signatures prove, and",
}
CHECKED = {"aggregation": "centered-clip", "audit_share": 0.5}
AVERAGES = 4
"""Averages in a row of the two honest peers without the third."""
MALLORY, GRACE = b"mallory", b"grace"
NAME = str(PeerID(MALLORY))


@pytest.mark.swarm
@pytest.mark.parametrize("kind", SPOILERS)
def test_a_peer_that_spoils_averages_is_soon_left_out(kind, tmp_path):
    swarm = CHECKED if kind == "averages wrongly" else {}
    scenario = partial(faults.train_beside_a_spoiler, spoil=SPOILERS[kind], averages=AVERAGES, **swarm)
    (peers,) = meet(tmp_path, [scenario], ALL_THREE)
    third = peers["third"][1]
    for name in BOTH:
        reports, _ = peers[name]
        last = reports[-AVERAGES:]
        assert all(report.group_size == report.senders == 2 and not report.fault for report in last), reports
        notes = " ".join(report.note or "" for report in reports)
        why = WHY.get(kind, "has spoiled averages and")
        assert re.search(f"{third} {why}.* is left out of groups for ", notes)
        assert not any(f"{peers[other][1]} {verb}" in notes for other in BOTH for verb in ("costs", "has"))


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def peers(clock):
    return Peers(clock=clock)


def test_a_peer_that_has_lied_is_left_out_at_once_for_an_hour_each_time(peers, clock):
    for _ in range(2):
        peers.spoiled(MALLORY, LIE_WEIGHT, "has answered with a wrong average, and")
        assert peers.left_out() == {MALLORY}
        (news,) = peers.take_news()
        assert news == f"{NAME} has answered with a wrong average, and is left out of groups for 3600 s"
        clock.now += 3601
        assert not peers.is_left_out(MALLORY)


def test_a_peer_is_left_out_for_growing_times_and_forgiven_in_the_end(peers, clock):
    peers.spoiled(MALLORY)
    assert peers.take_news() == [] and not peers.left_out()
    seconds = LEFT_OUT_SECONDS
    for _ in range(3):
        peers.spoiled(MALLORY)
        news = f"{NAME} has spoiled averages and is left out of groups for {seconds:.0f} s"
        assert peers.take_news() == [news] and peers.left_out() == {MALLORY}
        peers.spoiled(MALLORY)  # the other averager's round, which ends at the same time
        assert peers.take_news() == []
        clock.now += seconds
        assert not peers.left_out()
        seconds *= 2
    clock.now += FORGOTTEN_SECONDS + 1
    peers.spoiled(MALLORY)
    assert peers.take_news() == []


def test_nobody_is_left_out_for_ever(peers, clock):
    for _ in range(40):
        peers.spoiled(MALLORY)
        for sentence in peers.take_news():
            seconds = float(sentence.split()[-2])
            clock.now += seconds
            assert seconds <= LONGEST_LEFT_OUT_SECONDS
    peers.spoiled(MALLORY, LIE_WEIGHT)
    clock.now -= 24 * 3600.0  # it was ahead for a moment
    assert not peers.is_left_out(MALLORY)


def left_out(*averages, cycle=12.0):
    """Peers that are left out after averages with these delays of mallory and shares of the samples, and why."""
    peers = Peers(clock=Clock())
    for seconds, share in averages:
        peers.delayed(MALLORY, seconds, brought=share, cycle=cycle)
        peers.delayed(GRACE, 0.0, brought=share, cycle=cycle)
    return peers.left_out(), peers.take_news()


def test_a_peer_that_costs_more_than_it_brings_is_left_out():
    why = f"{NAME} costs the others 33% of their time and brings 25% of the samples"
    assert left_out(*3 * [(4.0, 0.25)]) == ({MALLORY}, [f"{why}, so it is left out of groups for 30 s"])
    assert left_out(*3 * [(4.0, 0.4)]) == (frozenset(), [])  # it brings more
    assert left_out(*2 * [(4.0, 0.25)]) == (frozenset(), [])  # seen too seldom
    assert left_out((8.0, 0.25), (0.0, 0.25), (0.0, 0.25)) == (frozenset(), [])  # one accident
    assert left_out(*3 * [(0.9, 0.01)], cycle=1.0) == (frozenset(), [])  # pauses of a busy computer
    assert left_out(*3 * [(4.0, 0.01)], cycle=60.0) == (frozenset(), [])  # less than a tenth of the time
