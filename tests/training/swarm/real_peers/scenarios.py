"""What real peers do in tests; `started_peers.meet` runs these functions in processes of their own.

Everything heavy is imported when a scenario runs, so that a test can name scenarios without it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tests.training.swarm.real_peers.started_peers import Peer
from training.recipe import RunConfig, load_recipe

SIZES = {"eight_bit": (256, 256), "scalar": (), "sixteen_bit": (100,)}  # as ParameterDict sorts them
SAMPLES = {"first": 8, "second": 24, "third": 32}
BOTH, ALL_THREE = tuple(SAMPLES)[:2], tuple(SAMPLES)
MBIT_PER_SECOND = {"first": 100.0, "second": 100.0, "third": 10.0}
"""What the link of each carries, if they declare it."""
LONG_SECONDS = 30.0
"""A patience so long that a test notices if a peer waits it out."""

Gradients = list[torch.Tensor]


def run_with(**swarm: object) -> RunConfig:
    """The demo's recipe with other settings of the swarm."""
    run = load_recipe("demo")
    return run.model_copy(update={"swarm": run.swarm.model_copy(update=swarm)})


# -- models and gradients ----------------------------------------------------------------------------------------------


def model_of(seed: int) -> torch.nn.ParameterDict:
    """A tensor that travels in 8 bit, one in 16, and a scalar."""
    torch.manual_seed(seed)
    return torch.nn.ParameterDict(
        {key: torch.nn.Parameter(torch.randn(shape) * 0.1 + 0.5) for key, shape in SIZES.items()}
    )


def gradients_of(name: str) -> Gradients:
    """A peer's own gradients, in the order of the parameters."""
    generator = torch.Generator().manual_seed(7 if name == "first" else 8)
    return [torch.randn(shape, generator=generator) + (1 if name == "first" else -2) for shape in SIZES.values()]


def faulty_gradients_of(name: str) -> Gradients:
    """The same; the second peer's scalar is not finite, and so is one of the third's many numbers."""
    gradients = gradients_of(name)
    if name == "second":
        gradients[1].fill_(torch.inf)
    if name == "third":
        gradients[0][3, 5] = torch.nan
    return gradients


def heavy_gradients_of(name: str) -> Gradients:
    """The same with tails as Student's t with 3 degrees of freedom has them."""
    generator = torch.Generator().manual_seed(9 if name == "first" else 10)
    return [
        gradient / (torch.randn((3, *gradient.shape), generator=generator) ** 2).mean(0).sqrt()
        for gradient in gradients_of(name)
    ]


def thin_gradients_of(name: str) -> Gradients:
    """The same, but matrices have rank 2."""
    return [gradient[:, :2] @ gradient[:2] if gradient.ndim == 2 else gradient for gradient in gradients_of(name)]


# -- faults ------------------------------------------------------------------------------------------------------------


def break_codec() -> None:
    """What numpy 2.4 does to hivemind 1.1.12: 8-bit tensors are written and cannot be read."""
    from hivemind.compression.quantization import Quantization

    def extract(self, serialized_tensor):
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

    Quantization.extract = extract


def die_in_the_average(*, after_a_part: bool) -> None:
    """This peer's processes end with its first one: as it begins to send its parts, or when it has averaged one."""
    from training.swarm.round.allreduce import AllReduce

    first_process, answer = os.getpid(), AllReduce.answer

    def end():
        for process in (first_process, os.getpid()):
            os.kill(process, signal.SIGKILL)

    async def die(self, reducer):
        end()

    async def answer_and_die(self, sender, stream):
        async for message in answer(self, sender, stream):
            yield message
            end()

    if after_a_part:
        AllReduce.answer = answer_and_die
    else:
        AllReduce._exchange = die


def break_off_once(prefix: str) -> None:
    """In the first all-reduce of an averager this peer fails one of the others and does not answer the next one."""
    from training.swarm.round.allreduce import AllReduce

    answer, broken = AllReduce.answer, []
    first_group = None

    async def break_off(self, sender, stream):
        nonlocal first_group
        if multiprocessing.current_process().name == prefix:
            first_group = first_group or self.group.group_id
            if self.group.group_id == first_group:  # the repetition is another group
                broken.append(sender)
                if len(broken) == 1:
                    raise RuntimeError("the stream breaks")
                await asyncio.sleep(LONG_SECONDS)
        async for message in answer(self, sender, stream):
            yield message

    AllReduce.answer = break_off


def trust_own_gradients() -> None:
    """What a peer with another program may do: it sends whatever it has."""
    import types

    from training.swarm.epoch import gradients

    blind = types.SimpleNamespace(**vars(torch))
    blind.isfinite = lambda tensor: torch.tensor(True)
    gradients.torch = blind


