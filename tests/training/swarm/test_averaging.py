"""Two peers, each a process of its own with its own node, end with the weighted mean of what they began with."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hivemind.averaging.load_balancing import load_balance_peers

from calculator.exchange import part_bytes
from training.errors import TrainingError
from training.swarm.codecs import exchange_codec
from training.swarm.selftest import check_exchange

sys.path.insert(0, str(Path(__file__).parent))
import pair


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """What two peers have after rounds of several kinds, one after the other."""
    modes = ["gradients", "heavy tails", "powersgd", "equal weights", "broken codec"]
    met = pair.meet_often(tmp_path_factory.mktemp("pair"), modes)
    return {mode: list(peers.values()) for mode, peers in met.items()}


@pytest.fixture(scope="module")
def rounds_of_three(tmp_path_factory):
    """The same of three, the third of which is a rogue first, loses a connection next, and dies then."""
    modes = ["not finite", pair.BREAK, "death after a part"]
    return pair.meet_often(tmp_path_factory.mktemp("three"), modes, pair.ALL_THREE)


def own_gradients(make=pair.gradients_of):
    model = pair.model_of(torch, seed=0)
    return [make(torch, model, name) for name in pair.SAMPLES]


@pytest.mark.swarm
def test_both_peers_get_the_mean_weighted_by_samples(rounds):
    (first, first_facts), (second, second_facts) = rounds["gradients"]
    for kind, ours, theirs, a, b in zip(pair.SIZES, *own_gradients(), first, second, strict=True):
        mean = (8 * ours + 24 * theirs) / 32
        tolerance = 0.02 if kind == "eight_bit" else 2e-3
        assert pair.relative_error(a, mean) < tolerance and pair.relative_error(b, mean) < tolerance, kind
        assert pair.relative_error(ours, mean) > 0.3  # what a peer would hold that has averaged nothing
    assert first_facts["senders"] == second_facts["senders"] == 2
    assert first_facts["own_share"] == pytest.approx(0.25) and second_facts["own_share"] == pytest.approx(0.75)
    # each value goes to its reducer and comes back: 1 byte in 8 bit, 2 in 16
    values = 256 * 256 + 2 * 101
    assert first_facts["bytes_sent"] + second_facts["bytes_sent"] == pytest.approx(2 * values, rel=0.1)
    assert first_facts["bytes_sent"] == second_facts["bytes_received"]


@pytest.mark.swarm
def test_gradients_with_heavy_tails_are_averaged_block_wise(rounds):
    """hivemind's uniform codec is off by a third and more here."""
    (first, first_facts), (second, second_facts) = rounds["heavy tails"]
    for kind, ours, theirs, a, b in zip(
        pair.SIZES, *own_gradients(pair.heavy_gradients_of), first, second, strict=True
    ):
        mean = (8 * ours + 24 * theirs) / 32
        tolerance = 0.025 if kind == "eight_bit" else 2e-3
        assert pair.relative_error(a, mean) < tolerance and pair.relative_error(b, mean) < tolerance, kind
        assert pair.relative_error(ours, mean) > 0.3
    values = 256 * 256 + 2 * 101
    assert first_facts["senders"] == second_facts["senders"] == 2
    assert first_facts["bytes_sent"] + second_facts["bytes_sent"] <= 2 * 1.01 * values


@pytest.mark.swarm
def test_powersgd_averages_matrices_of_low_rank_exactly_in_few_bytes(rounds):
    """Two peers' matrices of rank 2 make a mean of rank 4, which is what the thin matrices hold."""
    (first, first_facts), (second, second_facts) = rounds["powersgd"]
    for kind, ours, theirs, a, b in zip(pair.SIZES, *own_gradients(pair.thin_gradients_of), first, second, strict=True):
        mean = (8 * ours + 24 * theirs) / 32
        tolerance = 1e-4 if kind == "eight_bit" else 2e-3
        assert pair.relative_error(a, mean) < tolerance and pair.relative_error(b, mean) < tolerance, kind
        assert pair.relative_error(ours, mean) > 0.3
    assert first_facts["senders"] == second_facts["senders"] == 2
    assert first_facts["own_share"] == pytest.approx(0.25) and second_facts["own_share"] == pytest.approx(0.75)
    thin = 4 * 4 * (256 + 256)  # 32 bit, rank 4
    sent = first_facts["bytes_sent"] + second_facts["bytes_sent"]
    assert thin <= sent <= 1.05 * 2 * (thin + 2 * 101)  # an answer may leave after its peer has counted


