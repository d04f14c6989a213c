"""One of two or three peers that meet and average; `test_averaging.py` starts it as a process and reads what it wrote.

Usage: python pair.py FOLDER first|second|third MODE...
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from training.config import load_recipe
from training.processes.environment import prepare_environment
from training.processes.role import run_role

ROOT = Path(__file__).parents[3]
SIZES = {"eight_bit": (256, 256), "sixteen_bit": (100,), "scalar": ()}
SAMPLES = {"first": 8, "second": 24}
ALL_THREE = (*SAMPLES, "third")
THIRD_SAMPLES = 32
MBIT_PER_SECOND = {"first": 100.0, "second": 100.0, "third": 10.0}
"""What the link of each carries, as peers of the mode "not finite" declare it."""
DEATHS = ("death before a part", "death after a part")
IN_CLIENT_MODE = ("second", "death before a part")
"""One of the survivors accepts no connections there."""
BREAK = "a stream breaks"
PATIENCE_SECONDS = dict.fromkeys((*DEATHS, BREAK), 30.0)
"""For the next part of a tensor, by mode."""
LATE_REQUEST_SECONDS = 0.7
"""Unlike hivemind's 3 and the demo's."""
SETTINGS = {
    "heavy tails": {"gradient_codec": "blockwise8"},
    "equal weights": {"gradient_codec": "blockwise8"},
    "powersgd": {"powersgd_rank": 4},
    "train delayed": {"delay_gradient_averaging": True},
    "late": {"request_timeout_seconds": LATE_REQUEST_SECONDS},
    "diloco": {"mode": "diloco", "inner_batch_size": 8, "target_batch_size": 240, "average_state_every": 1000},
}
"""Of the swarm, by mode; in the other modes large tensors travel by hivemind's uniform codec."""


def meet(folder, mode, names=tuple(SAMPLES)):
    """Runs the peers, both unless named; (tensors, facts) of each that has lived."""
    (met,) = meet_often(folder, [mode], names).values()
    return list(met.values())


def meet_often(folder, modes, names=tuple(SAMPLES)):
    """The same for several rounds of the same peers, one after the other; by mode and name."""
    from torch import load

    peers = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), name, *modes],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]
    try:
        outputs = [peer.communicate(timeout=300)[0] for peer in peers]
    finally:
        for peer in peers:
            peer.kill()
    assert not any(peer.returncode for peer in peers if peer.returncode != -signal.SIGKILL), "\n".join(outputs)
    return {
        mode: {
            name: (load(path, weights_only=True), json.loads(path.with_suffix(".json").read_text()))
            for name in names
            if (path := folder / f"{name}-{number}.pt").is_file()
        }
        for number, mode in enumerate(modes)
    }


def relative_error(tensor, expected):
    return float((tensor - expected).norm() / expected.norm())


