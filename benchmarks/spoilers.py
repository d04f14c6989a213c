"""What one peer that spoils averages costs the honest ones: their throughput with it, over that without it.

    python benchmarks/spoilers.py --json benchmarks/results/spoilers.json      (about an hour)

Three honest peers train for `--seconds`, first by themselves, then beside a fourth that has one of the faults below
from its first average to its last. All are processes on this machine; computing is replaced by a sleep of 0.125 s per
sample, so that several such runs fit on it at once. Counted are the samples of the honest that have entered an average
with others. With `--only`, the file keeps what it has of other faults.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import record, result  # noqa: E402

HONEST = 3
SECONDS_A_SAMPLE, SECONDS_AN_EPOCH, MICRO_BATCH = 0.125, 8.0, 4
MATCHMAKING_SECONDS, REQUEST_SECONDS, CHUNK_SECONDS = 1.5, 1.0, 5.0
MATRICES = 4
"""Of 256 x 256 numbers: parts are sent to every other peer, and take no time on this machine."""
START_SECONDS, LEAVE_SECONDS = 120.0, 20.0
LONG_SECONDS = 10_000.0
SLOW_SECONDS = 4.0
BEGIN = "begin"
"""A file with this name beside the peers' folders tells all of them to begin to train."""


# -- faults, in the process of the peer that has them ------------------------------------------------------------------


def stand_still() -> None:
    """Sends nothing and answers nothing."""
    from training.swarm.allreduce import ReportingRunner

    async def nothing(self, peer_id):
        await asyncio.sleep(LONG_SECONDS)

    async def no_answer(self, stream, context):
        await asyncio.sleep(LONG_SECONDS)
        yield

    ReportingRunner._communicate_with_peer, ReportingRunner.rpc_aggregate_part = nothing, no_answer


def answer_slowly() -> None:
    """Sends each mean after four seconds, just before it would be given up."""
    from training.swarm.allreduce import ReportingRunner

    aggregate = ReportingRunner.rpc_aggregate_part

    async def slowly(self, stream, context):
        async for message in aggregate(self, stream, context):
            await asyncio.sleep(SLOW_SECONDS)
            yield message

    ReportingRunner.rpc_aggregate_part = slowly


def break_off() -> None:
    """Ends each of its streams after the first part."""
    from training.swarm.allreduce import ReportingRunner

    aggregate = ReportingRunner.rpc_aggregate_part

    async def one(self, stream, context):
        async for message in aggregate(self, stream, context):
            yield message
            raise RuntimeError("it breaks off")

    async def none(self, peer_id):
        raise RuntimeError("it breaks off")

    ReportingRunner.rpc_aggregate_part, ReportingRunner._communicate_with_peer = one, none


def send_other_shapes() -> None:
    """Sends parts that are too short."""
    from training.swarm.allreduce import ReportingRunner

    generate = ReportingRunner._generate_input_for_peer

    async def short(self, peer_index):
        from hivemind.compression import serialize_torch_tensor
        from torch import zeros

        async for message in generate(self, peer_index):
            message.tensor_part.CopyFrom(serialize_torch_tensor(zeros(3)))
            yield message

    ReportingRunner._generate_input_for_peer = short


def blame_all() -> None:
    """Says of each average that it has failed, and that all others are to blame."""
    from training.swarm.agreement import Verdict
    from training.swarm.allreduce import ReportingRunner

    def verdict(self, fault, **_):
        return Verdict(whole=False, faulty=frozenset(self.ordered_peer_ids) - {self.peer_id})

    ReportingRunner.verdict = verdict


def lead_nobody() -> None:
    """Accepts whoever asks it to lead, and says nothing more."""
    from hivemind.proto import averaging_pb2

    from training.swarm.matchmaking import PatientMatchmaking

    async def accept(self, request, context):
        yield averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)
        await asyncio.sleep(LONG_SECONDS)

    PatientMatchmaking.rpc_join_group = accept


def lie_as_leader() -> None:
    """Leads, and tells its groups that it is at epoch 1 000 000 000 and expects a million peers."""
    from training.swarm.gathering import Words
    from training.swarm.matchmaking import PatientMatchmaking

    assemble = PatientMatchmaking.leader_assemble_group

    async def lie(self):
        own = Words.read(self.step_control.data_for_gather)
        words = Words(mbits=own.mbits, mode=own.mode, told=[10**9, False, 10**6]).packed()
        object.__setattr__(self.step_control, "data_for_gather", words)
        return await assemble(self)

    PatientMatchmaking.leader_assemble_group = lie


