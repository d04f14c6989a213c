"""True if two peers train like one process: their losses, epoch by epoch, for each encoding of the gradients.

    python benchmarks/swarm/same_run.py --json benchmarks/results/same_run.json
    python benchmarks/swarm/same_run.py --model text --json benchmarks/results/same_run_text.json

The model is that of the demo, the language model of the recipe `stories`, or adapters of rank 16 beside that one.
Two peers, each a process, train it with LAMB on synthetic samples, each on a stream of its own, and note
how many samples they contributed to each epoch. Then one process trains from the same weights on the same samples, with
one batch for each epoch. The peers wait for each update and never average their weights, so that they exchange only
gradients. The losses on held-out samples are compared; differences are relative to the loss. With float32 they show the
effect of the order of additions, with the other encodings that of rounding as well. The bytes that a peer has sent in
an epoch are compared with those that the calculator counts for the trained parameters.
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
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from benchmarks.swarm.samples import samples as samples_of_pictures

MICRO_BATCH, TARGET_BATCH = 4, 64
HELD_OUT = 32
"""Number of held-out samples that the loss is computed on after every epoch."""
PEAK_LEARNING_RATE = 1e-2
PEERS = ("first", "second")
CODECS = ("float32", "float16", "blockwise8", "uniform8")
SHARE_TOLERANCE = 1e-6
MODELS = ("pictures", "text", "adapters")
TEXTS, NOISE = 64, 0.1
"""Number of different texts, and the share of their tokens that are replaced at random."""
RANK = 16


def recipe(codec: str, model: str, base: Path) -> object:
    """The recipe of a kind of model, changed so that peers wait for each update and exchange only gradients.

    Args:
        codec: Of the gradients.
        model: One of `MODELS`.
        base: Folder of the frozen weights, for adapters; written if need be.
    """
    from training.recipe import load_recipe

    run = load_recipe("demo" if model == "pictures" else "stories")
    if model == "adapters":
        run = _with_adapters(run, base)
    swarm = {
        "target_batch_size": TARGET_BATCH,
        "gradient_codec": codec,
        "average_state_every": 1_000_000,
    }
    schedule = {"peak_learning_rate": PEAK_LEARNING_RATE, "warmup_epochs": 10, "total_epochs": 1000}
    return run.model_copy(
        update={
            "swarm": run.swarm.model_copy(update=swarm),
            "schedule": run.schedule.model_copy(update=schedule),
            "optimizer": run.optimizer.model_copy(update={"name": "lamb"}),
        }
    )


def _with_adapters(run: object, base: Path) -> object:
    from safetensors.torch import load_file

    from training.model.language.adapters import digest_of
    from training.model.language.config import AdapterConfig
    from training.model.language.folders import build_language_model, export_folder

    if not base.is_dir():
        export_folder(build_language_model(run.model, run.seed), base, tokenizer_file=None)
    digest = digest_of(load_file(base / "model.safetensors"))
    adapter = AdapterConfig(rank=RANK, alpha=RANK, frozen_bits=32, base_digest=digest)
    return run.model_copy(update={"model": run.model.model_copy(update={"pretrained": str(base)}), "adapter": adapter})


def samples(run: object, seed: int, size: int) -> Iterator[tuple]:
    """Endless batches; texts and pictures are the same for all seeds, noise and order are not."""
    import torch

    if run.task == "text-to-image":
        yield from samples_of_pictures(run.model, seed, size)
    fixed, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    ids, length = run.model.architecture["vocab_size"], run.model.block_length
    texts = torch.randint(ids, (TEXTS, length), generator=fixed)
    starts = torch.zeros(size, length, dtype=torch.bool)
    starts[:, 0] = starts[:, length // 2] = True
    while True:
        which = torch.randint(0, TEXTS, (size,), generator=own)
        noise = torch.randint(ids, (size, length), generator=own)
        yield torch.where(torch.rand(noise.shape, generator=own) < NOISE, noise, texts[which]), starts


def held_out_loss(model: object, run: object) -> float:
    """Loss on held-out samples."""
    import torch

    with torch.no_grad():
        return float(model(*next(samples(run, seed=1_000_000, size=HELD_OUT))).loss)


def one_peer(folder: Path, name: str, codec: str, kind: str, epochs: int, stop: object) -> None:
    """One of the two peers: trains, and writes its report of each epoch, and the loss after it, to a file."""
    import torch

    from training.storage.whole import write_whole
    from training.swarm.node.dht import full_addresses, start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer
    from training.tasks.known import task_of

    torch.set_num_threads(1)
    run, identity, address = recipe(codec, kind, folder / "base"), Identity(folder / name), folder / "address"
    known = []
    if name != PEERS[0]:
        while not address.is_file():
            time.sleep(0.1)
        known = [address.read_text(encoding="ascii")]
    dht = start_dht(run, identity, initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if name == PEERS[0]:
        write_whole(address, full_addresses(dht)[0])
    model = task_of(run).build_model()
    optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=MICRO_BATCH)
    stop.listen()
    _meet(folder, name, "ready")
    batches = samples(run, seed=1 + PEERS.index(name), size=MICRO_BATCH)
    course: list[dict] = []
    while len(course) < epochs and not stop.asked:
        model(*next(batches)).loss.backward()
        optimizer.step()
        optimizer.updates.await_update()  # as one process does; peers compute on meanwhile
        optimizer.zero_grad()
        if not (folder / f"{name}.known").is_file():  # otherwise the first peer would end epochs alone
            while optimizer.progress.num_peers < len(PEERS):
                time.sleep(0.05)
            _meet(folder, name, "known")
        for report in optimizer.take_epoch_reports():
            loss = held_out_loss(model, run)
            course.append({**{key: getattr(report, key) for key in report.__slots__}, "loss": loss})
    write_whole(folder / f"{name}.json", json.dumps(course))
    while not all((folder / f"{peer}.json").is_file() for peer in PEERS) and not stop.wait(0.1):
        pass  # without this peer's DHT node the other one could not end its last epoch


def _meet(folder: Path, name: str, where: str) -> None:
    """Waits until both peers have called this with the same `where`."""
    (folder / f"{name}.{where}").touch()
    while not all((folder / f"{peer}.{where}").is_file() for peer in PEERS):
        time.sleep(0.05)


def two_peers(codec: str, epochs: int, model: str = "pictures", timeout: float = 3600) -> list[list[dict]]:
    """Runs both peers; the list of epochs of each."""
    with tempfile.TemporaryDirectory() as folder:
        recipe(codec, model, Path(folder, "base"))  # writes the frozen weights, once
        asked = {"--codecs": codec, "--epochs": str(epochs), "--folder": folder, "--model": model}
        command = [sys.executable, __file__, *(word for flag in asked.items() for word in flag), "--peer"]
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


def one_process(courses: list[list[dict]], kind: str = "pictures") -> list[float]:
    """Losses of one process that trains on the peers' samples, with one batch for each epoch."""
    import torch

    from training.optim.build import build_optimizer
    from training.optim.groups import parameter_groups
    from training.optim.schedule import learning_rate_factor
    from training.tasks.known import task_of

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = recipe("float32", kind, Path(folder, "base"))
        model = task_of(run).build_model()
    peak = run.schedule.peak_learning_rate
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=peak)
    streams = [samples(run, seed=1 + number, size=MICRO_BATCH) for number in range(len(PEERS))]
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
        losses.append(held_out_loss(model, run))
    return losses


