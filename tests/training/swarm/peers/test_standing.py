"""A peer that spoils averages is left out by all honest ones, and nobody else is."""

import re
import threading
from functools import partial

import faults
import pytest
import reducers
from faults import Fault
from scenarios import ALL_THREE, BOTH
from started_peers import meet

from training.swarm.defence.auditor import LIE_WEIGHT
from training.swarm.peers.groups import Delay
from training.swarm.peers.standing import FIRST_SECONDS, FORGOTTEN_SECONDS, LONGEST_SECONDS, Standing

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
"""Of the two honest ones without the third, in a row."""


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


def test_of_two_threads_that_tell_the_one_that_has_seen_more_comes_last():
    told, first_tells, goes_on = [], threading.Event(), threading.Event()

    def tell(peers):
        if not told and not first_tells.is_set():
            first_tells.set()
            goes_on.wait(10)
        told.append(sorted(peers))

    standing = Standing(tell)
    first = threading.Thread(target=standing.note, args=({"mallory": 2.0},))
    first.start()
    assert first_tells.wait(10)
    second = threading.Thread(target=standing.note, args=({"trudy": 2.0},))
    second.start()
    second.join(0.2)
    goes_on.set()
    first.join()
    second.join()
    assert told == [["mallory"], ["mallory", "trudy"]]


def test_a_peer_that_has_lied_is_left_out_at_once_for_an_hour_each_time():
    now, told = [0.0], []
    standing = Standing(lambda peers: told.append(sorted(peers)), clock=lambda: now[0])
    standing.note_caught("mallory", LIE_WEIGHT, "has answered with a wrong average, and")
    assert told == [["mallory"]]
    (first,) = standing.take_news()
    assert first.startswith("mallory has answered with a wrong average, and is left out of groups for 3600 s")
    now[0] += 3601
    standing.refresh()
    assert told[-1] == []
    standing.note_caught("mallory", LIE_WEIGHT, "has answered with a wrong average, and")
    times = [float(news.split()[-2]) for news in (first, *standing.take_news())]
    assert times == [3600, 3600]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_peer_is_left_out_for_growing_times_and_forgiven_in_the_end():
    clock, told = Clock(), []
    standing = Standing(told.append, clock=clock)
    standing.note({"mallory": 1.0})
    assert standing.take_news() == [] and told == []
    seconds = FIRST_SECONDS
    for _ in range(3):
        standing.note({"mallory": 1.0})
        told_of = f"mallory has spoiled averages and is left out of groups for {seconds:.0f} s"
        assert standing.take_news() == [told_of] and told[-1] == {"mallory"}
        standing.note({"mallory": 1.0})  # the other averager's round, which ends at the same time
        assert standing.take_news() == []
        clock.now += seconds
        standing.refresh()
        assert told[-1] == frozenset()
        seconds *= 2
    clock.now += FORGOTTEN_SECONDS + 1
    standing.note({"mallory": 1.0})
    assert standing.take_news() == []


def test_nobody_is_left_out_for_ever():
    clock = Clock()
    standing = Standing(lambda peers: None, clock=clock)
    for _ in range(40):
        standing.note({"mallory": 1.0})
        for sentence in standing.take_news():
            seconds = float(sentence.split()[-2])
            clock.now += seconds
            assert seconds <= LONGEST_SECONDS


def left_out(*rounds, waited=4.0, cycle=12.0):
    """Who is left out after averages with these delays of mallory and shares of the samples."""
    told = []
    standing = Standing(told.append, clock=Clock())
    for seconds, share in rounds:
        delays = {"mallory": Delay(seconds, share), "grace": Delay(0.0, share)}
        standing.note_delays(delays, waited=waited, cycle=cycle)
    return told[-1] if told else frozenset(), standing.take_news()


def test_a_peer_that_costs_more_than_it_brings_is_left_out():
    why = "mallory costs the others 33% of their time and brings 25% of the samples"
    assert left_out(*3 * [(4.0, 0.25)]) == ({"mallory"}, [f"{why}, so it is left out of groups for 30 s"])
    assert left_out(*3 * [(4.0, 0.4)]) == (frozenset(), [])  # it brings more
    assert left_out(*2 * [(4.0, 0.25)]) == (frozenset(), [])  # seen too seldom
    assert left_out((11.0, 0.25), (0.0, 0.25), (0.0, 0.25)) == (frozenset(), [])  # one accident
    assert left_out(*3 * [(0.9, 0.01)], cycle=1.0) == (frozenset(), [])  # pauses of a busy computer
    assert left_out(*3 * [(4.0, 0.01)], cycle=60.0) == (frozenset(), [])  # less than a tenth of the time


def test_time_that_the_training_did_not_wait_costs_nothing():
    """With delayed gradients peers compute while they average."""
    assert left_out(*9 * [(4.0, 0.01)], waited=0.5) == (frozenset(), [])