def tell_each_another_story(named_alike: bool = False) -> None:
    """Leads, and tells each follower that another one accepts no connections, and so averages nothing.

    With `named_alike`, each follower gets a group whose id fits what it is told, signed.
    """
    from dataclasses import replace

    from hivemind.averaging.allreduce import AveragingMode
    from hivemind.p2p import PeerID

    from training.swarm.gathering import Words, name_of
    from training.swarm.matchmaking import PatientMatchmaking

    join = PatientMatchmaking.rpc_join_group

    async def lie(self, request, context):
        async for message in join(self, request, context):
            peers, gathered = [PeerID(peer) for peer in message.ordered_peer_ids], list(message.gathered)
            others = [one for one, peer in enumerate(peers) if peer not in (context.remote_id, self.peer_id)]
            if others:
                gathered[others[0]] = replace(Words.read(gathered[others[0]]), mode=AveragingMode.CLIENT).packed()
                message.gathered[:] = gathered
                if named_alike:
                    message.group_id = name_of(peers, gathered)
                    message.suggested_leader = self.signature_of(message.group_id)
            yield message

    PatientMatchmaking.rpc_join_group = lie


def put_each_into_another_group() -> None:
    """As `tell_each_another_story`, and each follower believes it."""
    tell_each_another_story(named_alike=True)


def talk_nonsense() -> None:
    """Tells its groups a bandwidth that is a word."""
    from hivemind.utils.serializer import MSGPackSerializer

    from training.swarm import averager
    from training.swarm.gathering import Words

    class Nonsense(Words):
        def packed(self) -> bytes:
            return MSGPackSerializer.dumps(["fast", self.mode.value, MSGPackSerializer.dumps(self.told)])

    averager.Words = Nonsense


def announce_for_ever() -> None:
    """Announces for hours that it looks for a group, and answers nobody who asks it to lead."""
    from training.swarm.matchmaking import PatientKeyManager, PatientMatchmaking

    declare = PatientKeyManager.declare_averager

    async def for_ever(self, group_key, peer_id, expiration_time, looking_for_group=True):
        return await declare(self, group_key, peer_id, expiration_time + LONG_SECONDS, True)

    async def silence(self, request, context):
        await asyncio.sleep(LONG_SECONDS)
        yield

    PatientKeyManager.declare_averager, PatientMatchmaking.rpc_join_group = for_ever, silence


def tell(**lies: float) -> None:
    """Tells the others more of its progress than is so."""
    from training.swarm.progress import Progress

    store = Progress._store

    def lie(self, record):
        store(self, record and {**record, **{what: record[what] + value for what, value in lies.items()}})

    Progress._store = lie


def tell_of_samples() -> None:
    """Has computed a billion samples, by its records."""
    tell(samples_accumulated=10**9)


def tell_of_speed() -> None:
    """Computes ten million samples a second, by its records."""
    tell(samples_per_second=9e6)


def tell_of_the_next_epoch() -> None:
    """Is always one epoch further than it is, by its records."""
    tell(epoch=1)


def tell_and_stay_away() -> None:
    """Has computed a billion samples of each epoch, by its records, and comes to no average."""
    from training.swarm.optimizer import SwarmOptimizer

    def report(self, *_, **__):
        self.progress.report(self.progress.global_epoch, 10**9)

    SwarmOptimizer.step = report


FAULTS: dict[str, Callable[[], None]] = {
    "stands still": stand_still,
    "answers slowly": answer_slowly,
    "breaks off": break_off,
    "sends parts of other shapes": send_other_shapes,
    "blames all others": blame_all,
    "leads nobody anywhere": lead_nobody,
    "lies as a leader": lie_as_leader,
    "tells each follower another story": tell_each_another_story,
    "puts each follower into another group": put_each_into_another_group,
    "talks nonsense": talk_nonsense,
    "announces for ever": announce_for_ever,
    "tells of samples that it has not": tell_of_samples,
    "tells of a speed that it has not": tell_of_speed,
    "tells of the next epoch": tell_of_the_next_epoch,
    "tells of samples and stays away": tell_and_stay_away,
}


# -- one peer ----------------------------------------------------------------------------------------------------------