@pytest.mark.swarm
@pytest.mark.parametrize("mode", pair.DEATHS)
def test_the_survivors_of_a_death_in_mid_average_average_again(mode, rounds_of_three, tmp_path):
    """hivemind waits for a dead peer as long as for the next part, here 30 s, and leaves each with another mean."""
    met = rounds_of_three.get(mode) or pair.meet_often(tmp_path, [mode], pair.ALL_THREE)[mode]
    assert list(met) == list(pair.SAMPLES)
    for (name, (tensors, facts)), samples in zip(met.items(), pair.SAMPLES.values(), strict=True):
        assert facts["group_size"] == 3 and facts["senders"] == 2 and facts["repeated"] == 1
        assert not facts["torn"] and facts["seconds"] < 15 and len(facts["lost"]) == 1
        if (name, mode) != pair.IN_CLIENT_MODE:  # who averages nothing does not see the weights
            assert facts["weight"] == 32 and facts["own_share"] == pytest.approx(samples / 32)
        for kind, ours, theirs, got in zip(pair.SIZES, *own_gradients(), tensors, strict=True):
            mean = (8 * ours + 24 * theirs) / 32  # nothing of the survivors is lost, and nothing of the dead is in it
            assert pair.relative_error(got, mean) < (0.02 if kind == "eight_bit" else 2e-3), kind


@pytest.mark.swarm
def test_nobody_is_taken_for_dead_or_waits_on_because_a_stream_broke(rounds_of_three):
    """One peer sees that the average has failed; the others, who would wait 30 s for parts, hear it and repeat it."""
    gradients = [pair.gradients_of(torch, pair.model_of(torch, seed=0), name) for name in pair.ALL_THREE]
    for tensors, facts in rounds_of_three[pair.BREAK].values():
        assert facts["senders"] == 3 and facts["repeated"] == 1 and not facts["lost"] and not facts["torn"]
        assert facts["weight"] == 64 and facts["seconds"] < 15
        for kind, a, b, c, got in zip(pair.SIZES, *gradients, tensors, strict=True):
            mean = (8 * a + 24 * b + 32 * c) / 64
            assert pair.relative_error(got, mean) < (0.02 if kind == "eight_bit" else 2e-3), kind


@pytest.mark.swarm
def test_what_is_not_finite_is_left_out_and_slow_links_average_less(rounds_of_three):
    """The second peer leaves its own gradients out; of the third's the reducers refuse the part with a bad number."""
    peers = rounds_of_three["not finite"]
    facts = {name: told for name, (_, told) in peers.items()}
    model = pair.model_of(torch, seed=0)
    ours, theirs = (pair.faulty_gradients_of(torch, model, name) for name in ("first", "third"))
    part = part_bytes(sum(gradient.numel() for gradient in ours))  # that many values, in 8 bit
    for tensors, _ in (peers["first"], peers["second"]):
        for kind, a, b, got in zip(pair.SIZES, ours, theirs, tensors, strict=True):
            mean = (8 * a + 32 * b) / 40
            if kind == "eight_bit":
                mean.view(-1)[:part] = a.view(-1)[:part]
            assert pair.relative_error(got, mean) < (0.02 if kind == "eight_bit" else 2e-3), kind
    assert {sender for told in facts.values() for sender in told["refused"]} == {facts["third"]["peer_id"]}
    assert all(told["repeated"] == 0 and not told["torn"] for told in facts.values())
    assert facts["second"]["own_share"] == 0 and facts["first"]["own_share"] > 0

    fractions = load_balance_peers(10**6, [pair.MBIT_PER_SECOND[name] for name in peers])
    assert fractions[2] == 0  # the slow link has enough to do with what its peer sends and gets
    assert facts["third"]["reduced_share"] == 0 and facts["first"]["reduced_share"] > 0
    assert sum(told["reduced_share"] for told in facts.values()) == pytest.approx(1)


@pytest.mark.swarm
def test_a_codec_that_cannot_read_what_it_wrote_is_not_taken_for_averaging(rounds):
    """hivemind reports a group of two here, as with numpy 2.4; the report says that nothing was averaged."""
    (first, first_facts), (_, second_facts) = rounds["broken codec"]
    eight_bit = own_gradients()[0][0]
    assert pair.relative_error(first[0], (8 * eight_bit + 24 * own_gradients()[1][0]) / 32) > 0.1
    assert first_facts["group_size"] == 2
    assert first_facts["own_share"] > 0.9 or second_facts["own_share"] > 0.9


