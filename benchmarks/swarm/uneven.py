"""Updates of volunteers with unlike micro-batches beside busy programs: how many have less than 0.9 of the target.

    python benchmarks/swarm/uneven.py --epochs 50 --busy 6 --json benchmarks/results/uneven.json

Starts a bootstrap peer and volunteers, each as the program that people start, on a tiny model and this machine's cores.
`--busy` programs that only compute run beside them. Groups of two to five volunteers train for `--epochs` epochs each.
The micro-batch of the largest one is as large as the target, that of the smallest one or two samples, so the large ones
finish an epoch by themselves while the small ones still compute.

An update has all samples that one average, or one peer alone, put into it. The table counts the updates with less than
0.9 of the target, those of them without a reason in the log of the peer that made them, and the epochs in which a
volunteer that trained has no samples in an update.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from tests.support.programs import Programs, until
from tests.support.random_shards import write_shards
from training.swarm.epoch.exchange import ENOUGH

TARGET = 48
GROUPS = ((48, 4), (48, 12, 2), (48, 16, 8, 1), (48, 24, 8, 4, 1))
"""Micro-batches of the volunteers of each run."""
WARM_UP_EPOCHS = 3
"""First epochs of a run, in which its volunteers still arrive."""
CHANGES = {
    "hidden_size = 128": "hidden_size = 32",
    "num_heads = 4": "num_heads = 1",
    "target_batch_size = 256": f"target_batch_size = {TARGET}",
}


@dataclass(kw_only=True)
class Counted:
    """Counts over the epochs of a run, or of all runs."""

    updates: int = 0
    small: int = 0
    without_reason: int = 0
    missed: dict[str, int] = field(default_factory=dict)
    """Epochs of volunteers without samples in an update, by reason."""
    sizes: list[float] = field(default_factory=list)
    """Samples of each update, relative to the target."""

    def add(self, other: Counted) -> None:
        """Adds the counts of another run."""
        self.updates += other.updates
        self.small += other.small
        self.without_reason += other.without_reason
        self.sizes += other.sizes
        for reason, times in other.missed.items():
            self.missed[reason] = self.missed.get(reason, 0) + times


def events(path: Path, kind: str) -> list[dict]:
    """Events of this kind in a log of `--log-json`."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    parsed = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in parsed if event["event"] == kind]


def train(
    micro_batches: Sequence[int], epochs: int, folder: Path, programs: Programs, *, patience: float, window: float
) -> list[str]:
    """Runs a bootstrap peer and these volunteers until the run has had `epochs` epochs; returns the volunteers' names.

    Args:
        micro_batches: Micro-batch of each volunteer.
        epochs: Number of epochs after the warm-up.
        folder: Folder of the run's files.
        programs: Starts the peers.
        patience: Longest time in seconds.
        window: Seconds for which peers look for a group.

    Raises:
        AssertionError: If that takes longer than `patience` seconds.
    """
    from training.recipe import RECIPES, load_recipe

    text = (RECIPES / "demo.toml").read_text(encoding="utf-8")
    for before, after in {**CHANGES, "matchmaking_seconds = 1.5": f"matchmaking_seconds = {window}"}.items():
        assert before in text, before
        text = text.replace(before, after)
    recipe = folder / "recipe.toml"
    recipe.write_text(text, encoding="utf-8")
    shards = write_shards(folder / "shards", load_recipe("demo"), 256)

    def start(name: str, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "training", *arguments, "--recipe", recipe, "--state-dir", folder / name]
        own = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--log-json", folder / f"{name}.jsonl"]
        with (folder / f"{name}.log").open("w") as log:
            return programs.start([*command, *own], stdout=log, stderr=subprocess.STDOUT)

    start("bootstrap", "bootstrap")
    address = until(lambda: events(folder / "bootstrap.jsonl", "ready"), within=patience)[0]["addresses"][0]
    names = [f"micro-batch-{size}" for size in micro_batches]
    for name, size in zip(names, micro_batches, strict=True):
        options = {"--initial-peers": address, "--name": name, "--shards": shards, "--micro-batch-size": size}
        options |= {"--threads": 1, "--device": "cpu", "--precision": "float32"}
        start(name, "join", *(word for pair in options.items() for word in pair), "--verbose")
    for name in names:
        until(lambda name=name: events(folder / f"{name}.jsonl", "epoch"), within=patience)
    first = max(events(folder / f"{name}.jsonl", "epoch")[0]["epoch"] for name in names) + WARM_UP_EPOCHS

    def last_epoch() -> int:
        return min(events(folder / f"{name}.jsonl", "epoch")[-1]["epoch"] for name in names)

    until(lambda: time.sleep(1) or last_epoch() >= first + epochs, within=patience)
    return names


