"""Checks of work: what they find of honest peers, and after how many checks peers fail that compute nothing.

    python benchmarks/attacks/work_checks.py --json benchmarks/results/work_checks.json      (about 10 minutes)

Peers of one process train the demo's model on drawn pictures with the trainer's own parts: micro-batches, streams of
samples, CenteredClip and the validator of `training.volunteer.validator`. Each peer has momentum of its own, as the
trainer's peers have with CenteredClip, which makes checks harder: samples of many epochs are in each gradient. One peer
is the validator. The hostile ones only send, so all of them are tried in one run, and the average is of the others.

All peers are checked again and again. In a run, `check_share` decides how often.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.record import record, result
from training.compute.micro_batches import MicroBatches
from training.config import SwarmConfig, load_recipe
from training.data.store.sets import open_shards
from training.data.stream.order import Place
from training.data.stream.stream import SampleStream
from training.swarm.defence.clipping import Clipping, centered_clip
from training.swarm.round.pipe import Shown
from training.swarm.work import Declared, alike, noise_of, spans_of
from training.task import task_of
from training.trust.server.policy import FAILING_EVIDENCE
from training.volunteer.validator import EPOCHS_BETWEEN, Validator

PICTURES, SAMPLES, EPOCHS, MOMENTUM, LEARNING_RATE = 8000, 32, 50, 0.9, 1e-3
"""Drawn pictures, samples of a peer in each epoch, epochs, the peers' momentum, and the update's learning rate."""
VALIDATOR, HONEST = "validator", ("ada", "alan", "grace")
CLIPPING = Clipping(radius=1.0, iterations=5)
PART = 4
"""A check sees this part of all values: what the other reducers get of a peer is not asked for."""
STALE_SAMPLES = 4

Cheat = Callable[["Swarm"], torch.Tensor]


def noise(swarm: Swarm) -> torch.Tensor:
    own = swarm.sent["ada"]
    return torch.randn(own.shape) * own.norm() / own.numel() ** 0.5


def stale(swarm: Swarm) -> torch.Tensor:
    """The gradient of a few samples, computed once."""
    return swarm.stale


def stale_mean(swarm: Swarm) -> torch.Tensor:
    """What it has sent in the first epoch, when it still computed."""
    return swarm.first


def average_before(swarm: Swarm) -> torch.Tensor:
    """The average of the epoch before, which everybody has."""
    return swarm.average


def copied(swarm: Swarm) -> torch.Tensor:
    return swarm.sent["alan"]


def reversed_sign(swarm: Swarm) -> torch.Tensor:
    return -swarm.sent["grace"]


CHEATS: dict[str, Cheat] = {
    "random numbers": noise,
    "one old micro-batch": stale,
    "an old gradient": stale_mean,
    "the last average": average_before,
    "another peer's gradient": copied,
    "another peer's, reversed": reversed_sign,
}


@dataclass
class Asked:
    """Stands for the optimizer: the program checks whom it likes."""

    groupmates: tuple[str, ...] = ()
    suspended: set[str] = field(default_factory=set)

    def inspect(self, peer: str) -> None: ...

    def suspend(self, peer: str, deed: str) -> None:
        self.suspended.add(peer)


class Swarm:
    """The peers."""

    def __init__(self, shards: Path, folder: Path, seed: int):
        run = load_recipe("demo")
        task = task_of(run)
        torch.manual_seed(seed)
        self.model = task.build_model()
        self.parameters = list(self.model.parameters())
        self.update = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE, betas=(0.0, 0.99))
        samples = task.samples(open_shards(str(shards), "train", kind=task.kind))
        self.order, self.samples = samples.order.digest, samples.order.samples
        names = (VALIDATOR, *HONEST)
        self.streams = {
            name: SampleStream(samples, place=Place(seed=seed + number), micro_batch_size=SAMPLES, tell=print)
            for number, name in enumerate(names)
        }
        self.sums = {name: (torch.zeros(sum(one.numel() for one in self.parameters)), 0.0) for name in names}
        self.sent: dict[str, torch.Tensor] = {}
        self.declared: dict[str, Declared] = {}
        self.checks: dict[str, list[dict]] = {}
        self.micro_batches = MicroBatches(
            self.model, micro_batch_size=SAMPLES, activation_budget_bytes=None, precision="float32", tell=print
        )
        self.asked = Asked()
        self.validator = Validator(
            self.asked,
            parameters=self.parameters,
            micro_batches=self.micro_batches,
            read=self.streams[VALIDATOR].one,
            order=self.order,
            set_samples=self.samples,
            own_seed=seed,
            momentum=MOMENTUM,
            share=1e9,
            is_delayed=False,
            folder=folder,
            report=lambda peer, told: None,
            tell=lambda words: None,
            log=lambda event, peer, **facts: self.checks.setdefault(peer, []).append(facts),
            chance=random.Random(seed),
        )

        self.validator.most_saved = 1e9

    def gradient(self) -> torch.Tensor:
        found = torch.cat([one.grad.flatten() for one in self.parameters])
        self.model.zero_grad()
        return found

    def compute(self, name: str) -> None:
        """What a peer sends in this epoch, and declares."""
        batch = next(self.streams[name])
        if name == VALIDATOR:
            self.validator.note_batch(batch)
        list(self.micro_batches.gradients_of(batch))
        total, mass = self.sums[name]
        total, mass = MOMENTUM * total + SAMPLES * self.gradient(), MOMENTUM * mass + SAMPLES
        self.sums[name] = total, mass
        self.sent[name] = total / mass
        stream = self.streams[name]
        spans = spans_of(stream.numbers)
        self.declared[name] = Declared(order=self.order, seed=stream.place.seed, spans=spans, mass=mass)

    def begin(self) -> None:
        """What hostile peers may send again later."""
        batch = next(self.streams["ada"])
        self.micro_batches.gradient_of_one([tensor[:STALE_SAMPLES] for tensor in batch.inputs])
        self.stale = self.gradient()
        for name in self.streams:
            self.compute(name)
        self.first, self.average = self.sent["grace"], self.sent["alan"]

    def epoch(self, number: int) -> None:
        for name in self.streams:
            self.compute(name)
        self.validator.end_epoch(number, SAMPLES)
        if number % EPOCHS_BETWEEN == 0:
            for name in HONEST:
                self.show(name, self.sent[name], self.declared[name])
            for cheat, make in CHEATS.items():
                # It names samples of its own, as many as the others have.
                stream = self.streams[HONEST[0]]
                start = number * SAMPLES % (self.samples - SAMPLES)
                spans = ((start, start + SAMPLES),)
                own = Declared(order=self.order, seed=10_000 + stream.place.seed, spans=spans, mass=self.sums["ada"][1])
                self.show(cheat, make(self), own)
        vectors = list(self.sent.values())
        self.average = centered_clip(vectors, [SAMPLES] * len(vectors), CLIPPING)
        at = 0
        for parameter in self.parameters:
            parameter.grad = self.average[at : at + parameter.numel()].view_as(parameter).clone()
            at += parameter.numel()
        self.update.step()
        self.model.zero_grad()

    def show(self, peer: str, vector: torch.Tensor, declared: Declared) -> None:
        """What the validator's averager would show of a peer in a group with the honest ones."""
        others = [name for name in self.sent if name != peer]
        rows = [*(self.sent[name] for name in others), vector]
        weights, one = [SAMPLES] * len(rows), len(rows) - 1
        average = centered_clip(rows, weights, CLIPPING)
        part = slice(len(vector) // PART, len(vector))
        copies = alike([row[part] for row in rows], average[part], one)
        self.validator.take(
            Shown(
                peer=peer,
                group_id=b"",
                declared=declared.packed(),
                weight=SAMPLES,
                begin=part.start,
                values=vector[part],
                asker=self.sent[VALIDATOR][part],
                noise=noise_of([row[part] for row in rows], weights, others.index(VALIDATOR), one),
                copies=tuple(others[copy] for copy in copies),
                proof="",
            )
        )


def until_failed(evidence: list[float]) -> int | None:
    """Checks until a peer has failed, from the first on."""
    total = 0.0
    for number, one in enumerate(evidence, start=1):
        total = min(total + one, 3.0)
        if total <= FAILING_EVIDENCE:
            return number
    return None


def figures(swarm: Swarm) -> list[dict]:
    found = []
    for peer, checks in swarm.checks.items():
        kind = "honest" if peer in HONEST else "hostile"
        evidence = [check["evidence"] for check in checks]
        shares = [check["share"] for check in checks]
        facts = {"checks": len(checks), "error": statistics.median(check["error"] for check in checks)}
        facts |= {"min": min(shares), "max": max(shares), "runs": len(checks)}
        found.append(result(f"share, {kind}: {peer}", "", statistics.median(shares), **facts))
        failed = until_failed(evidence)
        found.append(result(f"checks until failed, {kind}: {peer}", "checks", failed or 0, failed=failed is not None))
        found.append(result(f"evidence of a check, {kind}: {peer}", "", statistics.fmean(evidence)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="of the demo; made if omitted")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--json", type=Path, help="write the record here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shards = arguments.shards or make_shards(Path(folder))
        swarm = Swarm(shards, Path(folder) / "evidence", seed=0)
        swarm.begin()
        for number in range(arguments.epochs):
            swarm.epoch(number)
        measured = figures(swarm)
        for stream in swarm.streams.values():
            stream.close()
    for one in measured:
        print(f"{one['metric']:60} {one['ours']:.3g} {one['unit']}", flush=True)
    if arguments.json:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "hivemind")}
        settings = {"samples": SAMPLES, "epochs": arguments.epochs, "momentum": MOMENTUM}
        settings["share"] = SwarmConfig.model_fields["check_share"].default
        record(arguments.json, "work_checks", versions, measured, **settings)


def make_shards(folder: Path) -> Path:
    """Drawn pictures, as the demo draws them."""
    program = [sys.executable, "-m", "training"]
    images, shards = folder / "images", folder / "shards"
    subprocess.run([*program, "draw", "--out", images, "--count", str(PICTURES)], check=True, cwd=ROOT)
    given = ["--recipe", "demo", "--images", images, "--captions", images / "captions.jsonl", "--out", shards]
    subprocess.run([*program, "prepare", *given], check=True, cwd=ROOT)
    return shards


if __name__ == "__main__":
    main()
