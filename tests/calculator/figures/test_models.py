"""The small models behind the figures, each beside another way to the same number."""

from __future__ import annotations

import heapq
import statistics

import pytest

from calculator import Setup, estimate
from calculator.figures import shuffling, streaming, thousandfold, uneven
from calculator.figures.catalogue import FIGURES
from calculator.figures.kit.controls import read_values
from calculator.figures.rules.all_reduce import sent_share
from calculator.swarm.exchange import Link as ExchangeLink
from calculator.swarm.exchange import even_parts, load


def values_of(name: str, **texts: object) -> dict:
    values, sentences = read_values(FIGURES[name].controls, texts)
    assert sentences == []
    return values


@pytest.mark.parametrize("speeds", [(1, 3, 6, 14), (0.5, 0.5, 0.5, 0.5), (20, 0.5, 7.5, 3), (20, 20, 20, 0.5)])
@pytest.mark.parametrize("batch", [64, 127, 1024])
def test_counting_samples_equals_a_simulation_event_by_event(speeds, batch):
    coming = [(1 / speed, device, 1) for device, speed in enumerate(speeds)]
    heapq.heapify(coming)
    samples = [0] * len(speeds)
    while sum(samples) < batch:
        seconds, device, number = heapq.heappop(coming)
        samples[device] += 1
        heapq.heappush(coming, ((number + 1) / speeds[device], device, number + 1))
    epoch = uneven.by_samples(speeds, batch)
    assert sum(epoch.samples) == batch
    assert epoch.computing_seconds == pytest.approx(seconds)
    assert all(abs(one - other) <= 1 for one, other in zip(epoch.samples, samples, strict=True)), "ties alone"
    equal = uneven.equal_shares(speeds, batch)
    assert sum(equal.samples) == batch and max(equal.samples) - min(equal.samples) <= 1
    assert epoch.computing_seconds <= equal.computing_seconds + 1e-9


def test_equally_fast_devices_gain_nothing():
    assert uneven.by_samples([4] * 4, 64).computing_seconds == uneven.equal_shares([4] * 4, 64).computing_seconds


@pytest.mark.parametrize("peers", [2, 3, 16, 256])
def test_traffic_of_a_peer_is_that_of_the_run_designer(peers):
    links = [ExchangeLink(up_bytes_per_second=1, down_bytes_per_second=1)] * peers
    assert sent_share(peers) == pytest.approx(load(even_parts(links)[0], peers))


def test_gradients_are_as_many_as_the_estimate_counts():
    """And the paper's factor of about 8 for sharing (section 3.1)."""
    layers = {"shared_groups": 64}
    separate = thousandfold.gradient_bytes("dalle-2021", shared=False, bits=32)
    shared = thousandfold.gradient_bytes("dalle-2021", shared=True, bits=32)
    assert separate == 4 * estimate(Setup(model="dalle-2021", **layers)).parameters
    assert shared == 4 * estimate(Setup(model="dalle-2021")).parameters
    assert 8 < separate / shared < 9
    assert 3.9 < shared / thousandfold.gradient_bytes("dalle-2021", shared=True, bits=8) < 4


@pytest.mark.parametrize("overlap", ["on", "off"])
@pytest.mark.parametrize("model", thousandfold.MODELS)
def test_the_factors_multiply_to_the_whole(model, overlap):
    for batch, megabits in ((16, 1), (16_384, 10), (65_536, 1000)):
        steps = thousandfold.steps_of(values_of("thousandfold", model=model, batch=batch, up=megabits, overlap=overlap))
        product = 1.0
        for step in steps[1:4]:
            product *= step.factor
        assert product == pytest.approx(steps[0].waiting_seconds / steps[3].waiting_seconds)
        assert steps[4].waiting_seconds <= steps[3].waiting_seconds
        if overlap == "off":
            assert steps[4] == thousandfold.Step(name="Overlap", factor=1, waiting_seconds=steps[3].waiting_seconds)
        else:
            # An epoch lasts as long as the longer of its two halves: what is over computing is what is waited for.
            own, computing = max(1, batch / 16), 1 / 2
            epoch = max(own * computing, own * steps[3].waiting_seconds)
            assert own * (computing + steps[4].waiting_seconds) == pytest.approx(epoch)


def test_a_stream_waits_for_what_its_link_lacks():
    ways = {way.name: way for way in streaming.ways_of(values_of("streaming", kind="pictures", link=1, speed=100))}
    stream = ways["Stream pictures"]
    needed = 100 * 18 * 1664
    assert 1 - stream.waiting_share == pytest.approx(1e6 / 8 / needed)
    assert stream.disk_bytes == 8192 * 18 * 1664
    assert ways["Download all pictures"].disk_bytes == 18 * ways["Download all codes"].disk_bytes == 18 * 10**8 * 1664


def test_codes_take_thirteen_bits_a_token():
    """As the trainer's recipe has them."""
    from training.recipe import load_recipe

    model = load_recipe("dalle-2021").model
    assert model.image_vocab_size == 2**13
    assert streaming.code_bytes() == model.image_grid**2 * 13 // 8


@pytest.mark.parametrize("buffer", [1, 8, 64, 512])
def test_buffers_mix_as_those_of_datasets(buffer):
    """The 2021 run's samples went through `datasets`; over some seeds both shift samples as far."""
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"place": list(range(shuffling.LENGTH))}).to_iterable_dataset()
    seeds = range(6)
    theirs = [
        shuffling.mean_shift([row["place"] for row in stream.shuffle(seed=seed, buffer_size=buffer)]) for seed in seeds
    ]
    ours = [shuffling.mean_shift(shuffling.drawn_order(shuffling.LENGTH, buffer, seed)) for seed in range(40)]
    if buffer == 1:
        assert {*ours, *theirs} == {0}
    else:
        assert statistics.mean(ours) == pytest.approx(statistics.mean(theirs), rel=0.08)
    assert sorted(shuffling.drawn_order(shuffling.LENGTH, buffer, 3)) == list(range(shuffling.LENGTH))


def test_a_whole_shuffle_shifts_by_a_third():
    """The caption's other number: the mean of |i - j| over all pairs of places."""
    places = range(shuffling.LENGTH)
    whole = sum(abs(one - other) for one in places for other in places) / shuffling.LENGTH**2
    assert whole == pytest.approx((shuffling.LENGTH**2 - 1) / (3 * shuffling.LENGTH))
    mean = statistics.mean(
        shuffling.mean_shift(shuffling.drawn_order(shuffling.LENGTH, 512, seed)) for seed in range(40)
    )
    assert mean == pytest.approx(whole, rel=0.02)
