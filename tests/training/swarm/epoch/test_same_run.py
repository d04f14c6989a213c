"""Two real peers follow one process that takes the same samples in one batch."""

import pytest

from benchmarks.swarm import same_run

EPOCHS = 4
TOLERANCE = 2e-6
"""Largest relative distance of the losses; sums in another order make some 1e-7."""


@pytest.fixture(scope="module")
def courses():
    """What each peer did; gradients travel in 32 bit."""
    courses = same_run.two_peers("float32", EPOCHS, timeout=200)
    same_run.check(courses)
    return courses


@pytest.mark.swarm
def test_two_peers_follow_one_process(courses):
    alone = same_run.one_process(courses)
    for course in courses:
        assert [report["epoch"] for report in course] == list(range(1, EPOCHS + 1))
        assert [report["loss"] for report in course] == pytest.approx(alone, rel=TOLERANCE)


@pytest.mark.swarm
def test_two_peers_with_adapters_follow_one_process_and_send_what_the_calculator_counts():
    """Only the adapters of a language model travel if its weights are frozen."""
    courses = same_run.two_peers("float32", EPOCHS, "adapters", timeout=200)
    same_run.check(courses)
    alone = same_run.one_process(courses, "adapters")
    counted = same_run.counted_bytes("float32", "adapters")
    for course in courses:
        assert [report["loss"] for report in course] == pytest.approx(alone, rel=TOLERANCE)
        assert [report["bytes_sent"] for report in course] == [counted] * EPOCHS


@pytest.mark.swarm
def test_one_process_without_a_peers_samples_goes_elsewhere(courses):
    """So the agreement above is not that of any two runs."""
    first, second = courses
    without = same_run.one_process([first, [{**report, "samples": 0} for report in second]])
    assert abs(without[-1] / first[-1]["loss"] - 1) > 20 * TOLERANCE
