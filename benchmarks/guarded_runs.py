"""What all defences together cost a run in which nobody is hostile: time, CPU, memory and loss of whole epochs.

    python benchmarks/guarded_runs.py --json benchmarks/results/guarded_runs.json      (a quarter of an hour)

Two kinds of runs take turns, each of the programs that people start: a bootstrap peer and three volunteers, who train
the recipe `stories`. A plain run is open to all and averages by the mean. A guarded one admits members only, with a
membership server and tickets; it averages by CenteredClip, reducers are checked, and one of the volunteers is a
validator. It checks nobody's work here: a peer's momentum has more than a fifth of these few stories in it, and then a
check says nothing. An epoch has the same number of samples in both.

Counted are the epochs from `FIRST_EPOCH` to `LAST_EPOCH`. Time is from update to update, so it holds computing,
averaging, and waiting. CPU seconds and memory are those of a volunteer with all its processes; memory that several
processes share counts for each of them in part (proportional set size, proc(5)).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import psutil  # noqa: E402
from attacked_runs import HONEST, LOOPBACK, MEAN, Members, Run, make_shards, run_in  # noqa: E402
from memory_report import record, result  # noqa: E402

from training.demo.children import processes_of  # noqa: E402

PLAIN, GUARDED = KINDS = ("plain", "guarded")
AGGREGATION = {PLAIN: MEAN, GUARDED: "centered-clip"}
FIRST_EPOCH, LAST_EPOCH = 4, 44
EPOCH_SAMPLES = 512
"""Of all volunteers together: on two cores, an average takes some percent of an epoch then."""
CHANGES = {
    "target_batch_size = 128": f"target_batch_size = {EPOCH_SAMPLES}",
    "max_epochs_alone = 10": "max_epochs_alone = 0",
}
"""Of the recipe."""
LOSS_EPOCHS = 5
"""The loss at the end is a mean over so many epochs."""
LOOK_SECONDS = 2.0
RUN_SECONDS = 900.0
FIGURES = {"time": ("time of an epoch", "s"), "cpu": ("CPU of an epoch, of each volunteer", "s")}
FIGURES |= {"averaging": ("time of an average", "s"), "memory": ("memory of a volunteer", "bytes")}
FIGURES |= {"loss": ("loss at the end", "nats")}


def start_plain(run: Run) -> None:
    """A bootstrap peer and three volunteers."""
    run.start("bootstrap", "bootstrap", "--recipe", run.recipe, "--state-dir", run.folder / "bootstrap", *LOOPBACK)
    known = run.await_event("bootstrap", "ready")["addresses"]
    for name in HONEST:
        run.join(name, known)


def start_guarded(run: Run) -> None:
    """The same with a membership server; the first volunteer checks the work of the others."""
    members = Members(run)
    own = ("--recipe", run.recipe, "--state-dir", run.folder / "bootstrap", "--invitation", members.invite("bootstrap"))
    run.start("bootstrap", "bootstrap", *own, *LOOPBACK)
    known = run.await_event("bootstrap", "ready")["addresses"]
    for name in HONEST:
        validates = ("--validate",) if name == HONEST[0] else ()
        run.join(name, known, "--invitation", members.invite(name), *validates)


def measure(shards: Path, kind: str) -> dict[str, float]:
    """One run, from its start to its last epoch."""
    with run_in(shards, AGGREGATION[kind], CHANGES) as run:
        start_plain(run) if kind == PLAIN else start_guarded(run)
        for name in HONEST:
            run.await_event(name, "joined")
        await_epoch(run, FIRST_EPOCH)
        before, memory = cpu_seconds(run), [0.0]
        while last_epoch(run) < LAST_EPOCH:
            await_epoch(run, min(last_epoch(run) + 1, LAST_EPOCH))
            memory.append(memory_bytes(run))
        cpu = cpu_seconds(run) - before
        events = [event for name in HONEST for event in run.events(name) if event["event"] == "epoch"]
        checks = [event for event in run.events(HONEST[0]) if event["event"] == "checked"]
    return {"cpu": cpu, "memory": max(memory), "checks": len(checks), **facts_of(events)}


def facts_of(events: Sequence[dict]) -> dict[str, float]:
    """What the volunteers' event logs say of the epochs that count."""
    times = {epoch: min(one["time"] for one in events if one["epoch"] == epoch) for epoch in (FIRST_EPOCH, LAST_EPOCH)}
    counted = [one for one in events if FIRST_EPOCH < one["epoch"] <= LAST_EPOCH]
    last = [one for one in counted if one["epoch"] > LAST_EPOCH - LOSS_EPOCHS and one["samples"]]
    samples = sum(one["samples"] for one in last)
    return {
        "time": (times[LAST_EPOCH] - times[FIRST_EPOCH]) / (LAST_EPOCH - FIRST_EPOCH),
        "averaging": statistics.fmean(one["averaging_seconds"] for one in counted),
        "loss": sum(one["loss"] * one["samples"] for one in last) / samples,
        "alone": sum(one["senders"] < len(HONEST) for one in counted),
    }


