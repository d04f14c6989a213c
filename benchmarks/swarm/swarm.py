"""Throughput of swarms on slow links, with this project's trainer and with plain hivemind in the settings of 2021.

    python benchmarks/swarm/swarm.py --peers 2 3 4 --json benchmarks/results/swarm.json      (as root, Linux)

Each peer is a process in a network namespace of its own, with a link of `--rate` up and down (`tc tbf`). Computing is
replaced by a sleep of 0.125 s per sample, so that the peers do not compete for the machine. A peer contributes 48
samples to an epoch. The gradients of 20 million parameters are random numbers. All variants use the same 8-bit LAMB on
the host.

The ideal throughput is peers / 0.125 s. `--epoch-seconds 60` sets another computing time of an epoch. With `--speeds 1
2 4` peers have these relative speeds, and the table shows the share of samples of each. For the share of time spent
computing, the time by which a step exceeds the median step counts as waiting. Bytes are counted at the network
interface, with headers and all other traffic. They are compared with the least that an all-reduce in 8 bit must send, 2
(N - 1) / N bytes per parameter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from calculator.swarm.settings import LOCAL_MODES, SPARSE_STATES_EVERY

PARAMETERS, MATRIX = 20_000_000, (1000, 1000)
SECONDS_A_SAMPLE, SECONDS_AN_EPOCH, MICRO_BATCH = 0.125, 6.0, 4
MATCHMAKING_SECONDS, REQUEST_SECONDS = 1.5, 1.0
WARM_UP_EPOCHS = 2
NEWCOMER_PATIENCE_SECONDS = 150
"""A newcomer that has not contributed by then counts as infinitely late."""
LEAVE_SECONDS = 15
"""Time for a peer to leave: it may have to end an average, and then tells the others."""
EVEN_SHARE_TOLERANCE = 0.2
"""How far, relatively, a peer's share of a complete average may be from even if all peers have one speed."""
INTO_THE_AVERAGE_BYTES = 5_000_000
"""Bytes of an average that a peer has sent when it is killed; in total it would send 20 to 30 million."""
NEWCOMERS_STEPS = ("imported", "ready", "built", "began", "contributed")
"""Program loaded; node in the swarm; optimizer created; state downloaded; first samples computed."""
STACKS = {
    "2021": "hivemind with the settings of 2021",
    "ours": "ours, gradients awaited",
    "ours, delayed": "ours, gradients delayed",
    "ours, local": "ours, local updates",
    "ours, local, overlapped": "ours, local updates, overlapped",
    "ours, sparse": "ours, sparse updates",
    "ours, sparse, overlapped": "ours, sparse updates, overlapped",
}
OVERLAPPED = ", overlapped"
"""End of the name of a stack with `delay_outer_step`."""
MODES = {"ours, delayed": "delayed", "ours, local": "diloco", "ours, sparse": "sparse"}
MODES |= {stack: MODES[stack.removesuffix(OVERLAPPED)] for stack in STACKS if stack.endswith(OVERLAPPED)}
COMPARED = ("2021", "ours", "ours, delayed")
"""The default of --stacks."""


# -- one peer, in a process of its own -------------------------------------------------------------------------------


