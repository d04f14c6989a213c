"""What checks of reducers cost where nobody lies, and after how many averages a reducer that always lies is named.

    python benchmarks/attacks/audits.py --json benchmarks/results/audits.json      (about 15 minutes)

Four peers, each a process of its own with its own node, average `--values` numbers again and again, by CenteredClip and
in 8 bit. First nobody lies: half of the runs are with checks and half without, and in one run most answers are checked.
Then one of them answers all the others wrongly in each average, or only one of them, until each of the honest has named
it. With `--only`, the file keeps what it has of the others.

CPU seconds are those of an averager's process; on a busy machine they say more than the time that an average takes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result

PEERS = 4
SHARE = 0.03
"""Of the traffic; the default of recipes."""
NOISE, LIE = 0.5, 0.1
"""What each peer's numbers have beside what all have in common, and what a false answer is off by everywhere."""
START_SECONDS, RUN_SECONDS = 120.0, 400.0
MOST_ROUNDS = 200
LARGE_SHARE = 2.0
"""Each answer is checked with a chance of 2/3."""
LIE_VALUES = 500_000
"""Averaged beside a reducer that lies. How soon it is named depends on the number of parts, 32 here as well."""
LIES = ("all", "one")


# -- one peer ----------------------------------------------------------------------------------------------------------


