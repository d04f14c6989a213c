"""Four peers, each a process of its own with its own node, of which one is hostile, average in 8 bit."""

from functools import partial

import pytest
import torch

from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.scenarios import ALL_THREE, FOUR, SIZES
from tests.training.swarm.real_peers.started_peers import meet, relative_error

MEETINGS = {
    (aggregation, of_weights): partial(
        scenarios.average_with_a_hostile_peer, aggregation=aggregation, of_weights=of_weights
    )
    for aggregation, of_weights in (("centered-clip", False), ("centered-clip", True), ("mean", False), ("mean", True))
}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """What the honest peers have after each, with their reports."""
    met = meet(tmp_path_factory.mktemp("hostile"), list(MEETINGS.values()), FOUR)
    return {kind: [peers[name] for name in ALL_THREE] for kind, peers in zip(MEETINGS, met, strict=True)}


def honest_mean(make):
    return [torch.stack(own).mean(0) for own in zip(*map(make, ALL_THREE), strict=True)]


@pytest.mark.swarm
def test_gradients_times_minus_1000_with_a_huge_weight_hardly_move_the_average(rounds):
    """It stays nearer to the honest peers' mean than any honest gradient alone. Each tensor is a part, or more."""
    mean = honest_mean(scenarios.signal_and_noise_of)
    for tensors, report in rounds["centered-clip", False]:
        assert report.senders == 4 and not report.torn and not report.repeated
        for number, (kind, got) in enumerate(zip(SIZES, tensors, strict=True)):
            alone = [relative_error(scenarios.signal_and_noise_of(name)[number], mean[number]) for name in ALL_THREE]
            # Of single numbers, the majority may lie anywhere; the average is still among theirs.
            bound = 1.0 if kind != "scalar" else 1.5
            assert relative_error(got, mean[number]) < bound * max(alone), kind


@pytest.mark.swarm
def test_the_claimed_weight_counts_as_much_as_a_usual_one(rounds):
    for _, report in rounds["centered-clip", False]:
        assert report.weight == 4 and report.own_share == pytest.approx(1 / 4)


@pytest.mark.swarm
def test_parameters_of_one_half_with_a_huge_weight_do_not_move_equal_weights(rounds):
    for tensors, report in rounds["centered-clip", True]:
        assert report.senders == 4 and report.weight == 4
        for got, weights in zip(tensors, scenarios.weights_of("first"), strict=True):
            assert relative_error(got, weights) < 1e-6


@pytest.mark.swarm
def test_the_mean_is_carried_away_by_both(rounds):
    """So these attacks work."""
    mean = honest_mean(scenarios.signal_and_noise_of)
    for tensors, _ in rounds["mean", False]:
        assert relative_error(tensors[0], mean[0]) > 100
    for tensors, _ in rounds["mean", True]:
        assert float((tensors[0] - 0.5).abs().max()) < 0.03  # the way back is in 8 bit, too


@pytest.mark.swarm
def test_who_sends_nothing_and_says_at_once_that_all_is_well_is_left_out_of_the_repetition(tmp_path):
    """Its word made the average count before anybody had it, unless it was the referee itself; nobody repeated it."""
    (met,) = meet(tmp_path, [scenarios.average_beside_a_hasty_peer], ALL_THREE)
    hasty = met.pop("third")
    for report in met.values():
        assert report.senders == 2 and report.repeated and not report.torn
        assert report.lost == (hasty,)