def last_epoch(run: Run) -> int:
    """That all volunteers have ended."""
    ended = [[one["epoch"] for one in run.events(name) if one["event"] == "epoch"] for name in HONEST]
    return min(max(epochs, default=0) for epochs in ended)


def await_epoch(run: Run, epoch: int) -> None:
    """Until all volunteers have ended it.

    Raises:
        TrainingError: If one ends before, or it takes too long.
    """
    deadline = time.monotonic() + RUN_SECONDS
    while last_epoch(run) < epoch:
        for name in HONEST:
            if run.part(name).exit_code is not None or time.monotonic() > deadline:
                raise run.part(name).failure(f"did not end epoch {epoch}")
        time.sleep(LOOK_SECONDS / 10)


def cpu_seconds(run: Run) -> float:
    """Of each volunteer so far, on average."""
    total = 0.0
    for process in processes_of([run.part(name) for name in HONEST]):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total / len(HONEST)


def memory_bytes(run: Run) -> float:
    """Of each volunteer now, on average."""
    total = 0
    for process in processes_of([run.part(name) for name in HONEST]):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / len(HONEST)


def figures(found: dict[str, list[dict[str, float]]]) -> list[dict]:
    """The record's results."""
    results = []
    for key, (name, unit) in FIGURES.items():
        ours, theirs = ([run[key] for run in found[kind]] for kind in (GUARDED, PLAIN))
        spread = {"runs": len(ours), "min": min(ours), "max": max(ours), "seeds": ours, "peer_seeds": theirs}
        compared = {"peer": statistics.fmean(theirs), "peer_name": "without defences"}
        results.append(result(f"{name} with all defences", unit, statistics.fmean(ours), **compared, **spread))
    checks = sum(run["checks"] for run in found[GUARDED])
    alone = {kind: sum(run["alone"] for run in found[kind]) for kind in KINDS}
    results.append(result("checks of work", "checks", checks, runs=len(found[GUARDED])))
    results.append(result("averages without all three", "", alone[GUARDED], peer=alone[PLAIN], peer_name="without"))
    return results


def main() -> None:
    """Runs all, prints the figures, and writes the record if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2, help="runs of each kind")
    parser.add_argument("--json", type=Path, help="write the record here")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder))
        for _ in range(arguments.pairs):
            for kind in KINDS:
                found[kind].append(measure(shards, kind))
                print(kind, {name: round(value, 3) for name, value in found[kind][-1].items()}, flush=True)
    for kind in KINDS:
        for one in found[kind]:
            one["cpu"] /= LAST_EPOCH - FIRST_EPOCH
    measured = figures(found)
    for one in measured:
        print(f"{one['metric']:60} {one['ours']:.4g} {one['unit']} (without: {one['peer']})", flush=True)
    if arguments.json:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "hivemind")}
        settings = {"volunteers": len(HONEST), "epoch_samples": EPOCH_SAMPLES, "epochs": LAST_EPOCH - FIRST_EPOCH}
        record(arguments.json, "guarded_runs", versions, measured, **settings)


if __name__ == "__main__":
    main()