def fail_alone(peer: Peer) -> None:
    """The second peer fails; the others wait for it for ever."""
    if peer.name == "second":
        raise RuntimeError("the second peer's own fault")
    peer.await_others("never")


# -- averages ----------------------------------------------------------------------------------------------------------


def average_gradients(
    peer: Peer,
    *,
    prefix: str,
    make: Callable[[str], Gradients] = gradients_of,
    codec: str = "uniform8",
    powersgd_rank: int = 0,
    sparse_kept: int = 0,
    fault: Mapping[str, Callable[[], None]] = {},
    chunk_seconds: float = 5.0,
    part_bytes: int | None = None,
    declare_bandwidth: bool = False,
    client_mode: str = "",
):
    """One round of the gradients' averager alone, weighted by `SAMPLES`: tensors after it, report, peer id."""
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.epoch.gradients import GradientAverager
    from training.swarm.epoch.powersgd import PowerSgd, powersgd_codec
    from training.swarm.epoch.sparse import SparseMean
    from training.swarm.round.pipe import AveragerSettings

    fault.get(peer.name, lambda: None)()
    model = model_of(seed=0)
    parameters = list(model.parameters())
    compression, method = exchange_codec(65_536, codec), None
    if powersgd_rank:
        method = PowerSgd([parameter.shape for parameter in parameters], powersgd_rank)
        compression = powersgd_codec(compression)
    if sparse_kept:
        method = SparseMean([parameter.shape for parameter in parameters], kept=sparse_kept)
    settings = AveragerSettings(
        prefix=prefix,
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=chunk_seconds,
        allreduce_timeout_seconds=60.0,
        compression=compression,
        part_bytes=part_bytes,
        client_mode=peer.name == client_mode,
    )
    averager = GradientAverager(parameters, dht=peer.dht, settings=settings, method=method)
    averager.bandwidth = MBIT_PER_SECOND[peer.name] if declare_bandwidth else None
    for parameter, gradient in zip(parameters, make(peer.name), strict=True):
        parameter.grad = gradient
    for _ in range(SAMPLES[peer.name] // 8):
        averager.add_gradients(8)
    round_ = averager.look_for_group(0, wants_weights=False, expected_peers=len(peer.names), seconds=40)
    round_.start(averager.load_mean())
    report = round_.result(60).report
    with averager.get_tensors() as tensors:
        return [tensor.clone() for tensor in tensors], report, str(peer.identity.peer_id)


def average_parameters(peer: Peer, *, codec: str):
    """One round of the parameters' averager in 8 bit, from the same weights as the other peer."""
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.epoch.strategies import Awaited
    from training.swarm.round.pipe import AveragerSettings
    from training.swarm.state.alignment import AlignmentState
    from training.swarm.state.parameters import ParameterAverager, state_codec

    model = model_of(seed=0)
    master = Awaited.make_master(model, run_with())
    settings = AveragerSettings(
        prefix="parameters",
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=5.0,
        allreduce_timeout_seconds=20.0,
        compression=exchange_codec(65_536, codec),
        round_own_parts=True,
    )
    averager = ParameterAverager(master, AlignmentState(), dht=peer.dht, settings=settings, codec=state_codec())
    round_ = averager.begin_round(seconds=40, expected_peers=2)
    averager.load()
    round_.start(averager.weight)
    report = round_.result(60).report
    averager.give_back()
    return [parameter.detach().clone() for parameter in master.parameters], report


HOSTILE, HOSTILE_WEIGHT = "fourth", 1e9
FOUR = (*ALL_THREE, HOSTILE)


def signal_and_noise_of(name: str) -> Gradients:
    """An honest peer's gradients: what all have in common, and half as much noise; of the hostile one -1000 times the
    former."""
    common, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2 + FOUR.index(name))
    signal = [torch.randn(shape, generator=common) for shape in SIZES.values()]
    if name == HOSTILE:
        return [-1000 * one for one in signal]
    return [one + 0.5 * torch.randn(one.shape, generator=own) for one in signal]


def weights_of(name: str) -> Gradients:
    """Honest peers have the same weights; the hostile one's are 0.5 everywhere."""
    weights = [parameter.detach().clone() for parameter in model_of(seed=0).parameters()]
    return [torch.full_like(one, 0.5) for one in weights] if name == HOSTILE else weights


