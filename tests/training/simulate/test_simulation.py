"""The simulator beside measured swarms, beside the closed form, and at its edges."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from typer.testing import CliRunner

from benchmarks.swarm import simulation
from calculator.swarm.exchange import Link
from calculator.swarm.forecast import COSTS, ExchangedVectors, Volunteers, forecast
from calculator.swarm.settings import MODES
from training.cli import build_app
from training.simulate.forecast import simulate
from training.simulate.population import Person, Spread, draw
from training.simulate.swarm import Rules

ROOT = Path(__file__).resolve().parents[3]
MOST_ERROR = 0.15
HOME = Link(up_bytes_per_second=12.5e6, down_bytes_per_second=12.5e6, latency_seconds=0.02)
RUN = ExchangedVectors(parameters=20_000_000, target_batch_size=4096)


def test_measured_swarms_are_predicted_within_the_bound():
    cases = list(simulation.measured_cases())
    assert len(cases) >= 13 and sum(case.fitted for case in cases) == 2
    assert {case.stack for case in cases if len(set(case.speeds)) > 1} >= {"awaited", "delayed"}
    assert {case.stack for case in cases if case.computing_seconds >= 60} >= {"delayed", "local"}
    for case in cases:
        simulated = case.simulated()
        assert abs(simulated / case.measured - 1) <= MOST_ERROR, f"{case}: {simulated}"
        assert forecast(case.kinds(), case.rules().exchange).epoch_seconds == pytest.approx(
            case.measured, rel=MOST_ERROR
        )


def test_constants_are_those_that_were_fitted_and_the_record_keeps_its_bound():
    recorded = json.loads((ROOT / "benchmarks" / "results" / "simulation.json").read_text())
    for name in ("step_seconds_per_parameter", "link_share"):
        assert getattr(COSTS, name) == pytest.approx(recorded["fitted"][name], rel=0.01)
    held_out = [abs(row["error"]) for row in recorded["cases"] if not row["fitted"]]
    assert len(held_out) >= 11 and max(held_out) <= MOST_ERROR
    assert {row["volunteers"] for row in recorded["sweep"]} >= {10, 10_000}


def people(count=8, **others) -> list[Volunteers]:
    return [Volunteers(count=count, samples_per_second=8.0, micro_batch_size=4, link=HOME, **others)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("count, batch", [(2, 512), (8, 4096), (100, 20_000)])
def test_where_both_hold_the_closed_form_says_the_same(mode, every, count, batch):
    exchange = replace(RUN, mode=mode, average_state_every=every, target_batch_size=batch)
    outcome = simulate(people(count), Rules(exchange=exchange), epochs=20, spread=Spread.none())
    made = forecast(people(count), exchange)
    assert outcome.epoch_seconds == pytest.approx(made.epoch_seconds, rel=0.03)
    assert outcome.shares["computing"] == pytest.approx(made.shares.computing, abs=0.02)
    assert outcome.sent_bytes == pytest.approx(made.sent_bytes, rel=0.1)


def test_people_who_come_and_go_cost_what_the_closed_form_says():
    kinds = people(200, present=0.5, session_seconds=4 * 3600)
    exchange = replace(RUN, target_batch_size=60_000)
    outcome = simulate(kinds, Rules(exchange=exchange), epochs=60, spread=Spread.none(), seed=1)
    made = forecast(kinds, exchange)
    assert outcome.peers == pytest.approx(made.peers, rel=0.15)
    assert outcome.throughput_over_ideal == pytest.approx(made.shares.computing, rel=0.05)
    assert outcome.shares["joining"] == pytest.approx(made.shares.joining, rel=0.5)
    assert outcome.newcomer_seconds == pytest.approx(made.newcomer_seconds, rel=0.2)


def uneven(*speeds: float, **others) -> list[Volunteers]:
    return [Volunteers(count=1, samples_per_second=speed, micro_batch_size=4, link=HOME, **others) for speed in speeds]


COMING = dict(present=0.5, session_seconds=3600)
GOING = people(30, present=0.5, session_seconds=600)
UNASKED = [replace(kind, link=replace(kind.link, client_mode=True)) for kind in GOING]
"""The others wait for the whole time-out when one of these vanishes."""
SLOW_UP = replace(HOME, up_bytes_per_second=5e6)
CAUSES = {
    "last_micro_batch": (uneven(1, 2, 4), replace(RUN, target_batch_size=336), 0.4),
    "leaving": (
        [*GOING, *UNASKED],
        replace(RUN, target_batch_size=20_000, next_chunk_timeout_seconds=60.0),
        0.2,
    ),
    "joining": (
        [replace(kind, link=SLOW_UP) for kind in people(100, **COMING)], replace(RUN, target_batch_size=40_000), 0.2,
    ),
    "averaging": (people(8), replace(RUN, parameters=200_000_000, target_batch_size=20_000, mode="diloco"), 0.01),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_costs_in_the_closed_form_what_it_costs_event_by_event(cause):
    kinds, exchange, most = CAUSES[cause]
    outcomes = [simulate(kinds, Rules(exchange=exchange), epochs=40, spread=Spread.none(), seed=n) for n in range(12)]
    made, share = forecast(kinds, exchange), mean(outcome.shares[cause] for outcome in outcomes)
    assert getattr(made.shares, cause) == pytest.approx(share, rel=most)
    throughput = mean(outcome.throughput_over_ideal for outcome in outcomes)
    assert made.shares.computing == pytest.approx(throughput, rel=0.03)


@pytest.mark.parametrize("count, delayed, batch", [(300, False, 500), (400, False, 500), (512, False, 500),
                                                   (400, True, 200), (400, True, 800)])  # fmt: skip
def test_who_does_not_fill_a_group_is_lost_in_the_closed_form_too(count, delayed, batch):
    """Where gradients are awaited, or epochs are shorter than the patience; 512 fill two groups."""
    exchange = replace(RUN, target_batch_size=batch * count, mode="delayed" if delayed else "synchronous")
    outcome = simulate(people(count), Rules(exchange=exchange, progress_limited=False), epochs=8, spread=Spread.none())
    made = forecast(people(count), exchange)
    assert made.shares.computing == pytest.approx(outcome.throughput_over_ideal, rel=0.04)
    assert made.epoch_seconds == pytest.approx(outcome.epoch_seconds, rel=0.04)
    left_behind = count % 256 and (not delayed or batch == 200)
    assert (outcome.left_behind > 0) == bool(left_behind)
    sentence = next(limit.sentence for limit in made.limits if limit.name == "group size")
    assert (f"{count % 256 / count:.0%} of the work is lost" in sentence) == bool(left_behind)


@pytest.mark.parametrize("seed", range(4))
def test_every_second_has_one_cause(seed):
    kinds = people(40, present=0.6, session_seconds=1800) + people(10, session_seconds=3600)
    outcome = simulate(kinds, Rules(exchange=RUN), epochs=15, seed=seed)
    assert sum(outcome.shares.values()) == pytest.approx(1)
    assert all(share >= 0 for share in outcome.shares.values())
    assert 0 < outcome.samples_per_second < outcome.ideal_samples_per_second * 1.1
    assert outcome == replace(
        simulate(kinds, Rules(exchange=RUN), epochs=15, seed=seed), wall_seconds=outcome.wall_seconds
    )


def test_a_slow_link_times_out_and_time_outs_that_suit_it_share():
    slow = Link(up_bytes_per_second=5e5, down_bytes_per_second=5e5)
    kinds = [*people(7), Volunteers(count=1, samples_per_second=8.0, micro_batch_size=4, link=slow)]
    hasty = simulate(kinds, Rules(exchange=RUN), epochs=5, spread=Spread.none())
    assert hasty.alone == 1 and hasty.samples_per_second == 0 and hasty.days(100) is None
    assert any("trained alone" in limit for limit in hasty.limits)
    suited = Rules(exchange=replace(RUN, allreduce_timeout_seconds=200), averaging_timeout_seconds=300)
    assert simulate(kinds, suited, epochs=5, spread=Spread.none()).alone == 0


def test_averages_of_the_parameters_alone_that_time_out_are_told_and_end_then():
    """In 16 bits the parameters take twice the time of the gradients, which are sent in 8."""
    exchange = replace(RUN, mode="diloco", state_bits=16, average_state_every=5)
    gradients = forecast(people(), exchange).all_reduce_seconds
    enough, hasty = (replace(exchange, allreduce_timeout_seconds=factor * gradients) for factor in (2.1, 1.2))
    whole, aborted = (simulate(people(), Rules(exchange=one), spread=Spread.none()) for one in (enough, hasty))
    assert whole.alone == aborted.alone == 0
    assert not any("drift" in limit for limit in whole.limits)
    assert any(limit.startswith("100.0% of all averages of the parameters timed out") for limit in aborted.limits)
    # Local updates wait for that average: at every fifth epoch, for the time-out instead of the whole average.
    saved = (forecast(people(), exchange).longest_seconds - 1.2 * gradients) / 5
    assert whole.epoch_seconds - aborted.epoch_seconds == pytest.approx(saved, rel=0.01)


def test_more_peers_than_the_progress_record_holds_stand_still():
    exchange = replace(RUN, target_batch_size=10**7)
    assert not simulate(people(4700), Rules(exchange=exchange), epochs=1, spread=Spread.none()).stalled
    stuck = simulate(people(4800), Rules(exchange=exchange), epochs=2, spread=Spread.none())
    assert stuck.stalled and "run stalled" in stuck.limits[0]
    beyond = Rules(exchange=exchange, progress_limited=False)
    assert not simulate(people(4800), beyond, epochs=1, spread=Spread.none()).stalled


def test_sessions_have_the_mean_that_is_told_and_links_the_median():
    chance = random.Random(0)
    person = Person(samples_per_second=1, micro_batch_size=1, link=HOME, present=0.25, session_seconds=3600)
    sessions = [person.session(chance) for _ in range(20_000)]
    absences = [person.absence(chance) for _ in range(20_000)]
    assert sum(sessions) / 20_000 == pytest.approx(3600, rel=0.05)
    assert sum(absences) / 20_000 == pytest.approx(3 * 3600, rel=0.05)
    drawn = draw(people(5000), Spread(), chance)
    assert sum(p.samples_per_second for p in drawn) == pytest.approx(5000 * 8, rel=0.02)
    assert len({p.link.up_bytes_per_second for p in drawn}) == 5000


def test_the_command_simulates_a_recipe():
    words = ["simulate", "--recipe", "demo", "--volunteers", "3:8:100/100", "--epochs", "5", "--micro-batch-size", "8"]
    app, runner = build_app(), CliRunner()
    printed = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert printed["epochs"] == 5 and printed["volunteers"] == 3 and 0 < printed["days"] < 1
    report = runner.invoke(app, words).stdout
    assert "3 volunteers" in report and "computing samples that count" in report
    hours, minutes = re.search(r"^[\d,]+ epochs +(\d+) h (\d+) min$", report, re.MULTILINE).groups()
    assert 60 * int(hours) + int(minutes) == pytest.approx(24 * 60 * printed["days"], abs=0.51)
    assert "3 × 8 samples/s: 100 Mbit/s up" in report and "assumed" not in report
    alike = runner.invoke(app, [*words, "--alike"]).stdout
    assert re.search(r"^Samples per second +[\d.]+ of 24$", alike, re.MULTILINE)  # 3 of 8, as given
    assert "Samples at once: 8 " in report
    assert "vary around these" in report and "vary around these" not in alike
    assert "(assumed;" in runner.invoke(app, ["simulate", "--volunteers", "2", "--epochs", "1"]).stdout
    for volunteers, sentence in {
        "3:none-such:1/1": "gpu is one of",
        "3": "",
        "0": "A run without volunteers trains nothing",
        "-3": "COUNT:SPEED:UP/DOWN",
        "200000": "At most 100,000 volunteers",
        "5:t4:50/100:client": "at least one must be reachable",
    }.items():
        done = runner.invoke(app, ["simulate", "--epochs", "2", "--volunteers", volunteers])
        assert sentence in str(done.exception) if sentence else done.exit_code == 0, volunteers
