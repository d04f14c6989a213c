"""Sparse local updates: two real peers learn together, send little, and have the same common weights."""

from functools import partial

import pytest
import torch

from calculator.swarm.exchange import sparse_bytes
from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.scenarios import ALL_THREE, BOTH, SAMPLES, SIZES
from tests.training.swarm.real_peers.started_peers import meet, relative_error
from training.errors import BadInput
from training.recipe import parse_recipe, read_recipe
from training.swarm.epoch.sparse import WEIGHT, SparseMean
from training.swarm.epoch.sparse_code import BlockCode, SparseCode
from training.swarm.epoch.strategies import SparseUpdates


@pytest.fixture(scope="module", params=["adamw", "muon"])
def peers(tmp_path_factory, request):
    """For each peer its exchanges with the other one, and its losses before and after."""
    (met,) = meet(tmp_path_factory.mktemp("peers"), [partial(scenarios.train_sparsely, optimizer=request.param)])
    found = list(met.values())
    assert [len(exchanges) for exchanges, _ in found] == [10, 10], met
    return found


@pytest.mark.swarm
def test_common_weights_of_both_peers_are_the_same_to_the_last_bit(peers):
    (first, _), (second, _) = peers
    for ours, theirs in zip(first, second, strict=True):
        assert ours["report"].epoch == theirs["report"].epoch
        for kind in ("before", "after"):
            assert all(torch.equal(*both) for both in zip(ours[kind], theirs[kind], strict=True))
        assert relative_error(ours["offered"][0], theirs["offered"][0]) > 0.1  # they go different ways


@pytest.mark.swarm
def test_common_weights_move_by_the_mean_of_what_is_sent_of_all_that_was_offered(peers):
    """Recomputed from what each peer has offered so far, weighted by its samples."""
    unsent = [[0.0, 0.0] for _ in peers]
    for both in zip(*(exchanges for exchanges, _ in peers), strict=True):
        shapes, weights, sent = [one.shape for one in both[0]["offered"]], [], []
        for exchange, left in zip(both, unsent, strict=True):
            # In single precision like the peers: rounded otherwise, another value could be among the largest.
            offered = [one + more for one, more in zip(exchange["offered"], left, strict=True)]
            coder = SparseMean(shapes, kept=128)
            code = coder.pack(offered, 1.0)[WEIGHT.size :]
            values = [torch.zeros(shape) for shape in shapes]
            for piece, places, found in coder.code.decode(code):
                piece.of(values)[places] = found
            left[:] = [one - value for one, value in zip(offered, values, strict=True)]
            weights.append(exchange["report"].samples)
            sent.append([value.double() for value in values])
            for own, after, more in zip(exchange["own"], exchange["after"], left, strict=True):
                # From here this peer goes on: ahead of the common weights.
                assert relative_error(own, after - SparseUpdates.own_share * more) < 1e-4
        assert weights[0] > weights[1] > 0  # the slower one is not waited for
        for kind in range(len(shapes)):
            mean = sum(weight * one[kind] for weight, one in zip(weights, sent, strict=True)) / sum(weights)
            step = both[0]["before"][kind].double() - both[0]["after"][kind].double()
            assert relative_error(step, mean) < 1e-3


@pytest.mark.swarm
def test_peers_learn(peers):
    for _, (before, after) in peers:
        assert after < 0.8 * before


@pytest.mark.swarm
def test_an_exchange_takes_one_message_up_from_each_peer(peers):
    message = sparse_bytes(64 * 64, 128) + BlockCode(64, 2).bytes + WEIGHT.size  # matrix and bias
    for exchanges, _ in peers:
        for exchange in exchanges:
            sent = exchange["report"].bytes_sent
            assert sent == message or sent > 2 * 64 * 64  # with a round of parameters


@pytest.mark.swarm
def test_survivors_of_a_death_in_an_exchange_have_the_same_mean_of_their_messages(tmp_path):
    """One of them accepts no connections."""
    fault = {"third": partial(scenarios.die_in_the_average, after_a_part=False)}
    settings = {"chunk_seconds": scenarios.LONG_SECONDS, "sparse_kept": 64, "client_mode": "second"}
    scenario = partial(scenarios.average_gradients, prefix="death", fault=fault, **settings)
    (met,) = meet(tmp_path, [scenario], ALL_THREE)
    assert list(met) == list(BOTH)
    shapes, expected = [torch.Size(shape) for shape in SIZES.values()], []
    for name in BOTH:
        code, gradients = SparseCode(shapes, 64), scenarios.gradients_of(name)
        expected.append([torch.zeros(shape) for shape in shapes])
        for piece, places, values in code.decode(code.encode(lambda piece, own=gradients: piece.of(own))):
            piece.of(expected[-1])[places] = values
    (first, _, _), (second, _, _) = met.values()
    for kind in range(len(SIZES)):
        assert torch.equal(first[kind], second[kind])
        assert relative_error(first[kind], (8 * expected[0][kind] + 24 * expected[1][kind]) / 32) < 0.01
    for name, (_, report, _) in met.items():
        assert (report.group_size, report.senders, report.weight, report.repeated) == (3, 2, 32, 1)
        assert report.own_share == SAMPLES[name] / 32 and not report.torn


@pytest.mark.swarm
def test_a_newcomer_that_accepts_no_connections_takes_part_and_gets_the_weights_of_all(tmp_path):
    late = partial(scenarios.come_late, matchmaking_seconds=1.5, mode="sparse", inner_batch_size=8)
    (met,) = meet(tmp_path, [late], behind_nat="second")
    (first, _, _), (second, reports, facts) = met.values()
    assert len(facts["downloads"]) == 1
    assert [report.senders for report in reports].count(2) >= 3
    came = max(facts["wanted weights"]) + 1  # a peer awaits the round of parameters, and then its next epoch begins
    for a, b in zip(first[came], second[came], strict=True):
        assert relative_error(a, b) < 1e-3


@pytest.mark.parametrize(
    "wrong",
    [
        "inner_batch_size = 100000",
        "powersgd_rank = 4",
        'aggregation = "centered-clip"',
        "sparse_kept = 4096",
        "average_state_every = 5",
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    def recipe(*settings):
        names = [one.split(" ")[0] for one in settings]
        lines = [line for line in read_recipe("demo").splitlines() if line.split(" ")[0] not in names]
        return parse_recipe("\n".join(lines).replace("[swarm]", "\n".join(["[swarm]", *settings])))

    sound = ('mode = "sparse"', "average_state_every = 100")
    assert recipe(*sound).swarm.local_updates
    with pytest.raises(BadInput, match="sparse"):
        recipe(*(one for one in sound if one.split(" ")[0] != wrong.split(" ")[0]), wrong)
