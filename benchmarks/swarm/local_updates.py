"""Bytes and loss of the mode with local updates, compared with the synchronous mode, on the demo's model.

    python benchmarks/swarm/local_updates.py --json benchmarks/results/local_updates.json

Two real peers, each a process, train with local updates (`diloco`) on synthetic samples: 64 captions, each with its own
picture, to which random codes are added every time. They give the loss and the bytes of this mode.

The loss of the synchronous mode comes from one process, whose batch is that of both peers together: synchronous peers
compute the same, except for the rounding to 8 bits. The bytes of the synchronous mode come from two real peers that
train for a few epochs, since every epoch sends equally many. Both modes use the recipe's optimizer and the same numbers
of samples and updates, and are compared on held-out samples.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result

CAPTIONS, NOISE, HELD_OUT = 64, 0.2, 256
"""Number of captions, share of random codes in a picture, number of held-out samples."""
UPDATES_PER_EXCHANGE = 100
"""Local updates of each peer between two exchanges (H in the papers on DiLoCo)."""
BATCH = 32
"""Samples of one update, of both peers together."""
PEAK_LEARNING_RATE = 1e-2
SYNCHRONOUS_EPOCHS = 5
"""Epochs of the real peers that count the bytes of a synchronous epoch."""


def samples(shape: object, seed: int, size: int) -> Iterator[tuple]:
    """Endless batches of texts and codes; captions and pictures are the same for all seeds, noise and order are not."""
    import torch

    fixed, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    texts = torch.randint(1, shape.text_vocab_size, (CAPTIONS, shape.text_seq_len), generator=fixed)
    patterns = torch.randint(0, shape.image_vocab_size, (CAPTIONS, shape.image_seq_len), generator=fixed)
    while True:
        which = torch.randint(0, CAPTIONS, (size,), generator=own)
        noise = torch.randint(0, shape.image_vocab_size, (size, shape.image_seq_len), generator=own)
        keep = torch.rand(noise.shape, generator=own) >= NOISE
        yield texts[which], torch.where(keep, patterns[which], noise)


def recipe(mode: str, updates: int) -> object:
    """The demo's recipe for one of the modes and a number of updates."""
    from training.config import load_recipe

    run = load_recipe("demo")
    exchanges = updates // UPDATES_PER_EXCHANGE
    changes = {
        "diloco": {"mode": "diloco", "inner_batch_size": BATCH // 2, "target_batch_size": UPDATES_PER_EXCHANGE * BATCH},
        # Four batches, so that an epoch outlasts its matchmaking; the bytes of an epoch do not depend on it.
        "synchronous": {"target_batch_size": 4 * BATCH},
    }[mode]
    schedule = {"peak_learning_rate": PEAK_LEARNING_RATE, "warmup_epochs": 0, "total_epochs": max(exchanges, 1)}
    return run.model_copy(
        update={
            "swarm": run.swarm.model_copy(update={**changes, "average_state_every": 10_000}),
            "schedule": run.schedule.model_copy(update=schedule),
        }
    )


def held_out_loss(model: object, shape: object, size: int = HELD_OUT) -> float:
    """Loss on held-out samples."""
    import torch

    with torch.no_grad():
        text, codes = next(samples(shape, seed=1_000_000, size=size))
        return float(model(text, codes).loss)


def one_process(updates: int) -> list[tuple[int, float]]:
    """Trains synchronously; (samples so far, held-out loss) after every `UPDATES_PER_EXCHANGE` updates."""
    import torch

    from training.model.transformer import build_model
    from training.optim.build import build_optimizer
    from training.optim.groups import parameter_groups

    torch.set_num_threads(1)
    run = recipe("diloco", updates)
    model, batches = build_model(run.model, run.seed), samples(run.model, seed=1, size=BATCH)
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=PEAK_LEARNING_RATE)
    course = []
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * (1 - update // UPDATES_PER_EXCHANGE * UPDATES_PER_EXCHANGE / updates)
        optimizer.zero_grad()
        model(*next(batches)).loss.backward()
        optimizer.step()
        if (update + 1) % UPDATES_PER_EXCHANGE == 0:
            course.append(((update + 1) * BATCH, held_out_loss(model, run.model)))
    return course


def one_peer(folder: Path, name: str, mode: str, updates: int, stop: object) -> None:
    """One of two real peers; writes its report of each epoch, and the held-out loss after it, to a file."""
    import torch

    from training.model.transformer import build_model
    from training.storage.whole import write_whole
    from training.swarm.node.dht import full_addresses, start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer

    torch.set_num_threads(1)
    run, identity, address = recipe(mode, updates), Identity(folder / name), folder / "address"
    known = []
    if name == "second":
        while not address.is_file():
            time.sleep(0.1)
        known = [address.read_text(encoding="ascii")]
    dht = start_dht(run, identity, initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if name == "first":
        write_whole(address, full_addresses(dht)[0])
    model, micro = build_model(run.model, run.seed), BATCH // 4
    optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=micro)
    stop.listen()
    batches = samples(run.model, seed=1 if name == "first" else 2, size=micro)
    epochs = updates // UPDATES_PER_EXCHANGE if mode == "diloco" else SYNCHRONOUS_EPOCHS
    (folder / f"{name}.ready").touch()
    while not all((folder / f"{peer}.ready").is_file() for peer in ("first", "second")):
        time.sleep(0.05)
    course = []
    while len(course) < epochs:
        model(*next(batches)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for report in optimizer.take_epoch_reports():
            loss = held_out_loss(model, run.model) if mode == "diloco" else None
            course.append({**{key: getattr(report, key) for key in report.__slots__}, "loss": loss})
    (folder / f"{name}.json").write_text(json.dumps(course), encoding="utf-8")
    while not all((folder / f"{peer}.json").is_file() for peer in ("first", "second")) and not stop.wait(0.1):
        pass  # without this peer's DHT node the other one could not end its last epoch


def two_peers(mode: str, updates: int) -> list[list[dict]]:
    """Runs both peers; the list of epochs of each."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--updates", str(updates), "--mode", mode, "--folder", folder, "--peer"]
        peers = [subprocess.Popen([*command, name], env=one_thread()) for name in ("first", "second")]
        try:
            if any([peer.wait(timeout=3600) for peer in peers]):
                raise SystemExit("A peer has failed; its error is printed above.")
        finally:
            for peer in peers:
                peer.kill()
        return [json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8")) for name in ("first", "second")]


def one_thread() -> dict[str, str]:
    """The environment of a process that computes in one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def bytes_per_sample(peers: list[list[dict]]) -> float:
    """Bytes that both peers sent per sample, in epochs that were averaged."""
    epochs = [epoch for peer in peers for epoch in peer if epoch["senders"] == 2]
    return sum(epoch["bytes_sent"] for epoch in epochs) / sum(epoch["samples"] for epoch in epochs)


def main(arguments: list[str] | None = None) -> int:
    """Trains in both modes, prints losses and bytes, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--updates", type=int, default=300, metavar="N", help="updates of each mode")
    parser.add_argument("--peer", choices=("first", "second"), help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=("diloco", "synchronous"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.peer:
        from training.processes.environment import prepare_environment
        from training.processes.role import run_role

        prepare_environment()
        run_role(lambda stop: one_peer(flags.folder, flags.peer, flags.mode, flags.updates, stop))
        return 0

    local = two_peers("diloco", flags.updates)
    synchronous = two_peers("synchronous", flags.updates)
    course = one_process(flags.updates)
    sent = bytes_per_sample(local)
    # A synchronous epoch sends as many bytes with any batch: here, one exchange of both peers for every BATCH samples.
    per_epoch = [epoch["bytes_sent"] for peer in synchronous for epoch in peer if epoch["senders"] == 2]
    sent_synchronous = 2 * sum(per_epoch) / len(per_epoch) / BATCH
    print(f"{'samples':>10}{'synchronous':>14}{'diloco':>10}")
    for (count, loss), epoch in zip(course, local[0], strict=True):
        print(f"{count:>10}{loss:>14.4f}{epoch['loss']:>10.4f}")
    print(f"bytes sent per sample: synchronous {sent_synchronous:,.0f}, diloco {sent:,.0f}")
    print(f"diloco sends {sent_synchronous / sent:.0f} times fewer")
    averaged = sum(epoch["senders"] == 2 for peer in local for epoch in peer)
    waiting = math.fsum(epoch["waiting_seconds"] + epoch["averaging_seconds"] for epoch in local[0])
    if flags.json:
        import hivemind
        import torch

        name = "synchronous mode"
        results = [
            result("bytes sent per sample", "bytes", sent, peer=sent_synchronous, peer_name=name),
            result("loss after all samples", "nats", local[0][-1]["loss"], peer=course[-1][1], peer_name=name),
        ]
        versions = {"torch": torch.__version__, "hivemind": hivemind.__version__}
        more = {
            "updates_per_exchange": UPDATES_PER_EXCHANGE,
            "batch": BATCH,
            "course": {"synchronous": course, "diloco": [epoch["loss"] for epoch in local[0]]},
            "exchanges_averaged": averaged // 2,
            "seconds_in_exchanges": waiting,
        }
        record(flags.json, "local_updates", versions, results, **more)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
