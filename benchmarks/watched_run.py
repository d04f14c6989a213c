"""What readers of the live API cost a run: its throughput with 200 readers and 200 event streams, over that without.

    python benchmarks/watched_run.py --json benchmarks/results/watched_run.json      (about ten minutes)

A bootstrap peer, a monitor and two volunteers run on this machine as their programs. The volunteers compute at a set
speed: a sleep of 0.125 s per sample takes the place of a GPU, because on one machine the readers' own CPU time would
slow a volunteer that computes, which it does not where readers and volunteers have their own machines. What remains is
what a loaded monitor could do to a run: answer volunteers late in the DHT, or average late.

Phases without and with readers follow each other (A/B/A/B ...). In each, after some seconds in which the change takes
effect, the samples of so many epochs are counted from the end of an epoch to the end of another, as the volunteers log
them, and the CPU seconds of the monitor with its child processes. The readers run at the lowest priority, so this is no
measurement of how soon they get their answers: `dashboard.py` is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import record, result  # noqa: E402
from readers import READERS, STREAMS  # noqa: E402

from tests.chaos.stage import SAMPLE_SECONDS, read_lines, recipe  # noqa: E402
from tests.chaos.volunteer import Control  # noqa: E402
from tests.ports import free_port  # noqa: E402
from tests.programs import Programs, guard_tests  # noqa: E402
from tests.random_shards import write_shards  # noqa: E402
from training.config import parse_recipe  # noqa: E402

VOLUNTEERS = ("ada", "grace")
BATCH = 64
"""Samples of an epoch: both volunteers compute them in four seconds."""
SETTLE_SECONDS = 5.0
LONGEST_PHASE_SECONDS = 300.0
START_SECONDS = 240.0


@dataclass(frozen=True)
class Phase:
    """What was measured while there were readers, or none."""

    samples_per_second: float
    monitor_cores: float
    """CPU seconds of the monitor's processes per second."""


