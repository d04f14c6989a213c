"""Averages in which peers fail, are slow or give up, by the faults of hivemind's own tests, between real peers.

hivemind's test of faults overrides private methods of its averager and takes an average for good if half of its values
are right. Here all other peers must end soon, with equal tensors that are the mean of whole peers, and say so.
"""

from functools import partial

import pytest
import torch

from tests.training.swarm.real_peers import faults
from tests.training.swarm.real_peers.faults import Fault, tensors_of
from tests.training.swarm.real_peers.started_peers import meet
from training.swarm.round.rounds import REPETITIONS

NAMES = ("first", "second", "third", "fourth")
"""The first two have no faults."""
MOST_SECONDS = 20.0
"""An average with all its repetitions takes less; a slow peer alone would take ten seconds for each part."""

CASES = {
    "fails before": {"fourth": Fault.FAIL_BEFORE},
    "two fail before": {"third": Fault.FAIL_BEFORE, "fourth": Fault.FAIL_BEFORE},
    "is cancelled": {"fourth": Fault.CANCEL},
    "fails sending once": {"third": Fault.FAIL_SENDING},
    "slow sending once": {"third": Fault.SLOW_SENDING},
    "fails reducing once": {"third": Fault.FAIL_REDUCING},
    "slow reducing once": {"third": Fault.SLOW_REDUCING},
    "refuses once": {"third": Fault.REFUSE},
    "slow sending and fails sending once": {"third": Fault.SLOW_SENDING, "fourth": Fault.FAIL_SENDING},
    "fails sending once and fails before": {"third": Fault.FAIL_SENDING, "fourth": Fault.FAIL_BEFORE},
    "slow reducing and fails sending once": {"third": Fault.SLOW_REDUCING, "fourth": Fault.FAIL_SENDING},
}
"""Peers with faults. The fourth accepts no connections, so it averages nothing for the others."""
LASTING = {
    "sends no more": {"third": Fault.FAIL_SENDING},
    "sends slowly": {"third": Fault.SLOW_SENDING},
    "answers no more": {"third": Fault.FAIL_REDUCING},
    "answers slowly": {"third": Fault.SLOW_REDUCING},
    "refuses": {"third": Fault.REFUSE},
    "one sends slowly, one fails": {"third": Fault.SLOW_SENDING, "fourth": Fault.FAIL_SENDING},
}
"""Peers that live, and have their faults in each repetition as well."""
SOON_SECONDS = 12.0
"""Nobody waits longer for one that is gone, however long an all-reduce may wait for one that is slow."""
GONE = (Fault.FAIL_BEFORE, Fault.CANCEL)
"""A peer with one of these has no part in the average; the others have one when the fault has passed."""


def meet_with_faults(folder, cases, **settings):
    """What the peers of each case have after a round; the rounds are one after the other."""
    rounds = [
        partial(faults.average, prefix=f"case{number}", faults=case, client_mode="fourth", **settings)
        for number, case in enumerate(cases.values())
    ]
    return dict(zip(cases, meet(folder, rounds, NAMES), strict=True))


@pytest.fixture(scope="module")
def averages(tmp_path_factory):
    """Faults that pass."""
    return meet_with_faults(tmp_path_factory.mktemp("passing"), CASES, only_once=True)


@pytest.fixture(scope="module")
def lasting_averages(tmp_path_factory):
    """Faults that last."""
    return meet_with_faults(tmp_path_factory.mktemp("lasting"), LASTING)