def peer(folder: str, initial_peers: list[str], fault: str | None) -> None:
    """Trains until it is killed; prints a line of JSON for each epoch."""
    import torch

    from training.config import load_recipe
    from training.swarm.dht import start_dht
    from training.swarm.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer

    torch.set_num_threads(1)
    if fault is not None:
        FAULTS[fault]()
    demo = load_recipe("demo")
    swarm = demo.swarm.model_copy(
        update=dict(
            target_batch_size=int(SECONDS_AN_EPOCH / SECONDS_A_SAMPLE * HONEST),
            matchmaking_seconds=MATCHMAKING_SECONDS,
            request_timeout_seconds=REQUEST_SECONDS,
            next_chunk_timeout_seconds=CHUNK_SECONDS,
            max_epochs_alone=0,
        )
    )
    schedule = demo.schedule.model_copy(update=dict(total_epochs=1_000_000))
    run = demo.model_copy(update=dict(run_id="spoilers", swarm=swarm, schedule=schedule))
    identity = Identity(Path(folder))
    dht = start_dht(run, identity, initial_peers=initial_peers, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(256, 256)) for _ in range(MATRICES))
    optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=MICRO_BATCH)
    say(event="ready", addresses=[str(address) for address in dht.get_visible_maddrs()])
    noise = torch.randn(256, 256)
    while not Path(folder).with_name(BEGIN).exists():  # who began alone would be an epoch ahead
        time.sleep(0.1)
    while True:
        time.sleep(SECONDS_A_SAMPLE * MICRO_BATCH)
        for parameter in model:
            parameter.grad = noise
        optimizer.step()
        for report in optimizer.take_epoch_reports():
            counts = report.samples if report.senders > 1 else 0
            say(event="epoch", time=time.monotonic(), samples=counts, fault=report.fault, note=report.note)


def say(**facts: object) -> None:
    """A line of JSON for the program that started this one."""
    print(json.dumps(facts), flush=True)


# -- all of them -------------------------------------------------------------------------------------------------------


class Peer:
    """A peer's process and what it has said."""

    def __init__(self, folder: Path, name: str, initial_peers: list[str], fault: str | None = None):
        (folder / name).mkdir()
        given = json.dumps([str(folder / name), initial_peers, fault])
        self._log = folder / f"{name}.log"
        with self._log.open("w") as output, self._log.with_suffix(".err").open("w") as errors:
            command = [sys.executable, __file__, "--peer", given]
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)

    def said(self, event: str) -> list[dict]:
        """Its lines about one kind of event."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [facts for facts in map(json.loads, lines) if facts["event"] == event]

    def addresses(self) -> list[str]:
        """Waits until it is ready."""
        deadline = time.monotonic() + START_SECONDS
        while not (ready := self.said("ready")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"A peer did not start:\n{self._log.with_suffix('.err').read_text()[-3000:]}")
            time.sleep(0.1)
        return ready[0]["addresses"]

    def end(self) -> None:
        """Ends it and the processes that it has forked, which hold memory."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE_SECONDS)
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def measure(fault: str | None, seconds: float) -> dict[str, object]:
    """Samples per second of the honest peers, and what they say of the other."""
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            peers.append(Peer(folder, "honest-0", []))
            known = peers[0].addresses()
            peers += [Peer(folder, f"honest-{number}", known) for number in range(1, HONEST)]
            others = [Peer(folder, "spoiler", known, fault)] if fault is not None else []
            peers += others
            for one in peers:
                one.addresses()
            (folder / BEGIN).touch()
            began = time.monotonic()
            time.sleep(seconds)
            epochs = [epoch for one in peers[:HONEST] for epoch in one.said("epoch") if epoch["time"] >= began]
        finally:
            for one in peers:
                one.end()
    left_out = sum("is left out" in (epoch["note"] or "") for epoch in epochs)
    faults = sum(bool(epoch["fault"]) for epoch in epochs)
    return {"samples_per_second": sum(e["samples"] for e in epochs) / seconds, "left_out": left_out, "faults": faults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--at-once", type=int, default=3, help="runs at the same time")
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(*json.loads(arguments.peer))
        return
    with ThreadPoolExecutor(arguments.at_once) as pool:
        without, *beside = [pool.submit(measure, fault, arguments.seconds) for fault in (None, *arguments.only)]
        alone = without.result()["samples_per_second"]
        print(f"{'no fourth peer':30} {alone:6.2f} samples/s", flush=True)
        against, measured = {"peer": alone, "peer_name": "without a fourth peer"}, []
        for fault, run in zip(arguments.only, beside, strict=True):
            one = run.result()
            ours, told = one.pop("samples_per_second"), {"fault": fault, **one}
            left_out = f"left out {one['left_out']} times"
            print(f"{fault:30} {ours:6.2f} samples/s, {ours / alone:4.0%}; {left_out}", flush=True)
            measured.append(result(f"honest peers: beside one that {fault}", "samples/s", ours, **against, **told))
    if arguments.json:
        seconds = arguments.seconds
        if arguments.only != list(FAULTS) and arguments.json.is_file():
            before, again = json.loads(arguments.json.read_text(encoding="utf-8")), {one["metric"] for one in measured}
            measured = [one for one in before["results"] if one["metric"] not in again] + measured
            seconds = min(seconds, before["seconds"])
        versions = {name: importlib.metadata.version(name) for name in ("torch", "hivemind")}
        record(arguments.json, "spoilers", versions, measured, seconds=seconds)


if __name__ == "__main__":
    main()
