"""The cost of an exchange is the same wherever it is stated, and that of the messages that travel."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hivemind.compression import CompressionInfo
from hivemind.utils import TensorDescriptor

from calculator.swarm.collaboration import Kind
from calculator.swarm.designed_models import LanguageModel
from calculator.swarm.designer import People, Wish, design, recipe
from calculator.swarm.exchange import Link, all_reduce_seconds, even_parts, exchange_cost
from calculator.swarm.settings import MODES, ExchangeSettings
from training.compute.in_use import settings_in_use
from training.doctor.checks import compute
from training.publish.needs import needs_of
from training.recipe import RunConfig, load_recipe, parse_recipe
from training.simulate.forecast import collaboration_of, simulate
from training.simulate.population import Spread
from training.simulate.swarm import Rules
from training.swarm.engine.codecs import exchange_codec
from training.swarm.epoch.sparse import SparseMean
from training.tasks.known import task_of
from training.volunteer import startup

PEERS = 8
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "bit/s": 1, "kbit/s": 1e3, "Mbit/s": 1e6}


def designed() -> tuple[RunConfig, float]:
    """A run that the designer makes for eight volunteers on slow links, and the bytes that each sends in an epoch."""
    people = People(count=PEERS, gpu="t4", up_megabits=5, down_megabits=20)
    model = LanguageModel(size="15m", family="llama", block_length=256)
    wish = Wish(model=model, people=(people,), hours_a_day=24, samples=1e8, days=60)
    made = design(wish)
    return parse_recipe(recipe(wish, made)), made.forecast.sent_bytes


def shapes_of(run: RunConfig) -> list[torch.Size]:
    return [parameter.shape for parameter in task_of(run).on_paper().parameters()]


def message_bytes(run: RunConfig) -> int:
    """Bytes of what a peer brings to an exchange: of a real message, or of real gradients in the run's codec."""
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes_of(run)]
    if run.swarm.mode == "sparse":
        mean = SparseMean([tensor.shape for tensor in tensors], kept=run.swarm.sparse_kept)
        return len(mean.pack(tensors, 1.0))
    codec = exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec)
    infos = [CompressionInfo(key=0, descriptor=TensorDescriptor.from_tensor(tensor)) for tensor in tensors]
    return sum(len(codec.compress(tensor, info).buffer) for tensor, info in zip(tensors, infos, strict=True))


def told(text: str) -> float:
    """The first bytes or bits that a sentence tells."""
    amount, unit = re.search(r"([\d.]+) ([KM]?i?B|[kM]?bit/s)\b", text).groups()
    return float(amount) * UNITS[unit]


def in_volunteers_words(run: RunConfig, parameters: int, monkeypatch) -> list[float]:
    """Bytes of the longest exchange as the program says them at its start, in its warning, and in `doctor`."""
    chosen = settings_in_use(run.swarm, optimizer="lamb8bit", parameters=parameters, threads=1)
    times = next(one.reason for one in chosen if one.name == "times")
    hurried = run.swarm.model_copy(update={"allreduce_timeout_seconds": 1.0})
    warning = startup.link_warning(hurried, startup.Link(download_bytes=10**6, download_seconds=10.0), parameters)
    seconds = 60 * float(re.search(r"takes ([\d.]+) min,", warning)[1])
    monkeypatch.setattr(compute, "downloaded", lambda url: (compute.LEAST_PROBE_BYTES, 1.0))
    files = SimpleNamespace(files={"a": SimpleNamespace(bytes=1)})
    facts = SimpleNamespace(source=lambda: "http://a", run_or_none=lambda: run, manifest=lambda: files)
    found = compute.check_link(facts, SimpleNamespace(trained_parameters=parameters))
    needed = told(found.found.partition("needs")[2])
    return [told(times.partition("sends")[2]), seconds * 1e5, needed * run.swarm.allreduce_timeout_seconds / 8]


def test_five_places_state_the_bytes_of_a_real_message(monkeypatch):
    run, by_designer = designed()
    assert run.swarm.mode == "sparse"
    parameters, real = sum(shape.numel() for shape in shapes_of(run)), (PEERS - 1) * message_bytes(run)
    average = 2 * parameters * 2 * (PEERS - 1) / PEERS  # of the parameters in 16 bits: longer than an exchange
    for stated in in_volunteers_words(run, parameters, monkeypatch):
        assert stated == pytest.approx(average, rel=0.05), "two digits"
    assert 8 * average / 5e6 < run.swarm.allreduce_timeout_seconds, "at the 5 Mbit/s of the volunteers"
    kind = Kind(count=PEERS, samples_per_second=10.0, up_megabits=5, down_megabits=20)
    collaboration = collaboration_of(run, [kind])
    outcome = simulate(collaboration.kinds(), Rules(exchange=collaboration.exchange()), epochs=5, spread=Spread.none())
    assert outcome.sent_bytes == pytest.approx(real, rel=0.01)
    with_states = outcome.sent_bytes + average / run.swarm.average_state_every
    assert needs_of(run)["sent_bytes"] == by_designer == pytest.approx(with_states, rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_takes_the_bytes_of_its_messages(mode):
    run = load_recipe("demo")
    run = run.model_copy(update={"swarm": run.swarm.model_copy(update={"mode": mode})})
    exchange = collaboration_of(run, ()).exchange()
    cost, message = exchange.cost(PEERS), message_bytes(run)
    assert cost.message_bytes == pytest.approx(message, rel=0.01)
    times = PEERS - 1 if mode == "sparse" else 2 * (PEERS - 1) / PEERS
    assert cost.sent_bytes == pytest.approx(times * message, rel=0.01)
    assert exchange.cost(2).sent_bytes == pytest.approx(message, rel=0.02)
    assert exchange.cost(1).sent_bytes == 0


@pytest.mark.parametrize("mode", MODES)
def test_an_exchange_takes_the_time_of_its_bytes_in_the_slower_direction(mode):
    cost = exchange_cost(ExchangeSettings(mode=mode), 10**7, PEERS)
    assert cost.seconds(1e6) == pytest.approx(cost.sent_bytes / 1e6, rel=0.05), "beside headers"
    assert cost.seconds(1e6, link_share=0.5) == pytest.approx(2 * cost.seconds(1e6))
    home = Link(up_bytes_per_second=1e6, down_bytes_per_second=4e6)
    clients = [home] * 7 + [replace(home, client_mode=True)]
    longer = all_reduce_seconds(clients, cost.message_bytes, even_parts(clients), 1.0, gathers=cost.gathers)
    assert longer > cost.seconds(1e6), "the others pass on the client's part as well"
    slow_down = [Link(up_bytes_per_second=1e9, down_bytes_per_second=1e6)] * PEERS
    received = (PEERS - 1 if mode == "sparse" else 2 * (PEERS - 1) / PEERS) * cost.message_bytes
    seconds = all_reduce_seconds(slow_down, cost.message_bytes, even_parts(slow_down), 1.0, gathers=cost.gathers)
    assert seconds == pytest.approx(received / 1e6, rel=0.05)