def count(folder: Path, names: Sequence[str], epochs: int) -> Counted:
    """Counts the updates of the last `epochs` epochs that all volunteers have finished."""
    counted = Counted()
    of_peers = {name: {event["epoch"]: event for event in events(folder / f"{name}.jsonl", "epoch")} for name in names}
    end = min(max(of_peer) for of_peer in of_peers.values())
    for epoch in range(end - epochs + 1, end + 1):
        made = {name: of_peer[epoch] for name, of_peer in of_peers.items() if epoch in of_peer}
        # A peer that reduces no part does not see the update's samples; its groupmates do.
        sizes = {name: event["update_samples"] for name, event in made.items() if event["update_samples"]}
        counted.updates += 1
        counted.sizes.append(max(sizes.values()) / TARGET)
        small = [name for name, samples in sizes.items() if samples < ENOUGH * TARGET]
        counted.small += bool(small)
        for name in small:
            log = (folder / f"{name}.log").read_text(encoding="utf-8")
            told = [line for line in log.splitlines() if f"Epoch {epoch} " in line or f"Epoch {epoch}:" in line]
            counted.without_reason += not told
            print(f"  epoch {epoch}, {name}: {sizes[name]:.0f} samples; {' '.join(told) or 'no reason in its log'}")
        for of_peer in of_peers.values():
            reason = of_peer[epoch]["missed"] if epoch in of_peer else "no event"
            if reason:
                counted.missed[reason] = counted.missed.get(reason, 0) + 1
    return counted


def main() -> None:
    """Runs each group of volunteers, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50, help="epochs of each of the four runs")
    parser.add_argument("--busy", type=int, default=6, help="number of programs that compute beside the volunteers")
    parser.add_argument("--nice", type=int, default=0, help="their niceness; volunteers have 10")
    parser.add_argument(
        "--matchmaking-seconds", type=float, default=1.5, help="how long peers look for a group; the demo's is 1.5"
    )
    parser.add_argument(
        "--groups",
        nargs="+",
        type=int,
        choices=range(len(GROUPS)),
        default=range(len(GROUPS)),
        help="numbers of the groups that run, from 0",
    )
    parser.add_argument("--minutes", type=float, default=30, help="longest time of one run")
    parser.add_argument("--keep", type=Path, help="folder for the logs; default: a temporary one")
    parser.add_argument("--json", type=Path, help="file for the record")
    args = parser.parse_args()
    total = Counted()
    with tempfile.TemporaryDirectory() as temporary:
        for micro_batches in (GROUPS[number] for number in args.groups):
            folder = (args.keep or Path(temporary)) / "-".join(map(str, micro_batches))
            folder.mkdir(parents=True)
            began = time.monotonic()
            with Programs() as programs:
                for _ in range(args.busy):
                    spin = f"import os; os.nice({args.nice})\nwhile True: pass"
                    programs.start([sys.executable, "-c", spin], env=dict(os.environ))
                names = train(
                    micro_batches,
                    args.epochs,
                    folder,
                    programs,
                    patience=args.minutes * 60,
                    window=args.matchmaking_seconds,
                )
            counted = count(folder, names, args.epochs)
            seconds = time.monotonic() - began
            print(
                f"{len(names)} volunteers, micro-batches {micro_batches}: {counted.small} of {counted.updates} updates "
                f"below {ENOUGH:.0%} of the target, {counted.without_reason} without a reason; median "
                f"{statistics.median(counted.sizes):.2f} of the target; missed: {counted.missed or 'none'}; "
                f"{seconds:.0f} s",
                flush=True,
            )
            total.add(counted)
    share = total.small / total.updates
    print(f"{total.small} of {total.updates} updates were small ({share:.1%}).")
    if args.json:
        results = [
            result("updates below 0.9 of the target", "", share, runs=total.updates),
            result("small updates without a reason in the log", "", total.without_reason, runs=total.small),
            result("median update, relative to the target", "", statistics.median(total.sizes), runs=total.updates),
        ]
        record(
            args.json,
            "uneven",
            {},
            results,
            busy=args.busy,
            nice=args.nice,
            matchmaking_seconds=args.matchmaking_seconds,
            missed=total.missed,
        )


if __name__ == "__main__":
    main()
