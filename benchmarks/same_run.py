"""Whether two peers train like one process: their losses, epoch by epoch, for each encoding of the gradients.

    python benchmarks/same_run.py --json benchmarks/results/same_run.json

Two peers, each a process, train the demo's model with LAMB on synthetic samples, each on a stream of its own, and note
how many samples they contributed to each epoch. Then one process trains from the same weights on the same samples, with
one batch for each epoch. The peers wait for each update and never average their weights, so that they exchange only
gradients. The losses on held-out samples are compared; differences are relative to the loss. With float32 they show the
effect of the order of additions, with the other encodings that of rounding as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from local_updates import held_out_loss, samples  # noqa: E402
from memory_report import record, result  # noqa: E402

MICRO_BATCH, TARGET_BATCH = 4, 64
HELD_OUT = 32
"""Number of held-out samples that the loss is computed on after every epoch."""
PEAK_LEARNING_RATE = 1e-2
PEERS = ("first", "second")
CODECS = ("float32", "float16", "blockwise8", "uniform8")
SHARE_TOLERANCE = 1e-6


def recipe(codec: str) -> object:
    """The demo's recipe, changed so that peers wait for each update and exchange only gradients."""
    from training.config import load_recipe

    run = load_recipe("demo")
    swarm = {
        "target_batch_size": TARGET_BATCH,
        "gradient_codec": codec,
        "average_state_every": 1_000_000,
        "delay_optimizer_step": False,
    }
    schedule = {"peak_learning_rate": PEAK_LEARNING_RATE, "warmup_epochs": 10, "total_epochs": 1000}
    return run.model_copy(
        update={
            "swarm": run.swarm.model_copy(update=swarm),
            "schedule": run.schedule.model_copy(update=schedule),
            "optimizer": run.optimizer.model_copy(update={"name": "lamb"}),
        }
    )