def average_with_a_hostile_peer(peer: Peer, *, aggregation: str, of_weights: bool):
    """One round of gradients or weights in which one peer sends what harms, with a huge weight: tensors, report."""
    from training.swarm.defence.clipping import clipping_of_gradients, clipping_of_parameters
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.round.averager import Averager
    from training.swarm.round.pipe import AveragerSettings
    from training.swarm.round.reducer import WeightedMean

    swarm = run_with(aggregation=aggregation).swarm
    make, clipping_of = (
        (weights_of, clipping_of_parameters) if of_weights else (signal_and_noise_of, clipping_of_gradients)
    )
    settings = AveragerSettings(
        prefix=f"{aggregation}-{of_weights}",
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=5.0,
        allreduce_timeout_seconds=60.0,
        compression=exchange_codec(65_536, "blockwise8"),
        round_own_parts=of_weights,
        reduction=clipping_of(swarm) or WeightedMean(),
    )
    averager = Averager(make(peer.name), dht=peer.dht, settings=settings)
    round_ = averager.begin_round(seconds=40, expected_peers=len(peer.names))
    round_.start(HOSTILE_WEIGHT if peer.name == HOSTILE else 1.0)
    report = round_.result(60).report
    with averager.get_tensors() as tensors:
        left_with = [tensor.clone() for tensor in tensors]
    peer.await_others(settings.prefix)
    averager.shutdown()
    return left_with, report


def average_beside_a_hasty_peer(peer: Peer):
    """One round in which the third peer sends nothing, and says at once that all is well: the report of the others."""
    from training.swarm.round.agreement import Verdict
    from training.swarm.round.averager import Averager
    from training.swarm.round.pipe import AveragerSettings
    from training.swarm.round.rounds import AllReduces

    async def say_that_all_is_well(self, tensors, infos, group, **facts):
        for other in set(group.peers) - {self.peer_id}:
            await self._ask(other, Verdict(whole=True).message(group.group_id))
        await asyncio.sleep(LONG_SECONDS)

    if peer.name == "third":  # its averager's process is a fork of this one
        AllReduces.attempt = say_that_all_is_well
    settings = AveragerSettings(
        prefix="hasty",
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=4.0,
        allreduce_timeout_seconds=60.0,
    )
    averager = Averager(gradients_of(peer.name), dht=peer.dht, settings=settings)
    round_ = averager.begin_round(seconds=15, expected_peers=len(peer.names))
    round_.start(1.0)
    try:
        return round_.result(60).report if peer.name != "third" else str(peer.identity.peer_id)
    finally:
        peer.await_others("hasty.end")
        averager.shutdown()


# -- training ----------------------------------------------------------------------------------------------------------


def optimizer_of(peer: Peer, run: RunConfig, model: torch.nn.Module, lineage=None):
    """The run's optimizer."""
    from training.swarm.optimizer import SwarmOptimizer

    where = {"dht": peer.dht, "identity": peer.identity, "client_mode": peer.dht.client_mode}
    return SwarmOptimizer(model, run, micro_batch_size=4, lineage=lineage, **where)


def give_gradients(peer: Peer, model: torch.nn.Module) -> None:
    """As a backward pass does, after a while: peers are of uneven speed."""
    time.sleep(0.1 if peer.name == "first" else 0.2)
    for parameter, gradient in zip(model.parameters(), gradients_of(peer.name), strict=True):
        parameter.grad = gradient.clone()


def host_weights(optimizer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in optimizer.master.parameters]


def train(peer: Peer, *, begin: Callable | None = None, watch: Callable | None = None, **swarm: object):
    """Trains from other weights than the other peer until three epochs were averaged: the model's weights, reports.

    Both begin together, or as `begin(optimizer)` has it; `watch(optimizer)` is called after each step.
    """
    run = run_with(**{"target_batch_size": 120, "average_state_every": 1, **swarm})
    model = model_of(seed=0 if peer.name == "first" else 1)
    optimizer = optimizer_of(peer, run, model)
    peer.await_others("ready") if begin is None else begin(optimizer)
    reports = []
    deadline = time.monotonic() + 200
    while sum(report.senders == 2 for report in reports) < 3 and time.monotonic() < deadline:
        give_gradients(peer, model)
        optimizer.step()
        if watch is not None:
            watch(optimizer)
        reports += optimizer.take_epoch_reports()
    optimizer.updates.wait()
    return [parameter.detach().clone() for parameter in model.parameters()], reports


def come_late(peer: Peer, *, matchmaking_seconds: float, **swarm: object):
    """As `train`; the second comes when the first has done some epochs, and more go by before it has its state.

    Each has the weights with which it ended each epoch, the epochs in which it wanted the others' weights, and what has
    come of the recipe's time for a request in both of its averagers.
    """
    from training.swarm.state import catching_up

    facts = {"downloads": [], "downloads begun": 0, "request timeouts": [], "wanted weights": set()}
    weights, is_late = {}, peer.name == "second"
    if is_late:
        while not any(progress["epoch"] >= 2 for progress in progress_of_all(peer)):
            time.sleep(0.1)

    def begin(optimizer):
        averagers = (optimizer.gradients, optimizer.parameters)
        facts["request timeouts"] += [averager.settings.request_timeout_seconds for averager in averagers]
        if is_late:
            catching_up.download_newer_state = partial(take_long, facts, catching_up.download_newer_state)
            assert optimizer.load_state_from_peers()
            facts["downloads"].append(optimizer.master.epoch)

    def watch(optimizer):
        if optimizer.alignment.drifted:
            facts["wanted weights"].add(optimizer.local_epoch)
        weights[optimizer.local_epoch] = host_weights(optimizer)

    swarm |= {"average_state_every": 1_000_000, "matchmaking_seconds": matchmaking_seconds}
    _, reports = train(peer, begin=begin, watch=watch, **swarm)
    return weights, reports, facts