def _model():
    import torch

    return torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(MATRIX)) for _ in range(PARAMETERS // 1_000_000))


def _run(stack: str, peers: float, epoch_seconds: float):
    from training.recipe import load_recipe

    demo, mode = load_recipe("demo"), MODES.get(stack, "synchronous")
    swarm = demo.swarm.model_copy(
        update=dict(
            target_batch_size=int(epoch_seconds / SECONDS_A_SAMPLE * peers),
            matchmaking_seconds=MATCHMAKING_SECONDS,
            allreduce_timeout_seconds=60.0,
            next_chunk_timeout_seconds=10.0,
            average_state_every=SPARSE_STATES_EVERY if mode == "sparse" else 25,
            mode=mode,
            delay_outer_step=stack.endswith(OVERLAPPED),
        )
    )
    schedule = demo.schedule.model_copy(update=dict(total_epochs=1_000_000))
    return demo.model_copy(update=dict(run_id="bench", swarm=swarm, schedule=schedule))


def _optimizer_2021(model, run, dht, peers: int):
    """The optimizer of the 2021 trainer (dalle-hivemind, task.py), except for the length of the matchmaking."""
    import hivemind
    from hivemind.compression import Float16Compression, SizeAdaptiveCompression, Uniform8BitQuantization
    from hivemind.optim.grad_averager import GradientAverager

    from training.optim.build import build_optimizer
    from training.optim.groups import parameter_groups

    codec = SizeAdaptiveCompression(
        threshold=2**16 + 1, less=Float16Compression(), greater_equal=Uniform8BitQuantization()
    )
    return hivemind.Optimizer(
        dht=dht,
        run_id=run.run_id,
        target_batch_size=run.swarm.target_batch_size,
        batch_size_per_step=MICRO_BATCH,
        params=parameter_groups(model, run.optimizer),
        optimizer=partial(build_optimizer, run.optimizer, lr=1e-4),
        matchmaking_time=MATCHMAKING_SECONDS,
        averaging_timeout=90.0,
        allreduce_timeout=60.0,
        next_chunk_timeout=10.0,
        offload_optimizer=True,
        delay_optimizer_step=True,
        client_mode=False,
        grad_compression=codec,
        state_averaging_compression=codec,
        grad_averager_factory=partial(GradientAverager, request_timeout=REQUEST_SECONDS),
        averager_opts={"request_timeout": REQUEST_SECONDS},
    )


def bytes_sent() -> int:
    """Bytes sent by all interfaces of this network namespace except the loopback."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if line.split(":")[0].strip() != "lo")


def peer(
    stack: str,
    peers: float,
    address: str,
    initial_peers: list[str],
    folder: str,
    late: bool,
    speed: float,
    epoch_seconds: float,
    stop,
) -> None:
    """Trains until it is asked to stop; prints a line of JSON for each event. A late peer downloads the state first."""
    import hivemind
    import torch

    from training.swarm.node.dht import start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer

    say(event="imported", time=time.monotonic())
    torch.set_num_threads(1)
    torch.manual_seed(int(address.rsplit(".", 1)[1]))
    run, identity = _run(stack, peers, epoch_seconds), Identity(Path(folder))
    where = dict(initial_peers=initial_peers, host_maddrs=[f"/ip4/{address}/tcp/0"])
    dht = hivemind.DHT(start=True, **where) if stack == "2021" else start_dht(run, identity, **where)
    say(event="ready", time=time.monotonic(), addresses=[str(a) for a in dht.get_visible_maddrs()])
    model = _model()
    if stack == "2021":
        optimizer = _optimizer_2021(model, run, dht, peers)
    else:
        optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=MICRO_BATCH)
    say(event="built", time=time.monotonic())
    stop.listen()
    while late and not optimizer.local_epoch:
        optimizer.load_state_from_peers()
    _train(stack, model, optimizer, speed, stop)
    if stack != "2021":
        optimizer.say_goodbye()


def _train(stack: str, model, optimizer, speed: float, stop) -> None:
    """Computes (sleeps) and calls the optimizer; prints a line when an epoch ends."""
    import torch

    noise = [torch.randn(MATRIX) for _ in range(2)]
    epoch, contributed, steps = optimizer.local_epoch, False, []
    say(event="began", time=time.monotonic(), bytes_sent=bytes_sent())
    while not stop.asked:
        time.sleep(SECONDS_A_SAMPLE * MICRO_BATCH / speed)
        with torch.no_grad():
            for number, parameter in enumerate(model):
                parameter.grad = noise[number % 2]
        began = time.monotonic()
        optimizer.step()
        steps.append((time.monotonic() - began, optimizer.local_epoch != epoch))
        if not contributed and _samples_added_up(optimizer):
            contributed = True
            say(event="contributed", time=time.monotonic(), epoch=optimizer.local_epoch)
        if optimizer.local_epoch != epoch:
            epoch = optimizer.local_epoch
            said = {"time": time.monotonic(), "bytes_sent": bytes_sent()}
            say(event="epoch", epoch=epoch, **said, waited=waited(steps, ends_alone=MODES.get(stack) in LOCAL_MODES))
        if stack != "2021":
            _say_reports(optimizer)


def _say_reports(optimizer) -> None:
    for report in optimizer.take_epoch_reports():
        facts = {"senders": report.senders, "own_share": report.own_share, "fault": report.fault}
        facts["samples"] = report.samples
        facts |= {"time": time.monotonic(), "averaging_seconds": report.averaging_seconds}
        say(event="report", epoch=report.epoch, alone=report.alone, missed=report.missed, **facts)


def _samples_added_up(optimizer) -> int:
    """Samples that the peer has contributed to the current epoch, with hivemind's optimizer or ours."""
    averager = getattr(optimizer, "gradients", None)
    return averager.samples if averager is not None else optimizer.grad_averager.local_samples_accumulated


def waited(steps: list[tuple[float, bool]], *, ends_alone: bool) -> float:
    """Seconds by which steps took longer than the median step.

    Args:
        steps: Seconds of each step, and whether it ended an epoch.
        ends_alone: Count only steps that ended an epoch: with local updates, others may be long because they update
            the peer's own weights, which is computing and not waiting.
    """
    usual = statistics.median(seconds for seconds, _ in steps)
    return sum(max(0.0, seconds - usual) for seconds, ended in steps if ended or not ends_alone)


def say(**facts: object) -> None:
    """A line of JSON for the program that started this one."""
    print(json.dumps(facts), flush=True)


# -- the network ------------------------------------------------------------------------------------------------------


def sh(*command: str, check: bool = True) -> None:
    """Runs a command of iproute2; ends the program if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(
            f"This failed: {' '.join(command)}\n{done.stderr.strip()}\nRun the program as root, with iproute2."
        )


_NETWORKS = itertools.count()
"""Makes their names differ: the namespace of an earlier network lasts until its last process has ended."""


@contextmanager
def network(hosts: int, rate: str) -> Iterator[list[tuple[str, str]]]:
    """Namespaces that a bridge connects, each with a link of `rate` up and down; yields their names and addresses."""
    bridge = f"tt{os.getpid() % 10_000}{next(_NETWORKS)}"
    names = [f"{bridge}n{number}" for number in range(hosts)]
    shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
    try:
        sh("ip", "link", "add", bridge, "type", "bridge")
        sh("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names):
            # tc limits what an interface sends, so the link needs it at both ends: one for each direction.
            outside = f"{bridge}v{number}"
            sh("ip", "netns", "add", name)
            sh("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            sh("ip", "link", "set", outside, "master", bridge, "up")
            sh("ip", "-n", name, "addr", "add", f"10.213.7.{number + 1}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
            sh("tc", "qdisc", "add", "dev", outside, *shape)
        yield [(name, f"10.213.7.{number + 1}") for number, name in enumerate(names)]
    finally:
        for name in names:
            sh("ip", "netns", "del", name, check=False)
        sh("ip", "link", "del", bridge, check=False)


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Context in which a number of programs compute without end, at the niceness of this one."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for one in started:
            one.kill()


class Peer:
    """A peer's process and the lines that it has printed."""

    def __init__(
        self,
        host: tuple[str, str],
        stack: str,
        peers: float,
        initial_peers: list[str],
        folder: Path,
        *,
        late: bool = False,
        speed: float = 1.0,
        epoch_seconds: float = SECONDS_AN_EPOCH,
    ):
        namespace, address = host
        self.namespace = namespace
        given = json.dumps([stack, peers, address, initial_peers, str(folder / namespace), late, speed, epoch_seconds])
        self.log = folder / f"{namespace}.log"
        self._errors = self.log.with_suffix(".err").open("w")
        self._output = self.log.open("w")
        command = ["ip", "netns", "exec", namespace, sys.executable, __file__, "--peer", given]
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self._output, stderr=self._errors, start_new_session=True)

    def sent_bytes(self) -> int:
        """Bytes that the peer's namespace has sent so far, counted at the bridge."""
        bridge, number = self.namespace.rsplit("n", 1)
        return int(Path(f"/sys/class/net/{bridge}v{number}/statistics/rx_bytes").read_text(encoding="ascii"))

    def said(self, event: str) -> list[dict]:
        """The lines that the peer has printed about one kind of event."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [fact for fact in facts if fact["event"] == event]

    def await_said(self, event: str, timeout: float, enough: Callable[[list], bool] = bool) -> list[dict]:
        """Waits until the peer has printed enough lines about an event; returns them."""
        deadline = time.monotonic() + timeout
        while not enough(found := self.said(event)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                errors = self.log.with_suffix(".err").read_text(encoding="utf-8")
                raise SystemExit(
                    f"A peer has ended or taken too long before its event {event!r}. Its errors:\n{errors[-3000:]}"
                )
            time.sleep(0.1)
        return found

    def leave(self) -> None:
        """Asks the process to end after its current step, and ends it if it does not."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE_SECONDS)
        self.end()

    def end(self) -> None:
        """Ends the process and all processes that it has started."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, kind)
                self.process.wait(3)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def after_a_death(running: list[Peer]) -> dict:
    """Kills the last peer in the middle of an average; the time until the others have a complete average again."""
    *others, victim = running
    last = others[0].said("epoch")[-1]["epoch"]
    others[0].await_said("epoch", 60, lambda said: said[-1]["epoch"] > last)
    sent_before, patience = victim.sent_bytes(), time.monotonic() + 60
    while victim.sent_bytes() < sent_before + INTO_THE_AVERAGE_BYTES and time.monotonic() < patience:
        time.sleep(0.01)
    killed = time.monotonic()
    os.killpg(victim.process.pid, signal.SIGKILL)

    def whole(said: list[dict]) -> list[dict]:
        return [
            fact
            for fact in said
            if fact["time"] > killed
            and fact["senders"] == len(others)
            and abs(fact["own_share"] * len(others) - 1) < EVEN_SHARE_TOLERANCE
        ]

    seconds, torn = [], []
    for one in others:
        one.await_said("report", 120, whole)
        first = whole(one.said("report"))[0]
        seconds.append(first["time"] - killed)
        torn += [fact for fact in one.said("report") if killed < fact["time"] < first["time"]]
    return {
        "seconds_to_a_whole_update_after_a_death": max(seconds),
        "torn_updates": len(torn),
        "own_share_in_torn_updates": max((fact["own_share"] for fact in torn), default=None),
    }


def swarm(
    stack: str,
    speeds: list[float],
    rate: str,
    epochs: int,
    *,
    newcomers: int,
    death: bool,
    epoch_seconds: float,
    warm_up: int,
) -> dict:
    """Runs one swarm: seconds per epoch, bytes, shares of samples, newcomers' times, and the cost of a death."""
    peers, whole = len(speeds), sum(speeds)
    folder = Path(tempfile.mkdtemp(prefix="swarm-"))
    running: list[Peer] = []
    try:
        with network(peers + newcomers, rate) as hosts:
            known: list[str] = []
            for number in range(peers):
                speed = {"speed": speeds[number], "epoch_seconds": epoch_seconds}
                running.append(Peer(hosts[number], stack, whole, known, folder, **speed))
                known = known or running[0].await_said("ready", 60)[0]["addresses"][:1]
            last = warm_up + epochs

            def far_enough(said: list[dict]) -> bool:
                return bool(said) and said[-1]["epoch"] >= last

            for one in running:
                one.await_said("epoch", 120 + (30 + 2 * epoch_seconds) * last, far_enough)
            facts = _facts(running, speeds, epoch_seconds, warm_up)
            for host in hosts[peers:]:
                late = Peer(host, stack, whole, known, folder, late=True, epoch_seconds=epoch_seconds)
                running.append(late)
                deadline = late.started + NEWCOMER_PATIENCE_SECONDS
                while not (said := late.said("contributed")) and time.monotonic() < deadline:
                    time.sleep(0.5)
                facts["newcomer_seconds"].append(said[0]["time"] - late.started if said else math.inf)
                facts["newcomer_steps"].append(
                    {event: fact[0]["time"] - late.started for event in NEWCOMERS_STEPS if (fact := late.said(event))}
                )
                late.leave()
            if death and stack != "2021":
                facts |= after_a_death(running[:peers])
            return facts
    finally:
        for one in running:
            one.end()
        shutil.rmtree(folder, ignore_errors=True)