def main(folder: Path, name: str, modes: list[str], stop) -> None:
    import torch

    from training.swarm.dht import full_addresses, start_dht
    from training.swarm.identity import Identity

    torch.set_num_threads(1)
    run = load_recipe("demo")
    identity = Identity(folder / name)
    if name == "first":
        dht = start_dht(run, identity, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        (folder / "address.new").write_text(full_addresses(dht)[0])
        (folder / "address.new").rename(folder / "address")
    else:
        while not (folder / "address").is_file():
            time.sleep(0.1)
        address = (folder / "address").read_text()
        behind_nat = name == "second" and modes == ["late"]
        where = {"initial_peers": [address], "host_maddrs": ["/ip4/127.0.0.1/tcp/0"], "client_mode": behind_nat}
        dht = start_dht(run, identity, **where)
    work = {"train": train, "late": come_late, "equal weights": average_parameters, "overtaken": go_on_alone}
    work["diloco"] = train_locally
    for number, mode in enumerate(modes):
        if mode == "broken codec":
            break_codec()
        if name == "third" and mode in DEATHS:
            die_in_the_average(after_a_part=mode == "death after a part")
        if name == "third" and mode == BREAK:
            break_off_once()
        swarm = run.swarm.model_copy(update=SETTINGS.get(mode, {"gradient_codec": "uniform8"}))
        do = work.get(mode.removesuffix(" delayed"), partial(average_gradients, mode))
        tensors, facts = do(torch, run.model_copy(update={"swarm": swarm}), dht, identity, name, stop)
        (folder / f"{name}-{number}.json").write_text(json.dumps(facts))
        torch.save(tensors, folder / f"{name}-{number}.pt")
    (folder / f"{name}.json").touch()
    other = "second" if name == "first" else "first"
    while not (folder / f"{other}.json").is_file() and not stop.wait(0.1):  # the other may still need this one's node
        pass


def break_codec() -> None:
    """What numpy 2.4 does to hivemind 1.1.12: 8-bit tensors are written and cannot be read."""
    from hivemind.compression.quantization import Quantization

    def extract(self, serialized_tensor):
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

    Quantization.extract = extract


def die_in_the_average(*, after_a_part: bool) -> None:
    """This peer's processes end with its first one: as it is to send its parts, or when it has averaged one of all."""
    from training.swarm.allreduce import ReportingRunner

    first_process, aggregate = os.getpid(), ReportingRunner.rpc_aggregate_part

    def end():
        for process in (first_process, os.getpid()):
            os.kill(process, signal.SIGKILL)

    async def die(self, peer_id):
        end()

    async def answer_and_die(self, stream, context):
        async for message in aggregate(self, stream, context):
            yield message
            end()

    if after_a_part:
        ReportingRunner.rpc_aggregate_part = answer_and_die
    else:
        ReportingRunner._communicate_with_peer = die


def break_off_once() -> None:
    """In its first all-reduce this peer fails one of the others and has no word for the next; then all is well."""
    from training.swarm.allreduce import ReportingRunner

    aggregate, broken = ReportingRunner.rpc_aggregate_part, []

    async def break_off(self, stream, context):
        if self._prefix == BREAK and len(broken) < 2:
            broken.append(context.remote_id)
            if len(broken) == 1:
                raise RuntimeError("the stream breaks")
            await asyncio.sleep(PATIENCE_SECONDS[BREAK])
        async for message in aggregate(self, stream, context):
            yield message

    ReportingRunner.rpc_aggregate_part = break_off


def model_of(torch, seed):
    torch.manual_seed(seed)
    model = torch.nn.ParameterDict(
        {key: torch.nn.Parameter(torch.randn(shape) * 0.1 + 0.5) for key, shape in SIZES.items()}
    )
    return model


def gradients_of(torch, model, name):
    """This peer's own gradients, in the order of the parameters."""
    generator = torch.Generator().manual_seed(7 if name == "first" else 8)
    return [torch.randn(p.shape, generator=generator) + (1 if name == "first" else -2) for p in model.parameters()]


def faulty_gradients_of(torch, model, name):
    """The same; the second peer's scalar is not finite, and so is one of the third's many numbers."""
    gradients = gradients_of(torch, model, name)
    if name == "second":
        gradients[2].fill_(torch.inf)
    if name == "third":
        gradients[0][3, 5] = torch.nan
    return gradients


def trust_own_gradients() -> None:
    """What a peer with another program may do: it sends whatever it has."""
    from training.swarm.averaging import SwarmGradientAverager

    SwarmGradientAverager._leave_out_what_is_not_finite = lambda self: None


def heavy_gradients_of(torch, model, name):
    """The same with tails as Student's t with 3 degrees of freedom has them."""
    generator = torch.Generator().manual_seed(9 if name == "first" else 10)
    return [
        gradient / (torch.randn((3, *gradient.shape), generator=generator) ** 2).mean(0).sqrt()
        for gradient in gradients_of(torch, model, name)
    ]


def thin_gradients_of(torch, model, name):
    """The same, but matrices have rank 2."""
    return [
        gradient[:, :2] @ gradient[:2] if gradient.ndim == 2 else gradient
        for gradient in gradients_of(torch, model, name)
    ]


def average_gradients(mode, torch, run, dht, identity, name, stop):
    """One round of the gradients' averager alone: 8 samples here, 24 there."""
    from training.swarm.codecs import exchange_codec
    from training.swarm.powersgd import gradient_averager

    if name == "third" and mode == "not finite":
        trust_own_gradients()
    model = model_of(torch, seed=0)
    averager = gradient_averager(run.swarm.powersgd_rank)(
        list(model.parameters()),
        dht=dht,
        prefix=mode,
        start=True,
        min_matchmaking_time=5.0,
        request_timeout=2.0,
        next_chunk_timeout=PATIENCE_SECONDS.get(mode, 5.0),
        allreduce_timeout=60.0,
        compression=exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec),
        **({"part_size_bytes": 4096} if mode in PATIENCE_SECONDS else {}),  # so that each peer has several to average
        bandwidth=MBIT_PER_SECOND[name] if mode == "not finite" else None,
        client_mode=(name, mode) == IN_CLIENT_MODE,
    )
    stop.listen()
    averager.expected_group_size = 3 if mode in (*PATIENCE_SECONDS, "not finite") else 2
    made = {"heavy tails": heavy_gradients_of, "powersgd": thin_gradients_of, "not finite": faulty_gradients_of}
    make = made.get(mode, gradients_of)
    for parameter, gradient in zip(model.parameters(), make(torch, model, name), strict=True):
        parameter.grad.copy_(gradient)
    for _ in range(SAMPLES.get(name, THIRD_SAMPLES) // 8):
        averager.accumulate_grads_(batch_size=8)
    group = averager.step(timeout=40)
    with averager.get_tensors() as tensors:
        result = [tensor.clone() for tensor in tensors]
    report = group.report
    facts = {key: getattr(report, key) for key in report.__slots__}
    return result, {**facts, "peer_id": str(identity.peer_id)}


def average_parameters(torch, run, dht, identity, name, stop):
    """One round of the state averager in 8 bit, from the same weights as the other peer."""
    from training.optim.lamb import Lamb8bit
    from training.swarm.averaging import SwarmStateAverager
    from training.swarm.codecs import exchange_codec

    model = model_of(torch, seed=0)
    averager = SwarmStateAverager(
        dht=dht,
        prefix="pair",
        params=list(model.parameters()),
        optimizer=lambda groups: Lamb8bit(groups, lr=0.0),
        offload_optimizer=True,
        start=True,
        min_matchmaking_time=5.0,
        request_timeout=2.0,
        next_chunk_timeout=5.0,
        allreduce_timeout=20.0,
        compression=exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec),
    )
    stop.listen()
    averager.expected_group_size = 2
    averager.step(averaging_round=True, delay_averaging=False, averaging_opts={"timeout": 40})
    report = averager.reports.get(timeout=5)
    facts = {key: getattr(report, key) for key in report.__slots__}
    return [parameter.detach().clone() for parameter in model.parameters()], facts