def take_long(facts: dict, download: Callable, *args, **kwargs):
    """A download that lasts for several epochs of the others."""
    facts["downloads begun"] += 1
    state = download(*args, **kwargs)
    time.sleep(5)
    return replace(state, seconds=state.seconds + 5)


def progress_of_all(peer: Peer) -> list[dict]:
    """What the peers have told of their epochs."""
    found = peer.dht.get(f"{run_with().run_id}_progress", latest=True)
    return [entry.value for entry in found.value.values()] if found is not None else []


async def stand_still(signs: Sequence[Path], _dht, _node) -> None:
    """In a node's process: it answers nobody, but for a moment now and then, until all these files are there."""
    while not all(sign.is_file() for sign in signs):
        time.sleep(2.9)
        await asyncio.sleep(0.01)


def come_back_from_a_clock_that_was_ahead(peer: Peer):
    """The second peer stores a record as if its clock was five minutes ahead, then one by the right time, and after a
    restart another one. What the others see of it each time."""
    from hivemind.utils import get_dht_time

    from training.swarm.node.dht import start_dht

    def tell(word, ahead=0.0):
        """As a volunteer does, again after a few seconds: a node that is busy may not answer."""
        for _ in range(3):
            expires = get_dht_time() + ahead + 60
            if dht.store(key, subkey=dht.public_key, value=word, expiration_time=expires):
                return True
            time.sleep(1)
        return False

    def see(word):
        deadline, seen = time.monotonic() + 15, None
        while seen != word and time.monotonic() < deadline:
            found = dht.get(key, latest=True)
            seen = next((entry.value for entry in found.value.values()), None) if found is not None else None
            time.sleep(0.2)
        return seen

    dht, run = peer.dht, run_with()
    key, seen = f"{run.run_id}_recipe", []
    for word, ahead in (("ahead", 300.0), ("right", 0.0), ("restarted", 0.0)):
        if peer.name == peer.names[1]:
            if word == "restarted":
                dht.shutdown()
                others = [(peer.folder / "address").read_text()]
                dht = start_dht(run, peer.identity, initial_peers=others, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
            assert tell(word, ahead)
        else:
            seen.append(see(word))
        peer.await_others(word)
    return seen


async def words_kept(key: str, _dht, node) -> list[bytes]:
    """In the node's process: under which subkeys it has records of a key."""
    from hivemind.dht.routing import DHTID

    kept = node.protocol.storage.get(DHTID.generate(source=key))
    return [] if kept is None else [subkey for subkey, _ in kept.value.items()]


def store_with_others_only(peer: Peer):
    """Records that go to the others only, as if these were nearer to the key: how many of each are in the own node."""
    from hivemind.utils import get_dht_time

    run_id, kept = run_with().run_id, {}
    peer.await_others("there")
    for seconds, what in ((600.0, "recipe"), (60.0, "site")):
        key, expires = f"{run_id}_{what}", get_dht_time() + seconds
        told = {"value": "a word", "expiration_time": expires, "exclude_self": True}
        assert peer.dht.store(key, subkey=peer.dht.public_key, **told)
        peer.await_others(what)
        there = peer.dht.run_coroutine(partial(words_kept, key))
        kept[what] = there.count(peer.dht.public_key)
    return kept


def look_beside_a_slow_node(peer: Peer):
    """All store their names; then the node of "slow" stands still for almost as long as hivemind waits for an answer,
    again and again. The names that a peer finds, how long its slowest look or store took, and who is silent or slow."""
    from hivemind.p2p import PeerID
    from hivemind.utils import get_dht_time

    from training.swarm.node.slow_nodes import any_answers, silent_peers, slow_peers

    def tell():
        expires = get_dht_time() + 60
        return peer.dht.store(key, subkey=peer.dht.public_key, value=peer.name, expiration_time=expires)

    def look():
        return sorted(entry.value for entry in peer.dht.get(key, latest=True).value.values())

    key, found, seconds = f"{run_with().run_id}_recipe", [], [0.0]
    (peer.folder / f"{peer.name}.id").write_bytes(peer.dht.peer_id.to_bytes())
    assert tell()
    peer.await_others("told")
    ids = {(peer.folder / f"{name}.id").read_bytes(): name for name in peer.names if name != peer.name}
    for _ in range(3):  # so each node knows how long the others take
        found = look()
    peer.await_others("looked")
    if peer.name == "slow":
        signs = [peer.folder / f"{name}.measured" for name in peer.names if name != peer.name]
        peer.dht.run_coroutine(partial(stand_still, signs), return_future=True)
    peer.await_others("slow")
    if peer.name == "slow":  # its own node does not answer it either
        return {}
    for work in (tell, look) * 3:
        began = time.monotonic()
        found = work() if work is look else work() and found
        seconds.append(time.monotonic() - began)
    ping = partial(silent_peers, peer.dht, tuple(ids), 6.0)
    ping(slow_seconds=0.3)
    time.sleep(0.5)  # now the slow node has just answered, so it stands still for another two seconds
    late = ping(slow_seconds=0.3)
    slow = peer.dht.run_coroutine(partial(slow_peers, [PeerID(one) for one in ids]))
    silent = ping(slow_seconds=6.0)
    those, nobody = [PeerID(one).to_base58() for one in ids], "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
    answers = [any_answers(peer.dht, asked, 6.0) for asked in ([*those, nobody], [nobody])]
    (peer.folder / f"{peer.name}.measured").touch()
    return {
        "found": found,
        "seconds": max(seconds),
        "slow": [ids[one.to_bytes()] for one in slow],
        "late": [ids[one] for one in late],
        "silent": [ids[one] for one in silent],
        "answers": answers,
    }


def note_offers(optimizer, more: Callable[[], dict] = dict) -> dict[int, dict]:
    """Notes from now on, by the number of each exchange, the distances that this peer offers, the common weights before
    it, and more."""
    load, offers = optimizer.gradients.load_mean, {}

    def load_and_note():
        samples = load()
        with optimizer.gradients.get_tensors() as distances:
            offered = [distance.clone() for distance in distances]
        offers[optimizer.local_epoch + 1] = {"offered": offered, "before": host_weights(optimizer), **more()}
        return samples

    optimizer.gradients.load_mean = load_and_note
    return offers


def train_locally(peer: Peer):
    """Three exchanges of local updates: what was offered, and the common weights before and after; and the reports."""
    settings = {"mode": "diloco", "inner_batch_size": 8, "target_batch_size": 240, "average_state_every": 1000}
    run = run_with(**settings)
    schedule = {"warmup_epochs": 0, "total_epochs": 1000}  # so many give the paper's outer settings
    run = run.model_copy(update={"schedule": run.schedule.model_copy(update=schedule)})
    model = model_of(seed=0)
    optimizer = optimizer_of(peer, run, model)
    exchanges, reports = [], []

    def momenta():
        return [optimizer.master.optimizer.state[p]["momentum_buffer"].clone() for p in optimizer.master.parameters]

    offers = note_offers(optimizer, lambda: {"momentum": momenta()})
    peer.await_others("ready")
    deadline = time.monotonic() + 200
    while len(exchanges) < 3 and time.monotonic() < deadline:
        give_gradients(peer, model)
        optimizer.step()
        optimizer.zero_grad()
        for report in optimizer.take_epoch_reports():
            reports.append(report)
            if report.senders == 2:
                own = [parameter.detach().clone() for parameter in model.parameters()]
                after = {"epoch": report.epoch, "after": host_weights(optimizer), "model": own}
                exchanges.append({**after, **offers[report.epoch]})
    return exchanges, reports


def train_with_overlap(peer: Peer):
    """Five exchanges of local updates while the peers train on: by their epochs, what was offered, the common weights
    and momenta before, and the samples; and whether the trainer has left the wait for each average to a thread."""
    settings = {"mode": "diloco", "inner_batch_size": 8, "target_batch_size": 240, "average_state_every": 1000}
    run = run_with(**settings, delay_outer_step=True)
    schedule = {"warmup_epochs": 0, "total_epochs": 1000}  # so many give the paper's outer settings
    run = run.model_copy(update={"schedule": run.schedule.model_copy(update=schedule)})
    model = model_of(seed=0)
    optimizer = optimizer_of(peer, run, model)
    met, in_background, finish = {}, [], optimizer.exchange.finish

    def finish_and_note(round_, epoch_end):
        if round_ is not None:
            in_background.append(threading.current_thread() is not threading.main_thread())
        finish(round_, epoch_end)

    def momenta():
        return {
            "momentum": [
                optimizer.master.optimizer.state[p]["momentum_buffer"].clone() for p in optimizer.master.parameters
            ]
        }

    optimizer.exchange.finish = finish_and_note
    offers = note_offers(optimizer, momenta)
    peer.await_others("ready")
    deadline = time.monotonic() + 200
    while len(met) < 5 and time.monotonic() < deadline:
        give_gradients(peer, model)
        optimizer.step()
        optimizer.zero_grad()
        for report in optimizer.take_epoch_reports():
            if report.senders == 2:
                met[report.epoch] = {**offers[report.epoch], "samples": report.samples}
    optimizer.shutdown()
    return {"exchanges": met, "awaited in the background": in_background}


def train_sparsely(peer: Peer, *, exchanges: int = 10, optimizer: str = "adamw", **swarm: object):
    """Peers learn a matrix from examples, each from its own, with sparse exchanges.

    For each exchange with the other peer: what this one offered, the common weights before and after, its own weights
    after, and the report. And the loss on the same examples, before and after.
    """

    class Learner(torch.nn.Linear):
        """Its weight is a hidden matrix for Muon."""

        def get_output_embeddings(self) -> None:
            return None

    settings = {"mode": "sparse", "inner_batch_size": 8, "target_batch_size": 1200, "average_state_every": 1000}
    run = run_with(**settings, sparse_kept=128, **swarm)
    optimizer = run.optimizer.model_copy(update={"name": optimizer, "weight_decay": 0.0})
    schedule = run.schedule.model_copy(update={"warmup_epochs": 0, "peak_learning_rate": 1e-3})
    run = run.model_copy(update={"schedule": schedule, "optimizer": optimizer})
    torch.manual_seed(0)
    model, goal = Learner(64, 64), Learner(64, 64)
    examples = torch.Generator().manual_seed(len(peer.name))

    def loss(inputs):
        return (model(inputs) - goal(inputs).detach()).square().mean()

    judged = torch.randn((256, 64), generator=torch.Generator().manual_seed(0))
    losses = [float(loss(judged))]
    optimizer = optimizer_of(peer, run, model)
    offers, met = note_offers(optimizer), []
    peer.await_others("ready")
    deadline = time.monotonic() + 200
    while len(met) < exchanges and time.monotonic() < deadline:
        time.sleep(0.01 if peer.name == "first" else 0.02)
        loss(torch.randn((4, 64), generator=examples)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for report in optimizer.take_epoch_reports():
            if report.senders == 2:
                own = [parameter.detach().clone() for parameter in model.parameters()]
                after = {"after": host_weights(optimizer), "own": own, "report": report}
                met.append({**offers[report.epoch], **after})
                peer.await_others(f"exchange {len(met)}")
    losses.append(float(loss(judged)))
    return met, losses


def go_on_alone(peer: Peer):
    """Trains alone after it was found to be behind others, who are gone; the reports of the epochs that it does."""
    from training.swarm.state.alignment import Event

    model = model_of(seed=0)
    optimizer = optimizer_of(peer, run_with(target_batch_size=40), model)
    optimizer.alignment.note(Event.OVERTAKEN)
    reports = []
    deadline = time.monotonic() + 60
    while len(reports) < 2 and time.monotonic() < deadline:
        give_gradients(peer, model)
        optimizer.step()
        reports += optimizer.take_epoch_reports()
    return reports


def train_apart(peer: Peer):
    """Two peers of two lineages train side by side in one DHT; then the second goes over to the first one's.

    Each has the reports of its epochs; the second also what it could download before and after, as (whether, epoch),
    and its reports of averages with the first.
    """
    from training.swarm.run.lineage import Lineage

    own = Lineage(id={"first": "a" * 16, "second": "b" * 16}[peer.name])
    run = run_with(target_batch_size=40, max_epochs_alone=0)
    optimizer = optimizer_of(peer, run, model_of(seed=0), own)
    facts = {"apart": [], "downloads": [], "together": []}
    peer.await_others("ready")
    deadline = time.monotonic() + 100

    def step(reports):
        give_gradients(peer, optimizer.model)
        optimizer.step()
        facts[reports] += optimizer.take_epoch_reports()

    optimizer.model = torch.nn.ParameterList(optimizer.master.model_parameters)
    while len(facts["apart"]) < 3 and time.monotonic() < deadline:
        step("apart")
    if peer.name == "second":
        facts["downloads"].append(optimizer.load_state_from_peers(oldest_epoch=1))
        optimizer.shutdown()
        optimizer = optimizer_of(peer, run, model_of(seed=0), Lineage(id="a" * 16))
        optimizer.model = torch.nn.ParameterList(optimizer.master.model_parameters)
        facts["downloads"].append(optimizer.load_state_from_peers(oldest_epoch=1))
    while not any(report.senders == 2 for report in facts["together"]) and time.monotonic() < deadline:
        step("together")
    return facts


def doubt_the_others(peer: Peer, *, averages: int):
    """Trains until each peer had so many averages of all; the last one believes nothing of what the others tell, and is
    the slowest."""
    from training.swarm.peers.table import Peers

    class Doubts(Peers):
        def counted_samples(self, peer, reported):
            return 0.0

        def expected_samples(self, peer, reported):
            return 0.0

    def seconds_left_for_the_others(progress):
        reported = sum(progress.reports_of(progress._local.epoch).values())
        return 0.0 if reported > 0.7 * run.swarm.target_batch_size else LONG_SECONDS

    doubts = peer.name == peer.names[-1]
    run, model = run_with(target_batch_size=160, next_chunk_timeout_seconds=LONG_SECONDS), model_of(seed=0)
    optimizer = optimizer_of(peer, run, model)
    if doubts:
        optimizer.progress.peers = Doubts()
        # It looks for its group when the others do; else it would be in none, and nobody would wait for it.
        type(optimizer.progress).seconds_left = property(seconds_left_for_the_others)
    peer.await_others("ready")
    reports, deadline = [], time.monotonic() + 150
    done = {name: peer.folder / f"{name}.done" for name in peer.names}
    while time.monotonic() < deadline and not all(path.exists() for path in done.values()):
        give_gradients(peer, model)
        if doubts:
            time.sleep(0.3)
        optimizer.step()
        optimizer.zero_grad()
        reports += optimizer.take_epoch_reports()
        if sum(report.senders == len(peer.names) for report in reports) >= averages:
            done[peer.name].touch()
    return reports


def wait_alone(peer: Peer):
    """The first is alone for two epochs and waits; the second comes then, and both train until they have averaged.

    The first's epochs when it began to wait and some seconds later, with the samples that it kept, and its report of
    the average; the second's epoch when it came, and its report.
    """
    model = model_of(seed=0)
    waits = peer.folder / "waits"
    while peer.name == "second" and not waits.is_file():
        time.sleep(0.1)
    run = run_with(target_batch_size=40, max_epochs_alone=2)
    optimizer = optimizer_of(peer, run, model)
    facts = {"epoch": optimizer.local_epoch}
    if peer.name == "second":
        assert optimizer.load_state_from_peers()
        facts["epoch"] = optimizer.local_epoch
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        give_gradients(peer, model)
        optimizer.step()
        for report in optimizer.take_epoch_reports():
            if report.senders == 2:
                return facts, report
        if optimizer.waits_for_others:
            began = optimizer.local_epoch
            waits.touch()
            while optimizer.waits_for_others and time.monotonic() < deadline:
                optimizer.keep_waiting()
                time.sleep(0.2)
            facts |= {"epoch": began, "later": optimizer.local_epoch, "kept": optimizer.gradients.samples}
    return facts, None


def pause_a_while(peer: Peer):
    """Both train until they have averaged. Then the second pauses with samples, until the first has made two updates
    alone; then both train until they have averaged again.

    The reports of each; in addition the samples that the second held at its pause with the report that has them, and
    its epochs before and after it caught up; the first's reports of its updates alone.
    """
    run, model = run_with(target_batch_size=160, max_epochs_alone=0), model_of(seed=0)
    optimizer, reports, deadline = optimizer_of(peer, run, model), [], time.monotonic() + 250
    paused, alone = peer.folder / "paused", peer.folder / "alone"

    def train_until(is_met: Callable[[], bool]):
        while time.monotonic() < deadline and not is_met():
            give_gradients(peer, model)
            optimizer.step()
            optimizer.zero_grad()
            reports.extend(optimizer.take_epoch_reports())

    def rest_until(is_met: Callable[[], bool]):
        while time.monotonic() < deadline and not is_met():
            optimizer.rest()
            reports.extend(optimizer.take_epoch_reports())
            time.sleep(0.2)

    def averaged(since: int = 0) -> list:
        return [report for report in reports[since:] if report.senders == 2]

    peer.await_others("ready")
    train_until(averaged)
    facts = {}
    if peer.name == "second":
        while "pause" not in facts and time.monotonic() < deadline:
            train_until(lambda: optimizer.samples_held >= 8)
            held, before = optimizer.samples_held, len(reports)
            rest_until(lambda: not (optimizer.samples_held or optimizer.averages))
            if brought := averaged(before):  # on a busy machine the others may end the epoch without it
                facts["pause"] = held, brought
        paused.touch()
        rest_until(alone.exists)
        facts["epochs"] = [optimizer.local_epoch]
        optimizer.catch_up()
        facts["epochs"].append(optimizer.local_epoch)
    else:
        train_until(paused.exists)
        train_until(lambda: optimizer.progress.num_peers == 1)
        before = len(reports)
        train_until(lambda: sum(not report.others for report in reports[before:]) >= 2)
        facts["alone"] = [report for report in reports[before:] if not report.others]
        alone.touch()
    before = len(reports)
    train_until(lambda: averaged(before))
    return reports, facts, averaged(before)


def lose_one(peer: Peer, *, matchmaking_seconds: float):
    """All three train; the third is killed in the middle of an epoch. The reports of the others, until they have
    averaged without it.

    The windows of matchmaking are so long that waiting for it through all of them is seen.
    """
    run = run_with(target_batch_size=240, matchmaking_seconds=matchmaking_seconds)
    model = model_of(seed=0)
    optimizer = optimizer_of(peer, run, model)
    peer.await_others("ready")
    reports = []
    deadline = time.monotonic() + 150
    while not any(report.senders == 2 for report in reports) and time.monotonic() < deadline:
        give_gradients(peer, model)
        optimizer.step()
        reports += optimizer.take_epoch_reports()
        if peer.name == "third" and reports:
            averagers = (optimizer.gradients, optimizer.parameters)
            for process in (*(averager._process.pid for averager in averagers), peer.dht.pid, os.getpid()):
                os.kill(process, signal.SIGKILL)
    return reports


def train_beside_false_reports(peer: Peer, *, keys: int):
    """Trains until each has averaged with both others, and then for ten seconds beside false reports of progress.

    The third stores them in all nodes, under so many keys of its own: they say that the schedule is over.
    """
    from hivemind.utils.crypto import RSAPrivateKey

    run, model = run_with(target_batch_size=60), model_of(seed=0)
    optimizer = optimizer_of(peer, run, model)
    (peer.folder / f"{peer.name}.id").write_text(str(peer.dht.peer_id))
    # Before the others begin: twenty keys take seconds, and these would have ended an epoch by then.
    forged = [RSAPrivateKey() for _ in range(keys)] if peer.name == peer.names[-1] else []
    peer.await_others("ready")
    facts = {"epochs": [], "behind": False, "together": 0, "forged": 0}
    until, forged_at = time.monotonic() + 120, 0.0
    while time.monotonic() < until:
        give_gradients(peer, model)
        optimizer.step()
        facts["behind"] |= optimizer.alignment.behind
        facts["epochs"].append(optimizer.local_epoch)
        for report in optimizer.take_epoch_reports():
            is_attacked = all((peer.folder / f"{name}.met").exists() for name in peer.names)
            facts["together"] += is_attacked and report.senders == len(peer.names)
            if report.senders == len(peer.names) and not (peer.folder / f"{peer.name}.met").exists():
                (peer.folder / f"{peer.name}.met").touch()
        if all((peer.folder / f"{name}.met").exists() for name in peer.names):
            until = min(until, time.monotonic() + 15)
            if forged and time.monotonic() - forged_at >= 2:
                forged_at = time.monotonic()
                ids = [(peer.folder / f"{name}.id").read_text() for name in peer.names]
                store_false_progress(peer, optimizer.progress.key, forged, ids, epoch=run.schedule.total_epochs)
        found = peer.dht.get(optimizer.progress.key, latest=True)
        facts["forged"] = max(facts["forged"], len(found.value) - len(peer.names) if found is not None else 0)
    peer.await_others("done")
    facts["epochs"] = sorted(set(facts["epochs"]))
    optimizer.shutdown()
    return facts


def store_false_progress(peer: Peer, key: str, private_keys, peers, *, epoch: int) -> None:
    """Sends records of progress under these keys to the nodes of these peers."""
    from hivemind.dht.crypto import RSASignatureValidator
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID
    from hivemind.dht.validation import DHTRecord
    from hivemind.p2p import PeerID, ServicerBase
    from hivemind.proto import dht_pb2
    from hivemind.utils import get_dht_time
    from hivemind.utils.serializer import MSGPackSerializer

    from training.swarm.engine.coroutine import wait_for_result
    from training.swarm.engine.engine import open_connection
    from training.swarm.engine.ids import peer_id_of

    now, key_id, request = get_dht_time(), DHTID.generate(source=key).to_bytes(), dht_pb2.StoreRequest()
    for private_key in private_keys:
        signer = RSASignatureValidator(private_key)
        facts = {
            "peer_id": peer_id_of(signer.local_public_key).to_bytes(),
            "epoch": epoch,
            "samples_accumulated": 10**9,
            "step_samples": 1,
        }
        facts |= {"samples_per_second": 1e6, "time": now, "counted_at": now, "client_mode": False}
        value = MSGPackSerializer.dumps(facts)
        subkey = MSGPackSerializer.dumps(signer.local_public_key)
        request.keys.append(key_id)
        request.subkeys.append(subkey)
        request.values.append(signer.sign_value(DHTRecord(key_id, subkey, value, now + 30)))
        request.expiration_time.append(now + 30)
        request.in_cache.append(False)

    async def send() -> None:
        p2p = await open_connection(peer.dht)
        for one in peers:
            if one != str(peer.dht.peer_id):
                stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, PeerID.from_base58(one))
                await stub.rpc_store(request, timeout=10)
        await p2p.shutdown()

    wait_for_result(send())
