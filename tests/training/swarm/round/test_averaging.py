"""Peers, each a process of its own with its own node, end with the weighted mean of what they began with."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hivemind.averaging.load_balancing import load_balance_peers

from calculator.swarm.exchange import part_bytes
from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.scenarios import ALL_THREE, BOTH, SAMPLES, SIZES
from tests.training.swarm.real_peers.started_peers import meet, relative_error
from training.errors import TrainingError
from training.swarm.engine.codecs import exchange_codec
from training.swarm.epoch.selftest import check_exchange
from training.swarm.epoch.strategies.delayed import Delayed

AVERAGES = {
    "gradients": partial(scenarios.average_gradients, prefix="gradients"),
    "heavy tails": partial(
        scenarios.average_gradients, prefix="tails", make=scenarios.heavy_gradients_of, codec="blockwise8"
    ),
    "powersgd": partial(
        scenarios.average_gradients, prefix="powersgd", make=scenarios.thin_gradients_of, powersgd_rank=4
    ),
    "equal weights": partial(scenarios.average_parameters, codec="blockwise8"),
    "broken codec": partial(
        scenarios.average_gradients, prefix="broken", fault=dict.fromkeys(BOTH, scenarios.break_codec)
    ),
}
"""Scenarios of two peers, one after the other."""
PATIENT = {"chunk_seconds": scenarios.LONG_SECONDS, "part_bytes": 4096}
"""Whoever waits for the next part waits long, and each peer has several parts to average."""


def death(*, after_a_part: bool, **settings):
    """The third peer dies in the average."""
    fault = {"third": partial(scenarios.die_in_the_average, after_a_part=after_a_part)}
    return partial(scenarios.average_gradients, prefix="death", fault=fault, **PATIENT, **settings)


AVERAGES_OF_THREE = {
    "not finite": partial(
        scenarios.average_gradients,
        prefix="finite",
        make=scenarios.faulty_gradients_of,
        fault={"third": scenarios.trust_own_gradients},
        declare_bandwidth=True,
    ),
    "a stream breaks": partial(
        scenarios.average_gradients,
        prefix="break",
        fault={"third": partial(scenarios.break_off_once, "break")},
        **PATIENT,
    ),
    "death": death(after_a_part=True),
}
"""The third peer is a rogue first, breaks a connection next, and dies then."""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """What two peers have after rounds of several kinds."""
    met = meet(tmp_path_factory.mktemp("two"), list(AVERAGES.values()))
    return {name: list(peers.values()) for name, peers in zip(AVERAGES, met, strict=True)}


@pytest.fixture(scope="module")
def rounds_of_three(tmp_path_factory):
    """The same of three."""
    met = meet(tmp_path_factory.mktemp("three"), list(AVERAGES_OF_THREE.values()), ALL_THREE)
    return dict(zip(AVERAGES_OF_THREE, met, strict=True))


def own_gradients(make=scenarios.gradients_of, names=BOTH):
    return [make(name) for name in names]


def assert_weighted_mean(peers, own, *, eight_bit, sixteen_bit=2e-3):
    """Both have the mean of what the two began with, weighted by samples; no peer's own tensors are near it."""
    for tensors, report, _ in peers:
        for kind, ours, theirs, got in zip(SIZES, *own, tensors, strict=True):
            mean = (SAMPLES["first"] * ours + SAMPLES["second"] * theirs) / 32
            tolerance = eight_bit if kind == "eight_bit" else sixteen_bit
            assert relative_error(got, mean) < tolerance < 0.3 < relative_error(ours, mean), kind
        assert report.senders == 2
    assert [report.own_share for _, report, _ in peers] == pytest.approx([0.25, 0.75])


@pytest.mark.swarm
def test_both_peers_get_the_mean_weighted_by_samples(rounds):
    assert_weighted_mean(rounds["gradients"], own_gradients(), eight_bit=0.02)
    first, second = (report for _, report, _ in rounds["gradients"])
    # each value goes to its reducer and comes back: 1 byte in 8 bit, 2 in 16
    values = 256 * 256 + 2 * 101
    assert first.bytes_sent + second.bytes_sent == pytest.approx(2 * values, rel=0.1)
    assert first.bytes_sent == second.bytes_received


@pytest.mark.swarm
def test_gradients_with_heavy_tails_are_averaged_block_wise(rounds):
    """hivemind's uniform codec is off by a third and more here."""
    assert_weighted_mean(rounds["heavy tails"], own_gradients(scenarios.heavy_gradients_of), eight_bit=0.025)
    values = 256 * 256 + 2 * 101
    assert sum(report.bytes_sent for _, report, _ in rounds["heavy tails"]) <= 2 * 1.01 * values


@pytest.mark.swarm
def test_powersgd_averages_matrices_of_low_rank_exactly_in_few_bytes(rounds):
    """Two peers' matrices of rank 2 make a mean of rank 4, which is what the thin matrices hold."""
    assert_weighted_mean(rounds["powersgd"], own_gradients(scenarios.thin_gradients_of), eight_bit=1e-4)
    thin = 4 * 4 * (256 + 256)  # 32 bit, rank 4
    sent = sum(report.bytes_sent for _, report, _ in rounds["powersgd"])
    assert thin <= sent <= 1.05 * 2 * (thin + 2 * 101)  # an answer may leave after its peer has counted