def come_late(torch, run, dht, identity, name, stop):
    """As `train`; the second comes when the first has done some epochs, and more go by before it has its state.

    It accepts no connections. Each has the weights with which it ended each epoch, and tells what has come of the
    recipe's time for a request in both of its averagers.
    """
    from training.swarm import catching_up as module
    from training.swarm.early import EarlyDownload

    downloads, second_downloads, timeouts, early = [], [], [], None
    if name == "second":
        while not any(progress["epoch"] >= 2 for progress in progress_of_all(run, dht)):
            time.sleep(0.1)
        early = EarlyDownload(dht, run, shapes=[parameter.shape for parameter in model_of(torch, seed=1).parameters()])
        take = early.take

        def take_late():
            time.sleep(5)
            state = take()
            downloads.append(state.epoch)
            return state

        early.take = take_late
        module.download_newer_state = lambda *args, **kwargs: second_downloads.append(args)

    def begin(optimizer):
        averagers = (optimizer.grad_averager, optimizer.state_averager)
        timeouts.extend(averager.matchmaking_kwargs["request_timeout"] for averager in averagers)
        assert early is None or optimizer.load_state_from_peers(early)

    weights, wanted = {}, set()

    def watch(optimizer):
        if optimizer.state_averager.wants_weights:
            wanted.add(optimizer.local_epoch)
        parameters = (parameter for group in optimizer.opt.param_groups for parameter in group["params"])
        weights[optimizer.local_epoch] = [parameter.detach().clone() for parameter in parameters]

    _, reports = train(torch, run, dht, identity, name, stop, begin=begin, watch=watch, state_every=1_000_000)
    facts = {"downloads": downloads, "second downloads": len(second_downloads), "request timeouts": timeouts}
    return weights, {"reports": reports, "wanted weights": sorted(wanted), **facts}


def progress_of_all(run, dht):
    """What the peers have told of their epochs."""
    found = dht.get(f"{run.run_id}_progress", latest=True)
    return [entry.value for entry in found.value.values()] if found is not None else []