def _facts(running: list[Peer], speeds: list[float], epoch_seconds: float, warm_up: int) -> dict:
    """The figures of a swarm, from the epochs after the warm-up."""
    seconds, sent, alone, reports, shares, peers = [], [], 0, 0, [], len(speeds)
    given, computing = [], []
    for one in running:
        beginning = [{**fact, "epoch": 0, "waited": 0.0} for fact in one.said("began")]
        epochs = [fact for fact in beginning + one.said("epoch") if fact["epoch"] >= warm_up]
        steps = epochs[-1]["epoch"] - epochs[0]["epoch"]
        seconds.append((epochs[-1]["time"] - epochs[0]["time"]) / steps)
        sent.append((epochs[-1]["bytes_sent"] - epochs[0]["bytes_sent"]) / steps)
        idle = (epochs[-1]["waited"] - epochs[0]["waited"]) / (epochs[-1]["time"] - epochs[0]["time"])
        computing.append(1 - idle)
        told = [fact for fact in one.said("report") if fact["epoch"] > warm_up]
        alone += sum(fact["alone"] or fact["missed"] for fact in told)
        reports += len(told)
        shares += [fact["own_share"] for fact in told if fact["own_share"] is not None]
        given.append(sum(fact["samples"] for fact in told))
    over_speed = []
    if len(set(speeds)) > 1 and all(given):
        pairs = zip(given, speeds, strict=True)
        over_speed = [(samples / sum(given)) / (speed / sum(speeds)) for samples, speed in pairs]
    least = 2 * (peers - 1) / peers * PARAMETERS
    return {
        "seconds_an_epoch": statistics.mean(seconds),
        "throughput_over_ideal": epoch_seconds / statistics.mean(seconds),
        "computing_share": statistics.mean(computing),
        "bytes_a_sample": statistics.mean(sent) / (epoch_seconds / SECONDS_A_SAMPLE),
        "sent_over_least": statistics.mean(sent) / least,
        "not_averaged": alone / reports if reports else None,
        "own_share": statistics.median(shares) if shares else None,
        "samples_over_speed": over_speed or None,
        "newcomer_seconds": [],
        "newcomer_steps": [],
    }