def assert_survivors_have_averaged(met, client_mode=""):
    assert list(met) == list(BOTH)
    for name, (tensors, report, _) in met.items():
        assert report.group_size == 3 and report.senders == 2 and report.repeated == 1
        assert not report.torn and report.seconds < 15 and len(report.lost) == 1
        if name != client_mode:  # a peer that averages nothing does not see the weights
            assert report.weight == 32 and report.own_share == pytest.approx(SAMPLES[name] / 32)
        for kind, ours, theirs, got in zip(SIZES, *own_gradients(), tensors, strict=True):
            mean = (8 * ours + 24 * theirs) / 32  # nothing of the survivors is lost, and nothing of the dead is in it
            assert relative_error(got, mean) < (0.02 if kind == "eight_bit" else 2e-3), kind


@pytest.mark.swarm
def test_the_survivors_of_a_death_in_mid_average_average_again(rounds_of_three):
    """hivemind waits for a dead peer as long as for the next part, here 30 s, and leaves each with another mean."""
    assert_survivors_have_averaged(rounds_of_three["death"])


@pytest.mark.swarm
def test_a_survivor_that_accepts_no_connections_averages_again(tmp_path):
    """The third peer dies as it begins to send."""
    (met,) = meet(tmp_path, [death(after_a_part=False, client_mode="second")], ALL_THREE)
    assert_survivors_have_averaged(met, client_mode="second")


@pytest.mark.swarm
def test_nobody_is_taken_for_dead_or_waits_on_because_a_stream_broke(rounds_of_three):
    """One peer sees that the average has failed; the others, who would wait 30 s for parts, hear it and repeat it."""
    gradients = own_gradients(names=ALL_THREE)
    for tensors, report, _ in rounds_of_three["a stream breaks"].values():
        assert report.senders == 3 and report.repeated == 1 and not report.lost and not report.torn
        assert report.weight == 64 and report.seconds < 15
        for kind, a, b, c, got in zip(SIZES, *gradients, tensors, strict=True):
            mean = (8 * a + 24 * b + 32 * c) / 64
            assert relative_error(got, mean) < (0.02 if kind == "eight_bit" else 2e-3), kind


@pytest.mark.swarm
def test_what_is_not_finite_is_left_out_and_slow_links_average_less(rounds_of_three):
    """The second peer leaves its own gradients out; of the third's the reducers refuse the part with a bad number."""
    peers = rounds_of_three["not finite"]
    reports = {name: report for name, (_, report, _) in peers.items()}
    ours, theirs = own_gradients(scenarios.faulty_gradients_of, names=("first", "third"))
    part = part_bytes(sum(gradient.numel() for gradient in ours))  # that many values, in 8 bit
    for tensors, _, _ in (peers["first"], peers["second"]):
        for kind, a, b, got in zip(SIZES, ours, theirs, tensors, strict=True):
            mean = (8 * a + 32 * b) / 40
            if kind == "eight_bit":
                mean.view(-1)[:part] = a.view(-1)[:part]
            assert relative_error(got, mean) < (0.02 if kind == "eight_bit" else 2e-3), kind
    _, _, third_id = peers["third"]
    assert {sender for report in reports.values() for sender in report.refused} == {third_id}
    assert all(report.repeated == 0 and not report.torn for report in reports.values())
    assert reports["second"].own_share == 0 and reports["first"].own_share > 0

    fractions = load_balance_peers(10**6, [scenarios.MBIT_PER_SECOND[name] for name in peers])
    assert fractions[2] == 0  # the slow link has enough to do with what its peer sends and gets
    assert reports["third"].reduced_share == 0 and reports["first"].reduced_share > 0
    assert sum(report.reduced_share for report in reports.values()) == pytest.approx(1)


@pytest.mark.swarm
def test_a_codec_that_cannot_read_what_it_wrote_is_not_taken_for_averaging(rounds):
    """hivemind reports a group of two here, as with numpy 2.4; the report says that nothing was averaged."""
    (first, first_report, _), (_, second_report, _) = rounds["broken codec"]
    ours, theirs = (gradients[0] for gradients in own_gradients())
    assert relative_error(first[0], (8 * ours + 24 * theirs) / 32) > 0.1
    assert first_report.group_size == 2
    assert first_report.own_share > 0.9 or second_report.own_share > 0.9


@pytest.mark.swarm
def test_peers_with_equal_weights_keep_them_in_8_bit(rounds):
    """hivemind's reducer averages its own exact weights with the others' rounded ones, and leaves them 1.4 % apart."""
    for tensors, report in rounds["equal weights"]:
        assert report.senders == 2 and report.bytes_sent > 0
        for tensor, weights in zip(tensors, scenarios.model_of(seed=0).parameters(), strict=True):
            assert relative_error(tensor, weights) < 1e-6