class Run:
    """The programs of a run on this machine."""

    def __init__(self, folder: Path, programs: Programs):
        self._folder, self._programs, self.port = folder, programs, free_port()
        self._recipe = folder / "recipe.toml"
        changes = {"target_batch_size": BATCH, "request_timeout_seconds": 0.9}
        self._recipe.write_text(recipe(changes), encoding="utf-8")
        write_shards(folder / "shards", parse_recipe(self._recipe.read_text(encoding="utf-8")))

    def open(self) -> None:
        """Starts all programs; returns when both volunteers have averaged."""
        own = ("--recipe", self._recipe, "--host-maddrs", "/ip4/127.0.0.1/tcp/0")
        self._start("bootstrap", "-m", "training", "bootstrap", *own, "--state-dir", self._folder / "bootstrap")
        peers = ("--initial-peers", self._await("bootstrap", "ready")["addresses"][0])
        shards = ("--shards", self._folder / "shards")
        site = ("--host", "127.0.0.1", "--port", self.port, "--run-dir", self._folder / "run", *shards)
        self.monitor = self._start("monitor", "-m", "training", "monitor", *own, *peers, *site)
        self._await("monitor", "ready")
        for name in VOLUNTEERS:
            control = self._folder / f"{name}.control"
            Control(control).set(clock_seconds=0.0, sample_seconds=SAMPLE_SECONDS)
            device = ("--device", "cpu", "--precision", "float32", "--threads", "1", "--micro-batch-size", "4")
            join = ("join", *own, *peers, *shards, *device, "--name", name, "--state-dir", self._folder / name)
            self._start(name, "-m", "tests.chaos.volunteer", control, self._folder / f"{name}.notes", *join)
        for name in VOLUNTEERS:
            self._await(name, "epoch")

    def _start(self, name: str, *words: object) -> psutil.Process:
        command = [sys.executable, *map(str, words), "--log-json", str(self._folder / f"{name}.jsonl")]
        with (self._folder / f"{name}.log").open("w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            started = self._programs.start(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        return psutil.Process(started.pid)

    def events(self, name: str, kind: str) -> list[dict]:
        """The lines of a kind in a program's event log."""
        return [line for line in read_lines(self._folder / f"{name}.jsonl") if line["event"] == kind]

    def _await(self, name: str, kind: str) -> dict:
        deadline = time.monotonic() + START_SECONDS
        while not (found := self.events(name, kind)):
            if time.monotonic() > deadline:
                printed = (self._folder / f"{name}.log").read_text(encoding="utf-8")
                raise TimeoutError(
                    f"{name} has no event {kind!r} after {START_SECONDS:.0f} s. It has printed:\n{printed}"
                )
            time.sleep(0.1)
        return found[0]

    def monitor_seconds(self) -> float:
        """CPU seconds of the monitor and its children so far."""
        family = [self.monitor, *self.monitor.children(recursive=True)]
        return sum(times.user + times.system for times in (process.cpu_times() for process in family))


def measure(run: Run, epochs: int, *, readers: bool) -> Phase:
    """One phase of so many epochs, after the time in which it takes effect."""
    command = [sys.executable, str(ROOT / "benchmarks" / "readers.py"), str(run.port), str(LONGEST_PHASE_SECONDS)]
    asking = subprocess.Popen(["nice", "-n", "19", *command], stdout=subprocess.DEVNULL) if readers else None
    try:
        time.sleep(SETTLE_SECONDS)
        began, used, clock = time.time(), run.monitor_seconds(), time.monotonic()
        rates = [None]
        while None in rates:
            if time.monotonic() > clock + LONGEST_PHASE_SECONDS:
                raise TimeoutError(f"The run has not done {epochs} epochs in {LONGEST_PHASE_SECONDS:.0f} s.")
            time.sleep(0.5)
            rates = [rate_since(run.events(name, "epoch"), began, epochs) for name in VOLUNTEERS]
        cores = (run.monitor_seconds() - used) / (time.monotonic() - clock)
        if asking is not None and asking.poll() is not None:
            raise RuntimeError("The readers have ended early; their message is above.")
    finally:
        if asking is not None:
            asking.terminate()
            asking.wait()
    return Phase(sum(rates), cores)


def rate_since(logged: list[dict], began: float, epochs: int) -> float | None:
    """A volunteer's samples per second in so many epochs after the first that has ended since `began`; None: not yet.

    >>> rate_since([{"time": time, "samples": 64} for time in (8, 12, 16, 20, 90)], 10, 2)
    16.0
    """
    first, *later = [one for one in logged if one["time"] > began][: epochs + 1] or [None]
    if len(later) < epochs:
        return None
    return sum(one["samples"] for one in later) / (later[-1]["time"] - first["time"])


def results(phases: list[tuple[Phase, Phase]]) -> list[dict]:
    """The figures of pairs of phases, each without and with readers."""
    without, watched = ([pair[place] for pair in phases] for place in (0, 1))
    ratios = [after.samples_per_second / before.samples_per_second for before, after in phases]
    words = f"{READERS} readers and {STREAMS} streams"

    def row(metric: str, unit: str, values: list[float], *, peer: list[float] | None = None) -> dict:
        beside = {"peer": statistics.median(peer), "peer_name": "without readers"} if peer else {}
        facts = {"runs": len(values), "min": min(values), "max": max(values)}
        return result(metric, unit, statistics.median(values), **beside, **facts)

    return [
        row(
            f"samples per second with {words}",
            "1/s",
            [phase.samples_per_second for phase in watched],
            peer=[phase.samples_per_second for phase in without],
        ),
        row("ratio of each pair of phases", "", ratios),
        row(
            f"CPU of the monitor with {words}",
            "cores",
            [phase.monitor_cores for phase in watched],
            peer=[phase.monitor_cores for phase in without],
        ),
    ]


def main() -> int:
    """Measures, prints the table, and writes the JSON if asked; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="length of a phase (8)")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of phases (4)")
    parser.add_argument("--json", metavar="FILE", help="also write the results")
    chosen = parser.parse_args()
    phases = []
    guard_tests()
    with tempfile.TemporaryDirectory(prefix="watched-run-") as folder, Programs() as programs:
        run = Run(Path(folder), programs)
        run.open()
        for number in range(chosen.pairs):
            pair = tuple(measure(run, chosen.epochs, readers=readers) for readers in (False, True))
            phases.append(pair)
            told = " and ".join(f"{phase.samples_per_second:.2f} samples/s" for phase in pair)
            print(f"Pair {number + 1} (load {os.getloadavg()[0]:.1f}): {told}", flush=True)
    rows = results(phases)
    for row in rows:
        peer = "" if row["peer"] is None else f"{row['peer']:>10.3f} without"
        print(f"{row['metric']:<72}{row['ours']:>10.3f} {row['unit']}{peer}")
    if chosen.json:
        record(Path(chosen.json), "watched_run", {}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
