"""Volunteers together: bytes, balance, shares that add up, limits, and one sentence for whatever is wrong."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calculator import BadSetup, browser
from calculator.__main__ import main
from calculator.choose.devices import DEVICES
from calculator.choose.flops import samples_per_second
from calculator.models.architectures import PRESETS
from calculator.swarm.collaboration import answer, collaboration_from
from calculator.swarm.exchange import CODECS, Link, all_reduce_seconds, balanced_parts, even_parts, load, vector_bytes
from calculator.swarm.forecast import (
    GONE_SECONDS,
    MESSAGE_BYTES,
    PROGRESS_RECORD_BYTES,
    ExchangedVectors,
    Volunteers,
    forecast,
)
from calculator.swarm.settings import MODES
from calculator.units import show_time
from training.swarm.config import SwarmConfig

HOME = Link(up_bytes_per_second=12.5e6, down_bytes_per_second=12.5e6)
RUN = ExchangedVectors(parameters=20_000_000, target_batch_size=16_384)


def volunteers(count=4, link=HOME, **others) -> Volunteers:
    return Volunteers(count=count, samples_per_second=8.0, link=link, **others)


links = st.builds(
    Link,
    up_bytes_per_second=st.floats(1e5, 1e9),
    down_bytes_per_second=st.floats(1e5, 1e9),
    latency_seconds=st.floats(0, 1),
    client_mode=st.booleans(),
)
kinds = st.builds(
    Volunteers,
    count=st.integers(1, 3000),
    samples_per_second=st.floats(0.01, 100),
    link=links,
    micro_batch_size=st.integers(1, 32),
    present=st.floats(0.01, 1),
    session_seconds=st.one_of(st.just(math.inf), st.floats(600, 1e6)),
)
exchanges = st.builds(
    ExchangedVectors,
    parameters=st.integers(1000, 10**10),
    target_batch_size=st.integers(1, 10**6),
    gradient_codec=st.sampled_from(CODECS),
    state_bits=st.sampled_from([8, 16]),
    average_state_every=st.integers(1, 100),
    mode=st.sampled_from(MODES),
    declared_links=st.booleans(),
)


@given(st.lists(kinds, min_size=1, max_size=4), exchanges)
@settings(max_examples=150, deadline=None)
def test_shares_add_up_and_throughput_is_their_first(mix, exchange):
    if all(kind.link.client_mode for kind in mix):
        with pytest.raises(BadSetup, match="client mode"):
            forecast(mix, exchange)
        return
    try:
        made = forecast(mix, exchange)
    except BadSetup as error:
        assert "sessions" in str(error)
        return
    assert made.shares.total == pytest.approx(1, abs=1e-9)
    assert all(0 <= share <= 1 + 1e-9 for share in (made.shares.computing, made.shares.averaging, made.shares.joining))
    assert made.samples_per_second <= made.ideal_samples_per_second
    in_an_update, target = made.epoch_seconds * made.samples_per_second, exchange.target_batch_size
    if sum(kind.count for kind in mix) <= exchange.max_group_size:
        assert in_an_update == pytest.approx(target, rel=1e-6)
    assert in_an_update <= target * (1 + 1e-6), "without those who do not fill a group, an update is smaller"


@given(st.lists(links, min_size=2, max_size=12))
@settings(max_examples=150, deadline=None)
def test_balance_is_never_slower_than_even_parts(group):
    if all(link.client_mode for link in group):
        return
    even, balanced = even_parts(group), balanced_parts(group)
    for parts in (even, balanced):
        assert sum(parts) == pytest.approx(1)
        assert all(part >= 0 and (not part or not link.client_mode) for part, link in zip(parts, group, strict=True))
    if any(link.client_mode for link in group):
        return  # hivemind balances what servers carry; a client's own way is not its matter
    assert all_reduce_seconds(group, 1e6, balanced, 1.0) <= all_reduce_seconds(group, 1e6, even, 1.0) * (1 + 1e-9)


def test_equal_peers_send_twice_the_vector_but_for_their_own_part():
    parts = even_parts([HOME] * 5)
    assert load(parts[0], 5) == pytest.approx(2 * 4 / 5)
    assert vector_bytes(20_000_000, 0, "blockwise8") / 20e6 == pytest.approx(1 + 4 / 512, abs=1e-4)
    assert vector_bytes(1000, 1000, "blockwise8") == 2000
    assert vector_bytes(1000, 1000, "float32") == 4000, "in 32 bit small tensors travel in 32 bit too"


def test_who_vanishes_is_waited_for_briefly_unless_it_accepts_no_connections():
    def leaving(seconds, **link):
        kind = volunteers(session_seconds=3600)
        others = replace(kind, link=replace(kind.link, **link))
        return forecast([kind, others], replace(RUN, next_chunk_timeout_seconds=seconds)).shares.leaving

    assert leaving(GONE_SECONDS) == leaving(300.0) > leaving(GONE_SECONDS / 2)
    assert leaving(300.0, client_mode=True) > leaving(100.0, client_mode=True) > leaving(300.0)


def test_delayed_gradients_hide_averaging_until_it_is_longer_than_computing():
    late = ExchangedVectors(parameters=RUN.parameters, target_batch_size=RUN.target_batch_size, mode="delayed")
    hidden, awaited = forecast([volunteers()], late), forecast([volunteers()], RUN)
    assert hidden.shares.averaging == 0 < awaited.shares.averaging
    slow = Link(up_bytes_per_second=2e4, down_bytes_per_second=2e4)
    assert forecast([volunteers(link=slow)], late).shares.averaging > 0.3


def test_the_slowest_link_sets_the_pace():
    slow = Link(up_bytes_per_second=1.25e6, down_bytes_per_second=12.5e6)
    mixed = forecast([volunteers(), volunteers(count=1, link=slow)], RUN)
    assert mixed.all_reduce_seconds == pytest.approx(10 * forecast([volunteers(count=5)], RUN).all_reduce_seconds)
    balanced = ExchangedVectors(parameters=RUN.parameters, target_batch_size=RUN.target_batch_size, declared_links=True)
    relieved = forecast([volunteers(), volunteers(count=1, link=slow)], balanced)
    assert relieved.all_reduce_seconds == pytest.approx(mixed.all_reduce_seconds / (2 * 4 / 5))


def test_people_who_come_and_go_are_there_in_part_and_lose_samples():
    stays, comes = forecast([volunteers()], RUN), forecast([volunteers(present=0.5, session_seconds=3600)], RUN)
    assert comes.peers == stays.peers / 2
    assert stays.shares.joining == stays.shares.leaving == 0
    assert comes.shares.joining == pytest.approx(comes.newcomer_seconds / (3600 + comes.newcomer_seconds))
    assert comes.shares.leaving > 0


def test_a_newcomer_downloads_weights_in_16_bit_and_moments_in_8():
    exchange = ExchangedVectors(parameters=10**8, target_batch_size=16_384)
    assert exchange.newcomer_bytes == 4 * 10**8 + math.ceil(2 * 10**8 * 4 / 4096)


def names(made) -> dict[str, bool]:
    return {limit.name: limit.stops for limit in made.limits}


def test_limits_are_named_where_they_begin():
    most = MESSAGE_BYTES // PROGRESS_RECORD_BYTES
    large = ExchangedVectors(parameters=RUN.parameters, target_batch_size=10**8)
    assert names(forecast([volunteers(count=200)], large)) == {}
    assert names(forecast([volunteers(count=257)], large)) == {"group size": False}
    assert "progress record" not in names(forecast([volunteers(count=most)], large))
    beyond = forecast([volunteers(count=most + 1)], large)
    assert names(beyond)["progress record"] and f"beyond {most:,} peers" in beyond.limits[0].sentence
    short = names(forecast([volunteers(count=200)], RUN))
    assert not short["short epochs"]
    slow = Link(up_bytes_per_second=1e5, down_bytes_per_second=1e5)
    assert "averages longer than epochs" in names(forecast([volunteers(count=8, link=slow)], RUN))


def test_an_average_that_times_out_is_named_with_its_own_time():
    exchange = replace(RUN, state_bits=16)
    made = forecast([volunteers()], exchange)
    assert made.longest_seconds > 1.5 * made.all_reduce_seconds
    for limit, seconds in ((1.2, made.longest_seconds), (0.8, made.all_reduce_seconds)):
        hasty = replace(exchange, allreduce_timeout_seconds=limit * made.all_reduce_seconds)
        (found,) = (one for one in forecast([volunteers()], hasty).limits if one.name == "average times out")
        assert f"takes {show_time(seconds)}," in found.sentence


def test_gpus_have_a_published_peak_or_none():
    for device in DEVICES.values():
        assert (device.teraflops is None) == device.name.startswith("apple")
    t4 = samples_per_second(PRESETS["dalle-2021"], DEVICES["t4"], 0.3)
    assert t4 == pytest.approx(65e12 * 0.3 / (3 * 2.865e12), rel=1e-3)
    with pytest.raises(BadSetup, match="No speed is published"):
        samples_per_second(PRESETS["dalle-2021"], DEVICES["apple-8gb"])


DESCRIBED = {"model": "dalle-2021", "volunteers": [{"count": 30, "gpu": "t4", "session_hours": 6}]}


def test_the_command_line_and_the_page_say_the_same(capsys):
    line = ["swarm", "--volunteers", "30:t4:50/100", "--session-hours", "6", "--json"]
    assert main(line) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(browser.forecast(json.dumps(DESCRIBED))) == answer(collaboration_from(DESCRIBED))
    assert main(line[:-1]) == 0
    report = capsys.readouterr().out
    assert f"{printed['shares']['computing']:.1%}" in report and "125,894,244 parameters" in report


@pytest.mark.parametrize("mode", MODES)
def test_a_recipe_accepts_how_often_parameters_are_averaged_in_each_mode(mode, capsys):
    assert main(["swarm", "--mode", mode, "--volunteers", "8:t4:50/100", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    described = {"model": "dalle-2021", "mode": mode, "volunteers": [{"count": 8, "gpu": "t4"}]}
    every = collaboration_from(described).average_state_every
    assert SwarmConfig(mode=mode, target_batch_size=16_384, average_state_every=every)
    assert printed == json.loads(browser.forecast(json.dumps(described | {"average_state_every": every})))


values = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)


@given(st.recursive(values, lambda x: st.lists(x, max_size=3)))
@example(10**400)
@settings(max_examples=100, deadline=None)
def test_no_value_breaks_the_page(value):
    for key in (
        "volunteers",
        "model",
        "target_batch_size",
        "config",
        "parameters",
        "mode",
        "matchmaking_seconds",
    ):
        assert isinstance(json.loads(browser.forecast(json.dumps(DESCRIBED | {key: value}))), dict)
    for key in ("count", "gpu", "up_megabits", "present", "micro_batch_size"):
        kinds = [DESCRIBED["volunteers"][0] | {key: value}]
        assert isinstance(json.loads(browser.forecast(json.dumps(DESCRIBED | {"volunteers": kinds}))), dict)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"model": "dalle-2021", "sequence_length": 512}, "sequence_length is for language models"),
        ({"model": "gpt2", "sequence_length": 1025}, "from 1 to 1024, not 1025"),
        ({"model": "smollm2-135m", "optimizer": "sgdd"}, "optimizer is one of"),
        ({"model": "gpt2", "mode": "adhoc"}, "mode is one of"),
        ({"model": "gpt2", "mode": "delayed", "delay_outer_step": True}, "delay_outer_step needs"),
        ({"model": "gpt2", "mode": "sparse", "average_state_every": 99}, "at least 100 with mode sparse, not 99"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(BadSetup, match=said):
        collaboration_from({"volunteers": [{"count": 1, "gpu": "t4"}], **wrong})