def one_peer(folder: Path, name: str, codec: str, epochs: int, stop: object) -> None:
    """One of the two peers: trains, and writes its report of each epoch, and the loss after it, to a file."""
    import torch

    from training.model.transformer import build_model
    from training.storage.whole import write_whole
    from training.swarm.dht import full_addresses, start_dht
    from training.swarm.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer

    torch.set_num_threads(1)
    run, identity, address = recipe(codec), Identity(folder / name), folder / "address"
    known = []
    if name != PEERS[0]:
        while not address.is_file():
            time.sleep(0.1)
        known = [address.read_text(encoding="ascii")]
    dht = start_dht(run, identity, initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if name == PEERS[0]:
        write_whole(address, full_addresses(dht)[0])
    model = build_model(run.model, run.seed)
    optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=MICRO_BATCH)
    stop.listen()
    _meet(folder, name, "ready")
    batches = samples(run.model, seed=1 + PEERS.index(name), size=MICRO_BATCH)
    course: list[dict] = []
    while len(course) < epochs and not stop.asked:
        model(*next(batches)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not (folder / f"{name}.known").is_file():  # otherwise the first peer would end epochs alone
            while optimizer.progress.num_peers < len(PEERS):
                time.sleep(0.05)
            _meet(folder, name, "known")
        for report in optimizer.take_epoch_reports():
            loss = held_out_loss(model, run.model, HELD_OUT)
            course.append({**{key: getattr(report, key) for key in report.__slots__}, "loss": loss})
    write_whole(folder / f"{name}.json", json.dumps(course))
    while not all((folder / f"{peer}.json").is_file() for peer in PEERS) and not stop.wait(0.1):
        pass  # without this peer's DHT node the other one could not end its last epoch


def _meet(folder: Path, name: str, where: str) -> None:
    """Waits until both peers have called this with the same `where`."""
    (folder / f"{name}.{where}").touch()
    while not all((folder / f"{peer}.{where}").is_file() for peer in PEERS):
        time.sleep(0.05)


def two_peers(codec: str, epochs: int, timeout: float = 3600) -> list[list[dict]]:
    """Runs both peers; the list of epochs of each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--codecs", codec, "--epochs", str(epochs), "--folder", folder, "--peer"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        peers = [subprocess.Popen([*command, name], env=environment) for name in PEERS]
        try:
            if any([peer.wait(timeout=timeout) for peer in peers]):
                raise SystemExit("A peer has failed; its error is printed above.")
        finally:
            for peer in peers:
                peer.kill()
        return [json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8")) for name in PEERS]


def check(courses: list[list[dict]]) -> None:
    """Checks that every epoch was averaged with weights in proportion to each peer's samples.

    Raises:
        SystemExit: If an epoch was not, because its loss cannot be compared then.
    """
    for epoch, reports in enumerate(zip(*courses, strict=True), start=1):
        total = sum(report["samples"] for report in reports)
        for report in reports:
            share = report["samples"] / total
            if report["senders"] != len(PEERS) or abs((report["own_share"] or share) - share) > SHARE_TOLERANCE:
                raise SystemExit(
                    f"Epoch {epoch} was not averaged in proportion to the samples of both peers: {report}."
                )


def one_process(courses: list[list[dict]]) -> list[float]:
    """Losses of one process that trains on the peers' samples, with one batch for each epoch."""
    import torch

    from training.model.transformer import build_model
    from training.optim.build import build_optimizer
    from training.optim.groups import parameter_groups
    from training.optim.schedule import learning_rate_factor

    torch.set_num_threads(1)
    run = recipe("float32")
    model = build_model(run.model, run.seed)
    peak = run.schedule.peak_learning_rate
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=peak)
    streams = [samples(run.model, seed=1 + number, size=MICRO_BATCH) for number in range(len(PEERS))]
    losses = []
    for epoch, reports in enumerate(zip(*courses, strict=True)):
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate_factor(epoch, run.schedule)
        optimizer.zero_grad()
        micro_batches = [
            next(stream)
            for stream, report in zip(streams, reports, strict=True)
            for _ in range(report["samples"] // MICRO_BATCH)
        ]
        for micro_batch in micro_batches:
            (model(*micro_batch).loss / len(micro_batches)).backward()
        optimizer.step()
        losses.append(held_out_loss(model, run.model, HELD_OUT))
    return losses


def differences(codec: str, epochs: int, timeout: float = 3600) -> dict:
    """Trains in both ways; the largest and the last relative difference of the peers' losses from one process's."""
    courses = two_peers(codec, epochs, timeout)
    check(courses)
    alone = one_process(courses)
    apart = [max(abs(course[epoch]["loss"] / loss - 1) for course in courses) for epoch, loss in enumerate(alone)]
    peers = [[report["loss"] for report in course] for course in courses]
    return {"largest": max(apart), "last": apart[-1], "one_process": alone, "peers": peers}


def main(arguments: list[str] | None = None) -> int:
    """Trains with each codec, prints the differences, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--epochs", type=int, default=100, metavar="N", help="epochs with each codec (100)")
    parser.add_argument(
        "--codecs", nargs="+", choices=CODECS, default=list(CODECS), help="encodings of the gradients (all)"
    )
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.peer:
        from training.processes.environment import prepare_environment
        from training.processes.role import run_role

        prepare_environment()
        run_role(lambda stop: one_peer(flags.folder, flags.peer, flags.codecs[0], flags.epochs, stop))
        return 0
    found = {}
    print(f"{'gradients in':<14}{'first loss':>12}{'last loss':>12}{'largest difference':>20}{'last':>12}")
    for codec in flags.codecs:
        found[codec] = facts = differences(codec, flags.epochs)
        first, last = facts["one_process"][0], facts["one_process"][-1]
        print(f"{codec:<14}{first:>12.4f}{last:>12.4f}{facts['largest']:>20.2e}{facts['last']:>12.2e}", flush=True)
    if flags.json:
        from importlib.metadata import version

        results = [
            result(f"{codec}: largest relative difference of the loss from that of one process", "", facts["largest"])
            for codec, facts in found.items()
        ]
        versions = {name: version(name) for name in ("torch", "hivemind")}
        record(flags.json, "same_run", versions, results, epochs=flags.epochs, course=found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