def peer(folder: str, initial_peers: list[str], number: int, values: int, share: float, rounds: int, lie: str) -> None:
    """Averages until it is killed, or so many times; prints a line of JSON for each average."""
    import torch

    from training.recipe import load_recipe
    from training.swarm.defence import auditing, auditor
    from training.swarm.defence.clipping import clipping_of_gradients
    from training.swarm.defence.options import make_auditor
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.node.dht import start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.round.averager import Averager
    from training.swarm.round.pipe import AveragerSettings

    torch.set_num_threads(1)
    run = load_recipe("demo")
    swarm = run.swarm.model_copy(update={"aggregation": "centered-clip"})
    identity = Identity(Path(folder))
    dht = start_dht(run, identity, initial_peers=initial_peers, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    clipping = clipping_of_gradients(swarm)
    settings = AveragerSettings(
        prefix="audits",
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=30.0,
        allreduce_timeout_seconds=120.0,
        compression=exchange_codec(1024, "blockwise8"),
        reduction=clipping,
        guard=partial(make_auditor, share=share, clipping=clipping) if share else None,
    )
    if lie and number == PEERS - 1:
        answer_wrongly(lie)
    log = Path(folder) / "checks"
    log.touch()
    note_checks(auditing, auditor, log)
    averager = Averager([torch.zeros(values)], dht=dht, settings=settings)
    caught: list[str] = []
    averager.note_caught = lambda peer_id, weight, deed: caught.append(peer_id)
    common, generator = torch.randn(values, generator=torch.Generator().manual_seed(1)), torch.Generator()
    say(event="ready", addresses=[str(address) for address in dht.get_visible_maddrs()], peer=str(identity.peer_id))
    for count in range(rounds):
        with averager.get_tensors() as (tensor,):
            tensor.copy_(common + NOISE * torch.randn(values, generator=generator.manual_seed(PEERS * count + number)))
        before = cpu_seconds(averager._process.pid)
        round_ = averager.begin_round([0, False, 0], seconds=60, expected_peers=PEERS)
        round_.start(1.0)
        try:
            report = round_.result(120).report
        except Exception as error:
            say(event="failed", why=str(error))
            continue
        time.sleep(0.2)  # checks go on in the background
        cpu = cpu_seconds(averager._process.pid) - before
        facts = {"senders": report.senders, "seconds": report.seconds, "bytes": report.bytes_sent, "cpu": cpu}
        say(event="round", caught=caught, peak_kib=peak_kib(averager._process.pid), **facts)
    say(event="over", checks=[json.loads(line) for line in log.read_text().splitlines()])
    time.sleep(RUN_SECONDS)


def answer_wrongly(lie: str) -> None:
    """All senders, or the first one alone, get another average."""
    from training.swarm.round.reducer import Reducer

    take = Reducer.take

    async def wrongly(self, sender, part, weight):
        update = await take(self, sender, part, weight)
        return update + LIE if lie == "all" or sender == self._senders[0] else update

    Reducer.take = wrongly


def note_checks(auditing: object, auditor: object, log: Path) -> None:
    """A line for each answer that is checked, and for each part that is shown."""
    distance_of, show = auditing.distance_of, auditor.Auditor._show

    def noting(case, clipping):
        distance, most = distance_of(case, clipping)
        with log.open("a") as file:
            file.write(json.dumps({"of_limit": distance / most if most else 0.0}) + "\n")
        return distance, most

    async def showing(self, request, peer):
        async for message in show(self, request, peer):
            with log.open("a") as file:
                file.write(json.dumps({"shown_bytes": message.ByteSize()}) + "\n")
            yield message

    auditing.distance_of, auditor.Auditor._show = noting, showing


def cpu_seconds(pid: int) -> float:
    """Of a process, its threads included (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_kib(pid: int) -> int:
    """Most memory that the process has had (proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def say(**facts: object) -> None:
    """A line of JSON for the program that started this one."""
    print(json.dumps(facts), flush=True)


# -- all of them -------------------------------------------------------------------------------------------------------


class Peer:
    """A peer's process and what it has said."""

    def __init__(self, folder: Path, initial_peers: list[str], number: int, **given: object):
        (folder / str(number)).mkdir()
        self._log = folder / f"{number}.log"
        facts = json.dumps(
            {"folder": str(folder / str(number)), "initial_peers": initial_peers, "number": number} | given
        )
        with self._log.open("w") as output, self._log.with_suffix(".err").open("w") as errors:
            command = [sys.executable, __file__, "--peer", facts]
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)

    def said(self, event: str) -> list[dict]:
        """Its lines about one kind of event."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [facts for facts in map(json.loads, lines) if facts["event"] == event]

    def ready(self) -> dict:
        """Waits until it is."""
        deadline = time.monotonic() + START_SECONDS
        while not (ready := self.said("ready")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"A peer did not start:\n{self._log.with_suffix('.err').read_text()[-3000:]}")
            time.sleep(0.1)
        return ready[0]

    def end(self) -> None:
        """Ends it and the processes that it has forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run(*, values: int, share: float, rounds: int, lie: str = "") -> list[Peer]:
    """What all peers have said, when each has averaged so often, or each honest one has named the liar."""
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory() as name:
        given = {"values": values, "share": share, "rounds": rounds, "lie": lie}
        try:
            peers.append(Peer(Path(name), [], 0, **given))
            known = peers[0].ready()["addresses"]
            peers += [Peer(Path(name), known, number, **given) for number in range(1, PEERS)]
            ids = [one.ready()["peer"] for one in peers]
            deadline = time.monotonic() + RUN_SECONDS
            while time.monotonic() < deadline and not is_over(peers, ids, lie):
                time.sleep(0.2)
            return [{event: one.said(event) for event in ("round", "over", "failed")} | {"ids": ids} for one in peers]
        finally:
            for one in peers:
                one.end()


def is_over(peers: list[Peer], ids: list[str], lie: str) -> bool:
    """Whether all peers have done what they should."""
    if not lie:
        return all(one.said("over") for one in peers)
    return all((said := one.said("round")) and ids[-1] in said[-1]["caught"] for one in peers[:-1])


def cost(values: int, rounds: int, pairs: int) -> list[dict]:
    """Results where nobody lies: the time, memory and bytes of averages with checks, over those without."""
    found: dict[float, list[dict]] = {0.0: [], SHARE: []}
    for _ in range(pairs):
        for share, runs in found.items():
            runs += run(values=values, share=share, rounds=rounds)
    # The first average of a process is slower than the others.
    per_round = {s: [one for peer in runs for one in peer["round"][1:]] for s, runs in found.items()}
    with_checks, without = per_round[SHARE], per_round[0.0]
    checks = [line for peer in found[SHARE] for over in peer["over"] for line in over["checks"]]
    shown = sum(line.get("shown_bytes", 0) for line in checks)
    sent = sum(one["bytes"] for peer in found[SHARE] for one in peer["round"])
    accused = sum(bool(peer["round"][-1]["caught"]) for peer in found[SHARE] if peer["round"])
    facts = {"runs": len(with_checks), "values": values, "peer_name": "without checks"}
    results = []
    for key, name, unit in (("cpu", "CPU", "s"), ("seconds", "time", "s"), ("peak_kib", "memory", "KiB")):
        ours, theirs = (statistics.fmean(one[key] for one in runs) for runs in (with_checks, without))
        results.append(result(f"{name} of an honest average with checks", unit, ours, peer=theirs, **facts))
    results.append(result("bytes of checks over those of the exchange", "", shown / sent, runs=len(with_checks)))
    results.append(result("honest peers that were accused in short runs", "", accused, runs=len(with_checks)))
    return results


def honest_answers(rounds: int) -> list[dict]:
    """How near to the limit honest answers come, and how many peers are accused, where most answers are checked."""
    peers = run(values=LIE_VALUES, share=LARGE_SHARE, rounds=rounds)
    limits = [
        line["of_limit"] for peer in peers for over in peer["over"] for line in over["checks"] if "of_limit" in line
    ]
    accused = sum(bool(peer["round"][-1]["caught"]) for peer in peers)
    return [
        result("honest answers: distance over the limit, largest", "", max(limits), runs=len(limits)),
        result("honest peers that were accused", "", accused, runs=sum(len(peer["round"]) for peer in peers)),
    ]


def averages_until_named(lie: str, repetitions: int) -> dict:
    """After how many averages all honest peers have named a reducer that lies in each."""
    counts, innocent = [], 0
    for _ in range(repetitions):
        peers = run(values=LIE_VALUES, share=SHARE, rounds=MOST_ROUNDS, lie=lie)
        liar = peers[0]["ids"][-1]
        first = [
            next((n for n, one in enumerate(peer["round"], 1) if liar in one["caught"]), MOST_ROUNDS)
            for peer in peers[:-1]
        ]
        innocent += sum(bool(set(peer["round"][-1]["caught"]) - {liar}) for peer in peers[:-1])
        counts.append(max(first))
        print(f"lies to {lie}: named after {counts[-1]} averages", flush=True)
    metric = f"averages until a reducer that lies to {lie} in each is named by all"
    spread = {"runs": repetitions, "min": min(counts), "max": max(counts), "innocent_named": innocent}
    return result(metric, "averages", statistics.fmean(counts), median=statistics.median(counts), **spread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--only", nargs="*", choices=["cost", "honest", "lies"], default=["cost", "honest", "lies"])
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        peer(**json.loads(arguments.peer))
        return
    parts = {
        "cost": lambda: cost(arguments.values, arguments.rounds, arguments.pairs),
        "honest": lambda: honest_answers(2 * arguments.rounds),
        "lies": lambda: [averages_until_named(lie, arguments.repetitions) for lie in LIES],
    }
    measured = [one for name, measure in parts.items() if name in arguments.only for one in measure()]
    for one in measured:
        print(f"{one['metric']:70} {one['ours']:.4g} {one['unit']} (compared with: {one['peer']})", flush=True)
    if arguments.json:
        known = json.loads(arguments.json.read_text())["results"] if arguments.json.is_file() else []
        new = {one["metric"] for one in measured}
        measured += [one for one in known if one["metric"] not in new]
        versions = {name: importlib.metadata.version(name) for name in ("torch", "hivemind")}
        settings = {"peers": PEERS, "share": SHARE, "values": arguments.values, "rounds": arguments.rounds}
        record(arguments.json, "audits", versions, measured, **settings)


if __name__ == "__main__":
    main()