@pytest.mark.swarm
def test_peers_with_equal_weights_keep_them_in_8_bit(rounds):
    """hivemind's reducer averages its own exact weights with the others' rounded ones, and leaves them 1.4 % apart."""
    for tensors, facts in rounds["equal weights"]:
        assert facts["senders"] == 2 and facts["bytes_sent"] > 0
        for tensor, weights in zip(tensors, pair.model_of(torch, seed=0).parameters(), strict=True):
            assert pair.relative_error(tensor, weights) < 1e-6


@pytest.mark.swarm
@pytest.mark.parametrize("mode", ["train", "train delayed"])
def test_peers_that_train_together_average_gradients_and_parameters(tmp_path, mode):
    (first, first_epochs), (second, second_epochs) = pair.meet(tmp_path, mode)
    averaged = [[report for report in epochs if report["senders"] == 2] for epochs in (first_epochs, second_epochs)]
    assert [len(reports) for reports in averaged] == [3, 3], (first_epochs, second_epochs)
    assert [report["epoch"] for report in averaged[0]] == [report["epoch"] for report in averaged[1]]
    for ours, theirs in zip(*averaged, strict=True):
        assert ours["samples"] > theirs["samples"]  # the slower one is not waited for
        assert ours["own_share"] + theirs["own_share"] == pytest.approx(1)
    for kind, a, b in zip(pair.SIZES, first, second, strict=True):
        assert pair.relative_error(a, b) < 1e-3, kind


@pytest.mark.swarm
def test_a_newcomer_whose_download_outlasts_epochs_takes_part_and_gets_the_weights_of_all(tmp_path):
    """And it accepts no connections, with which hivemind's optimizer would end at its first epoch."""
    (first, first_facts), (second, second_facts) = pair.meet(tmp_path, "late")
    assert len(second_facts["downloads"]) == 1 and not first_facts["downloads"]
    assert not second_facts["second downloads"]
    for facts in (first_facts, second_facts):  # hivemind's gradient averager gets none of the optimizer's options
        assert facts["request timeouts"] == [pair.LATE_REQUEST_SECONDS] * 2
    (joined, *_) = [report for report in second_facts["reports"] if report["senders"] == 2]
    assert joined["epoch"] > second_facts["downloads"][0] + 1  # others went on in the meantime
    came = second_facts["wanted weights"][-1]  # in this epoch, with the round of parameters at its beginning
    assert not first_facts["wanted weights"] and joined["epoch"] <= came <= joined["epoch"] + 1
    for kind, a, b in zip(pair.SIZES, first[came], second[came], strict=True):
        assert pair.relative_error(a, b) < 1e-3, kind


@pytest.mark.swarm
def test_a_peer_goes_on_alone_when_those_who_overtook_it_are_gone(tmp_path):
    (tmp_path / "second.json").touch()
    ((_, epochs),) = pair.meet(tmp_path, "overtaken", names=("first",))
    assert [report["senders"] for report in epochs] == [1, 1]


def test_the_self_test_passes_with_the_codecs_of_the_run():
    check_exchange(exchange_codec(65_536, "uniform8"), 65_536)


def test_the_self_test_refuses_a_codec_that_cannot_read_what_it_wrote(monkeypatch):
    from hivemind.compression.quantization import Quantization

    monkeypatch.setattr(Quantization, "extract", Quantization.extract)  # put back afterwards
    pair.break_codec()
    with pytest.raises(TrainingError, match="numpy below"):
        check_exchange(exchange_codec(65_536, "uniform8"), 65_536)


def test_the_self_test_refuses_a_codec_that_returns_something_else(monkeypatch):
    from hivemind.compression import Float16Compression

    extract = Float16Compression.extract
    monkeypatch.setattr(Float16Compression, "extract", lambda self, tensor: 1.1 * extract(self, tensor))
    with pytest.raises(TrainingError, match="off by"):
        check_exchange(exchange_codec(65_536, "uniform8"), 65_536)


def test_the_self_test_passes_where_an_event_loop_runs_as_in_a_notebook():
    async def notebook():
        check_exchange(exchange_codec(65_536, "uniform8"), 65_536)

    with ThreadPoolExecutor(1) as thread:  # the browser tests leave a loop running in the main thread
        thread.submit(asyncio.run, notebook()).result()