@pytest.mark.swarm
@pytest.mark.parametrize(
    "settings",
    [pytest.param({}, marks=pytest.mark.smoke), {"mode": "delayed"}, {"aggregation": "centered-clip"}],
    ids=["awaited", "delayed", "clipped"],
)
def test_peers_that_train_together_average_gradients_and_parameters(tmp_path, settings):
    (met,) = meet(tmp_path, [partial(scenarios.train, **settings)])
    (first, first_epochs), (second, second_epochs) = met.values()
    averaged = [[report for report in epochs if report.senders == 2] for epochs in (first_epochs, second_epochs)]
    assert [len(reports) for reports in averaged] == [3, 3], (first_epochs, second_epochs)
    for ours, theirs in zip(*averaged, strict=True):
        apart = Delayed.epochs_apart if settings.get("mode") else 0
        assert abs(ours.epoch - theirs.epoch) <= apart
        assert ours.own_share + theirs.own_share == pytest.approx(1)
    # The slower one is not waited for. In the first epoch, each may count to the end before it knows of the other.
    assert sum(report.samples for report in averaged[0]) > sum(report.samples for report in averaged[1])
    for kind, a, b in zip(SIZES, first, second, strict=True):
        assert relative_error(a, b) < 1e-3, kind


@pytest.mark.swarm
def test_a_group_does_not_wait_for_a_peer_that_was_killed_since_its_last_report(tmp_path):
    """It still counts as lively then. Without a sign of life they would wait for four windows of 6 s in all."""
    window = 6.0
    scenario = partial(scenarios.lose_one, matchmaking_seconds=window)
    (peers,) = meet(tmp_path, [scenario], ALL_THREE)
    assert peers.keys() == set(BOTH)
    for reports in peers.values():
        first = next(report for report in reports if report.senders == 2)
        assert max(report.senders for report in reports) == 3
        assert first.group_size == 2 and first.fault is None and first.waiting_seconds < window


@pytest.mark.swarm
def test_a_newcomer_whose_download_outlasts_epochs_takes_part_and_gets_the_weights_of_all(tmp_path):
    """And it accepts no connections, with which hivemind's optimizer would end at its first epoch."""
    window = 1.05  # unlike the demo's, so that a request may take another time than there, and than hivemind's 3 s
    late = partial(scenarios.come_late, matchmaking_seconds=window)
    (met,) = meet(tmp_path, [late], behind_nat="second")
    (first, _, first_facts), (second, second_reports, second_facts) = met.values()
    assert len(second_facts["downloads"]) == 1 and not first_facts["downloads"]
    assert second_facts["downloads begun"] == 1
    for facts in (first_facts, second_facts):  # hivemind's gradient averager gets none of the optimizer's options
        assert facts["request timeouts"] == [window * 2 / 3] * 2
    (joined, *_) = [report for report in second_reports if report.senders == 2]
    assert joined.epoch > second_facts["downloads"][0] + 1  # others went on in the meantime
    came = max(second_facts["wanted weights"])  # in this epoch, with the round of parameters at its beginning
    assert not first_facts["wanted weights"] and joined.epoch <= came <= joined.epoch + 1
    for kind, a, b in zip(SIZES, first[came], second[came], strict=True):
        assert relative_error(a, b) < 1e-3, kind


@pytest.mark.swarm
def test_a_peer_goes_on_alone_when_those_who_overtook_it_are_gone(tmp_path):
    ((reports,),) = (met.values() for met in meet(tmp_path, [scenarios.go_on_alone], ("first",)))
    assert [report.senders for report in reports] == [1, 1]


@pytest.mark.swarm
def test_a_peer_that_is_alone_for_too_long_waits_and_offers_its_gradients_to_the_first_who_comes(tmp_path):
    (met,) = meet(tmp_path, [scenarios.wait_alone])
    (first, first_report), (second, second_report) = met["first"], met["second"]
    assert first["epoch"] == first["later"] == second["epoch"] == 2  # two updates alone, none while it waited
    assert first["kept"] >= 40
    assert first_report.samples >= first["kept"]
    assert first_report.epoch == second_report.epoch == 3
    assert first_report.update_samples == first_report.samples + second_report.samples


@pytest.mark.swarm
def test_nobody_waits_for_a_peer_that_pauses_and_what_it_has_computed_counts(tmp_path):
    (met,) = meet(tmp_path, [scenarios.pause_a_while])
    (_, first, first_again), (_, second, second_again) = met["first"], met["second"]
    held, (brought,) = second["pause"]
    assert brought.samples == held >= 8 and brought.senders == 2
    assert len(first["alone"]) >= 2 and all(report.fault is None for report in first["alone"])
    before, after = second["epochs"]
    assert after >= before + 2  # it has the others' weights before it computes anything
    assert first_again and second_again
    assert first_again[-1].epoch == second_again[-1].epoch > after


def test_the_self_test_passes_with_the_codecs_of_the_run():
    check_exchange(exchange_codec(65_536, "uniform8"), 65_536)


def test_the_self_test_refuses_a_codec_that_cannot_read_what_it_wrote(monkeypatch):
    from hivemind.compression.quantization import Quantization

    monkeypatch.setattr(Quantization, "extract", Quantization.extract)  # put back afterwards
    scenarios.break_codec()
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