def await_both(name):
    """Until the other peer is ready to train as well."""
    folder = Path(sys.argv[1])
    (folder / f"{name}.ready").touch()
    while not all((folder / f"{peer}.ready").is_file() for peer in SAMPLES):
        time.sleep(0.05)


def train(torch, run, dht, identity, name, stop, *, begin=None, watch=None, state_every=1):
    """Trains with the run's optimizer, from other weights than the other peer, until three epochs were averaged.

    Both begin together, or as they are told. Who watches sees the optimizer after each step.
    """
    from training.swarm.build import build_swarm_optimizer

    swarm = run.swarm.model_copy(update={"target_batch_size": 120, "average_state_every": state_every})
    run = run.model_copy(update={"swarm": swarm})
    model = model_of(torch, seed=0 if name == "first" else 1)
    settings = {"micro_batch_size": 4, "client_mode": dht.client_mode}
    optimizer = build_swarm_optimizer(model, run, dht=dht, identity=identity, **settings)
    stop.listen()
    await_both(name) if begin is None else begin(optimizer)
    reports = []
    deadline = time.monotonic() + 200
    while sum(report.senders == 2 for report in reports) < 3 and time.monotonic() < deadline:
        time.sleep(0.1 if name == "first" else 0.2)  # of uneven speed
        for parameter, gradient in zip(model.parameters(), gradients_of(torch, model, name), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        if watch is not None:
            watch(optimizer)
        reports += optimizer.take_epoch_reports()
    optimizer.state_averager.step(wait_for_delayed_updates=True)
    facts = [{key: getattr(report, key) for key in report.__slots__} for report in reports]
    return [parameter.detach().clone() for parameter in model.parameters()], facts


def train_locally(torch, run, dht, identity, name, stop):
    """Three exchanges of the local-update mode: what was offered, and the common weights before and after."""
    from training.swarm.build import build_swarm_optimizer

    run = run.model_copy(update={"schedule": run.schedule.model_copy(update={"warmup_epochs": 0})})
    model = model_of(torch, seed=0)
    optimizer = build_swarm_optimizer(model, run, dht=dht, identity=identity, micro_batch_size=4)
    stop.listen()
    averager, offers, rounds, reports = optimizer.grad_averager, {}, [], []
    load = averager.load_accumulators_into_averager_

    def common(momentum=False):
        outer = [parameter for group in optimizer.opt.param_groups for parameter in group["params"]]
        return [(optimizer.opt.state[p]["momentum_buffer"] if momentum else p).detach().clone() for p in outer]

    def load_and_note():
        load()
        with averager.get_tensors() as distances:
            offered = [distance.clone() for distance in distances]
        offers[optimizer.local_epoch + 1] = {"offered": offered, "before": common(), "momentum": common(momentum=True)}

    averager.load_accumulators_into_averager_ = load_and_note
    await_both(name)
    deadline = time.monotonic() + 200
    while len(rounds) < 3 and time.monotonic() < deadline:
        time.sleep(0.1 if name == "first" else 0.2)  # of uneven speed
        for parameter, gradient in zip(model.parameters(), gradients_of(torch, model, name), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer.zero_grad()
        for report in optimizer.take_epoch_reports():
            reports.append(report)
            if report.senders == 2:
                own = [parameter.detach().clone() for parameter in model.parameters()]
                rounds.append({"epoch": report.epoch, "after": common(), "model": own, **offers[report.epoch]})
    return rounds, [{key: getattr(report, key) for key in report.__slots__} for report in reports]


def go_on_alone(torch, run, dht, identity, name, stop):
    """Trains alone after it was found to be behind others, who are gone; the epochs that it does."""
    from training.swarm.build import build_swarm_optimizer

    run = run.model_copy(update={"swarm": run.swarm.model_copy(update={"target_batch_size": 40})})
    model = model_of(torch, seed=0)
    optimizer = build_swarm_optimizer(model, run, dht=dht, identity=identity, micro_batch_size=4)
    stop.listen()
    optimizer._out_of_step = True
    reports = []
    deadline = time.monotonic() + 60
    while len(reports) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        for parameter, gradient in zip(model.parameters(), gradients_of(torch, model, name), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        reports += optimizer.take_epoch_reports()
    return [], [{key: getattr(report, key) for key in report.__slots__} for report in reports]


if __name__ == "__main__":
    prepare_environment()
    run_role(lambda stop: main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:], stop))