@pytest.mark.swarm
@pytest.mark.parametrize("case", CASES)
def test_all_whose_fault_has_passed_end_soon_with_their_mean_and_say_what_happened(averages, case):
    met = averages[case]
    gone = {name for name, fault in CASES[case].items() if fault in GONE}
    left = [name for name in NAMES if name not in gone]
    own = {name: tensors_of(name) for name in NAMES}
    for name in left:
        tensors, report, _ = met[name]
        assert not isinstance(report, Exception), (name, report)
        assert report.group_size == 4 and report.senders == len(left) and not report.torn, (name, report)
        assert 1 <= report.repeated <= 2 and report.seconds < MOST_SECONDS, (name, report)
        assert set(report.lost) == {met[lost][2] for lost in gone}, (name, report)
        for number, tensor in enumerate(tensors):
            mean = sum(own[peer][number] for peer in left) / len(left)
            assert torch.allclose(tensor, mean, atol=1e-5), (name, number)
    for name in gone:
        assert all(map(torch.equal, met[name][0], own[name])), f"{name} has no part in the average"


@pytest.mark.swarm
@pytest.mark.parametrize("case", [case for case, faulty in LASTING.items() if len(faulty) == 1])
def test_a_peer_whose_fault_lasts_is_left_out_and_most_of_the_others_average(lasting_averages, case):
    """Where only one other has seen the fault, nobody knows which of the two lies, and both are left out."""
    met = lasting_averages[case]
    done = {name: report for name, (_, report, _) in met.items() if not isinstance(report, Exception)}
    averaged = [name for name, report in done.items() if report.senders > 1]
    assert len(averaged) >= 2 and not set(averaged) & LASTING[case].keys(), done
    for name in averaged:
        tensors, report, _ = met[name]
        assert report.senders == len(averaged) and report.repeated == REPETITIONS and not report.torn, (name, report)
        assert set(report.lost) == {met[lost][2] for lost in NAMES if lost not in averaged}, (name, report)
        assert report.seconds < MOST_SECONDS, (name, report)
        for number, tensor in enumerate(tensors):
            mean = sum(tensors_of(peer)[number] for peer in averaged) / len(averaged)
            assert torch.allclose(tensor, mean, atol=1e-5), (name, number)
    for name in set(NAMES) - set(averaged):
        assert all(map(torch.equal, met[name][0], tensors_of(name))), f"{name} has no part in the average"


@pytest.mark.swarm
def test_where_half_of_the_peers_have_faults_that_last_nobody_uses_parts_of_an_average(lasting_averages):
    """hivemind's peers would use the parts that they got.

    The two without faults average alone if both have noticed both faults; that depends on when they come.
    """
    met, sound = lasting_averages["one sends slowly, one fails"], ("first", "second")
    for name, (tensors, report, _) in met.items():
        own = tensors_of(name)
        if isinstance(report, Exception) or report.senders == 1:
            assert isinstance(report, Exception) or report.torn, (name, report)
            assert all(map(torch.equal, tensors, own)), name
            continue
        assert name in sound and report.senders == len(sound) and not report.torn, (name, report)
        assert set(report.lost) == {met[faulty][2] for faulty in set(met) - set(sound)}, (name, report)
        for number, tensor in enumerate(tensors):
            mean = sum(tensors_of(peer)[number] for peer in sound) / len(sound)
            assert torch.allclose(tensor, mean, atol=1e-5), (name, number)


@pytest.mark.swarm
@pytest.mark.parametrize("sleeper", ["third", "second"])
def test_nobody_waits_long_for_a_peer_that_does_not_even_answer_a_ping(tmp_path, sleeper):
    """The recipe lets a slow peer be silent for a minute. The second or third peer may be the referee."""
    sleeps = partial(
        faults.average, prefix="sleeps", faults={sleeper: Fault.SLEEP}, client_mode="fourth", silence_seconds=60.0
    )
    (met,) = meet(tmp_path, [sleeps], NAMES)
    left = [name for name in NAMES if name != sleeper]
    for name in left:
        tensors, report, _ = met[name]
        assert not isinstance(report, Exception), (name, report)
        assert (report.group_size, report.senders, report.lost) == (4, 3, (met[sleeper][2],)), (name, report)
        assert not report.torn and report.seconds < SOON_SECONDS, (name, report)
        for number, tensor in enumerate(tensors):
            mean = sum(tensors_of(peer)[number] for peer in left) / len(left)
            assert torch.allclose(tensor, mean, atol=1e-5), (name, number)