def _flags(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 3, 4], metavar="N", help="sizes of the swarm")
    parser.add_argument("--stacks", nargs="+", choices=STACKS, default=list(COMPARED), help="what to compare")
    parser.add_argument("--rate", default="100mbit", help="rate of each link, up and down, in tc's notation")
    parser.add_argument("--epochs", type=int, default=10, metavar="N", help="measured epochs, after the warm-up")
    parser.add_argument(
        "--warm-up", type=int, default=WARM_UP_EPOCHS, metavar="N", help="first epochs, which are not measured"
    )
    parser.add_argument(
        "--epoch-seconds", type=float, default=SECONDS_AN_EPOCH, metavar="S", help="computing time of an epoch"
    )
    parser.add_argument(
        "--speeds",
        type=float,
        nargs="+",
        metavar="X",
        help="relative speeds of the peers of one swarm, instead of --peers",
    )
    parser.add_argument(
        "--newcomers", type=int, default=1, metavar="N", help="peers that join later, one after the other (1)"
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="programs that only compute beside the swarm (0)"
    )
    parser.add_argument("--death", action="store_true", help="kill a peer in the middle of an average at the end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _print_row(stack: str, facts: dict, *, peers: int) -> None:
    alone = "" if facts["not_averaged"] is None else f"{facts['not_averaged']:.1%}"
    late = f"{statistics.median(facts['newcomer_seconds']):.1f} s" if facts["newcomer_seconds"] else ""
    print(
        f"{STACKS[stack]:<36}{peers:>6}{facts['seconds_an_epoch']:>9.2f}{facts['throughput_over_ideal']:>10.2f}"
        f"{facts['computing_share']:>11.3f}{facts['sent_over_least']:>8.2f}{alone:>8}{late:>10}",
        flush=True,
    )
    for told in facts["newcomer_steps"]:
        steps = ", ".join(f"{event} {seconds:.1f} s" for event, seconds in told.items())
        print(f"    a newcomer, seconds after its start: {steps}", flush=True)
    if facts["samples_over_speed"]:
        shares = ", ".join(f"{share:.2f}" for share in facts["samples_over_speed"])
        print(f"    each peer's share of the samples, divided by its share of the speed: {shares}", flush=True)
    if "torn_updates" in facts:
        torn = f"; incomplete updates before: {facts['torn_updates']}"
        if facts["torn_updates"]:
            torn += f", own share up to {facts['own_share_in_torn_updates']:.2f}"
        seconds = facts["seconds_to_a_whole_update_after_a_death"]
        print(f"    after a death in the middle of an average: complete update after {seconds:.1f} s{torn}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; writes the JSON if asked."""
    flags = _flags(arguments)
    if flags.peer:
        from training.processes.environment import prepare_environment
        from training.processes.role import run_role

        prepare_environment()
        run_role(partial(peer, *json.loads(flags.peer)))
    results = []
    print(
        f"{'':<36}{'peers':>6}{'s/epoch':>9}{'of ideal':>10}{'computing':>11}{'bytes':>8}{'alone':>8}{'newcomer':>10}"
    )
    for speeds in [flags.speeds] if flags.speeds else [[1.0] * peers for peers in flags.peers]:
        found, peers = {}, len(speeds)
        for stack in flags.stacks:
            with busy(flags.busy):
                found[stack] = facts = swarm(
                    stack,
                    speeds,
                    flags.rate,
                    flags.epochs,
                    newcomers=flags.newcomers,
                    death=flags.death,
                    epoch_seconds=flags.epoch_seconds,
                    warm_up=flags.warm_up,
                )
            _print_row(stack, facts, peers=peers)
        results += _entries(found, _swarm_name(speeds))
    if flags.json:
        from importlib.metadata import version

        versions = {name: version(name) for name in ("torch", "hivemind")}
        link = {"rate": flags.rate, "parameters": PARAMETERS, "epochs": flags.epochs}
        link |= {"epoch_seconds": flags.epoch_seconds, "busy": flags.busy}
        record(flags.json, "swarm", versions, results, link=link)


UNITS = {
    "seconds_an_epoch": "s",
    "throughput_over_ideal": "",
    "computing_share": "",
    "bytes_a_sample": "bytes",
    "sent_over_least": "",
    "not_averaged": "",
    "newcomer_seconds": "s",
    "seconds_to_a_whole_update_after_a_death": "s",
    "torn_updates": "",
    "own_share_in_torn_updates": "",
}


def _swarm_name(speeds: list[float]) -> str:
    uneven = f" of speeds {', '.join(f'{speed:g}' for speed in speeds)}" if len(set(speeds)) > 1 else ""
    return f"{len(speeds)} peers{uneven}"


def _entries(found: dict[str, dict], swarm_name: str) -> list[dict]:
    """Results of the record: each figure of each stack, compared with plain hivemind."""
    entries = []
    theirs = found.get("2021", {})
    for stack, facts in found.items():
        if stack == "2021" and len(found) > 1:
            continue
        for name, unit in UNITS.items():
            ours, theirs_too = _values(facts.get(name)), _values(theirs.get(name))
            if not ours:
                continue
            other = {"peer": statistics.median(theirs_too), "peer_name": STACKS["2021"]} if theirs_too else {}
            words = f"{swarm_name}, {STACKS[stack]}: {name.replace('_', ' ')}"
            runs = {"runs": len(ours), "min": min(ours), "max": max(ours)}
            entries.append(result(words, unit, statistics.median(ours), **runs, **other))
        if shares := facts["samples_over_speed"]:
            words = f"{swarm_name}, {STACKS[stack]}: share of samples over share of speed"
            entries.append(
                result(words, "", statistics.median(shares), runs=len(shares), min=min(shares), max=max(shares))
            )
    return entries


def _values(measured: float | list[float] | None) -> list[float]:
    """The values as a list; empty if one is infinite, because JSON has no infinity."""
    values = [] if measured is None else measured if isinstance(measured, list) else [measured]
    return values if all(map(math.isfinite, values)) else []


if __name__ == "__main__":
    main()