def counted_bytes(codec: str, model: str) -> int:
    """What the calculator counts for one peer of two that sends half of its gradients and half of the averages."""
    from calculator.swarm.exchange import vector_bytes
    from training.model.trained import trained_parameters
    from training.tasks.known import task_of

    with tempfile.TemporaryDirectory() as folder:
        run = recipe(codec, model, Path(folder, "base"))
        sizes = [parameter.numel() for parameter in trained_parameters(task_of(run).on_paper())]
    small = sum(size for size in sizes if size < run.swarm.compression_threshold)
    return vector_bytes(sum(sizes), small, codec)


def differences(codec: str, epochs: int, model: str, timeout: float = 3600) -> dict:
    """Trains in both ways; the largest and the last relative difference of the peers' losses from one process's, and
    the bytes of an epoch."""
    courses = two_peers(codec, epochs, model, timeout)
    check(courses)
    alone = one_process(courses, model)
    apart = [max(abs(course[epoch]["loss"] / loss - 1) for course in courses) for epoch, loss in enumerate(alone)]
    peers = [[report["loss"] for report in course] for course in courses]
    sent = statistics.median(report["bytes_sent"] for course in courses for report in course)
    facts = {"sent_bytes": sent, "counted_bytes": counted_bytes(codec, model)}
    return {"largest": max(apart), "last": apart[-1], "one_process": alone, "peers": peers, **facts}


def main(arguments: list[str] | None = None) -> int:
    """Trains with each codec, prints the differences, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--epochs", type=int, default=100, metavar="N", help="epochs with each codec (100)")
    parser.add_argument(
        "--codecs", nargs="+", choices=CODECS, default=list(CODECS), help="encodings of the gradients (all)"
    )
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="what is trained (pictures)")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.peer:
        from training.processes.environment import prepare_environment
        from training.processes.role import run_role

        prepare_environment()
        run_role(lambda stop: one_peer(flags.folder, flags.peer, flags.codecs[0], flags.model, flags.epochs, stop))
        return 0
    found = {}
    heads = ("first loss", "last loss", "largest difference", "last", "bytes sent", "counted")
    print(f"{'gradients in':<14}" + "".join(f"{head:>20}" for head in heads))
    for codec in flags.codecs:
        found[codec] = facts = differences(codec, flags.epochs, flags.model)
        first, last = facts["one_process"][0], facts["one_process"][-1]
        bytes_of = f"{facts['sent_bytes']:>20,.0f}{facts['counted_bytes']:>20,}"
        print(f"{codec:<14}{first:>20.4f}{last:>20.4f}{facts['largest']:>20.2e}{facts['last']:>20.2e}{bytes_of}")
    if flags.json:
        from importlib.metadata import version

        results = [
            result(f"{codec}: largest relative difference of the loss from that of one process", "", facts["largest"])
            for codec, facts in found.items()
        ] + [
            result(
                f"{codec}: bytes that a peer sends in an epoch",
                "B",
                facts["sent_bytes"],
                peer=facts["counted_bytes"],
                peer_name="the calculator",
            )
            for codec, facts in found.items()
        ]
        versions = {name: version(name) for name in ("torch", "hivemind")}
        record(flags.json, "same_run", versions, results, epochs=flags.epochs, model=flags.model, course=found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
