"""Records runs of three real peers that train the model of the site's page Train together, one for each switch.

    python benchmarks/swarm/together.py --json benchmarks/results/together.json --pictures site/images/together.png

The peers are processes of this machine with our own stack: hivemind's DHT, groups, all-reduces, codecs and optimizers
of `training/swarm`. Each computes `shapes.Shapes` and sleeps for the time that a slow machine would need. In the run
`drop`, all processes of a peer are killed. In the runs `hostile`, a peer sends its gradients times -1000. The trainer
has no 1-bit gradients, so there is no run of them.

The first peer looks at what the model has learned, every few updates. The record also has what the page needs to train
the same model. All runs take half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result

NAMES = ("ada", "grace", "alan")
"""Peers; the last one is the hostile one, or the one that is killed."""
RUNS: dict[str, dict] = {
    "plain": {},
    "bits8": {"bits": 8},
    "delayed": {"pace": "delayed"},
    "local": {"pace": "local"},
    "clip": {"clip": True},
    "hostile": {"hostile": True},
    "hostile-clip": {"hostile": True, "clip": True},
    "drop": {"drop": True},
}
"""Name -> the switches that differ from the page's first ones: 32 bits, awaited gradients, the mean."""
DROP_AT = 60
"""Update after which a peer is killed."""
SECONDS_A_SAMPLE = 0.02
MATCHMAKING_SECONDS = 0.5
PATIENCE_SECONDS = 900.0


def recipe(switches: dict, updates: int) -> object:
    """The recipe `demo` with the page's training; an epoch of local updates is an exchange."""
    from benchmarks.swarm.shapes import SETTINGS
    from training.recipe import load_recipe

    demo, local = load_recipe("demo"), switches.get("pace") == "local"
    inner = SETTINGS.inner if local else 1
    swarm = {
        "target_batch_size": SETTINGS.batch * inner,
        "inner_batch_size": SETTINGS.batch // len(NAMES),
        "matchmaking_seconds": MATCHMAKING_SECONDS,
        "next_chunk_timeout_seconds": 2.0,
        "allreduce_timeout_seconds": 10.0,
        "compression_threshold": 2048,
        "gradient_codec": "blockwise8" if switches.get("bits") == 8 else "float32",
        "mode": {"delayed": "delayed", "local": "diloco"}.get(switches.get("pace"), "synchronous"),
        "aggregation": "centered-clip" if switches.get("clip") else "mean",
        "max_epochs_alone": 0,
    }
    optimizer = {"name": "adamw", "betas": SETTINGS.betas, "eps": SETTINGS.eps, "weight_decay": 0.0}
    optimizer |= {"max_grad_norm": SETTINGS.max_norm}
    schedule = {"peak_learning_rate": SETTINGS.rate, "warmup_epochs": SETTINGS.warmup // inner}
    return demo.model_copy(
        update={
            "run_id": "together",
            "swarm": demo.swarm.model_copy(update=swarm),
            "optimizer": demo.optimizer.model_copy(update=optimizer),
            "schedule": demo.schedule.model_copy(update=schedule | {"total_epochs": updates // inner}),
        }
    )


# -- one peer, in processes of its own ---------------------------------------------------------------------------------


def peer(number: int, switches: dict, updates: int, initial_peers: list[str], folder: str, stop) -> None:
    """Trains up to a number of updates; prints a line of JSON for each event."""
    import torch

    from benchmarks.attacks.attacked_runs import be_hostile
    from benchmarks.swarm.shapes import SEED, SETTINGS, Shapes, dice, seen
    from training.swarm.node.dht import full_addresses, start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer

    torch.set_num_threads(1)
    if switches.get("hostile") and NAMES[number] == NAMES[-1]:
        be_hostile(0)
    run, identity = recipe(switches, updates), Identity(Path(folder) / NAMES[number])
    where = {"initial_peers": initial_peers, "host_maddrs": ["/ip4/127.0.0.1/tcp/0"]}
    dht = start_dht(run, identity, **where)
    model, inner = Shapes(), SETTINGS.inner if switches.get("pace") == "local" else 1
    optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=SETTINGS.micro_batch)
    say(event="ready", addresses=full_addresses(dht))
    stop.listen()
    while not (Path(folder) / "go").exists() and not stop.wait(0.02):
        pass
    random_numbers, pairs, looked = dice(SEED + 1 + number), seen(), -1
    while not stop.asked and looked < updates:
        done = optimizer.local_epoch * inner
        if done // SETTINGS.every > looked // SETTINGS.every:
            looked = done
            if number == 0:
                say(event="look", update=done, **model.look())
        time.sleep(SECONDS_A_SAMPLE * SETTINGS.micro_batch)
        optimizer.zero_grad()
        model([pairs[int(next(random_numbers) * len(pairs))] for _ in range(SETTINGS.micro_batch)]).backward()
        optimizer.step()
        for report in optimizer.take_epoch_reports():
            facts = {"senders": report.senders, "batch": report.update_samples, "bytes": report.bytes_sent}
            say(event="update", time=time.monotonic(), update=report.epoch * inner, fault=report.fault, **facts)
    if number == 0:
        model.mosaic().quantize(128).save(Path(folder) / "mosaic.png", optimize=True)
        say(event="end")
    optimizer.say_goodbye()


def say(**facts: object) -> None:
    """A line of JSON for the program that started this one."""
    print(json.dumps(facts), flush=True)


# -- a run -------------------------------------------------------------------------------------------------------------


class Peer:
    """A peer's processes, and the lines that it has printed."""

    def __init__(self, number: int, switches: dict, updates: int, initial_peers: list[str], folder: Path):
        self.log = folder / f"{NAMES[number]}.log"
        given = json.dumps([number, switches, updates, initial_peers, str(folder)])
        with self.log.open("w") as output, self.log.with_suffix(".err").open("w") as errors:
            command = [sys.executable, __file__, "--peer", given]
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)

    def said(self, event: str) -> list[dict]:
        """What the peer has printed about one kind of event."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [fact for fact in facts if fact["event"] == event]

    def await_said(self, event: str, enough: Callable[[list[dict]], bool] = bool) -> list[dict]:
        """Waits until the peer has printed enough lines about an event; returns them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not enough(found := self.said(event)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                errors = self.log.with_suffix(".err").read_text(encoding="utf-8")
                raise SystemExit(f"A peer has ended or taken too long before {event!r}. Its errors:\n{errors[-3000:]}")
            time.sleep(0.1)
        return found

    def kill(self) -> None:
        """Kills all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def train(switches: dict, updates: int, mosaic: Path | None) -> dict:
    """Makes a run, and returns its facts."""
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            known: list[str] = []
            for number in range(len(NAMES)):
                peers.append(Peer(number, switches, updates, known, folder))
                known = known or peers[0].await_said("ready")[0]["addresses"][:1]
            for one in peers:
                one.await_said("ready")
            (folder / "go").touch()
            killed = None
            if switches.get("drop"):
                peers[0].await_said("update", lambda said: bool(said) and said[-1]["update"] >= DROP_AT)
                peers[-1].kill()
                killed = time.monotonic()
            peers[0].await_said("end")
            facts = _facts(peers[0], updates, killed)
            if mosaic:
                mosaic.write_bytes((folder / "mosaic.png").read_bytes())
            return facts
        finally:
            for one in peers:
                one.kill()


def _facts(first: Peer, updates: int, killed: float | None) -> dict:
    looks = [look for look in first.said("look") if look["update"] <= updates]
    reports = sorted(first.said("update"), key=lambda report: report["update"])
    facts = {
        "losses": [[look["update"], round(look["loss"], 5)] for look in looks],
        "right": looks[-1]["right"],
        "right_unseen": looks[-1]["right_unseen"],
        "batch": statistics.median(report["batch"] for report in reports if report["batch"]),
        "bytes": statistics.median(report["bytes"] for report in reports),
        "seconds": statistics.median(b["time"] - a["time"] for a, b in itertools.pairwise(reports)),
        "not_by_all": sum(report["senders"] < len(NAMES) for report in reports),
    }
    if killed is not None:
        after = next(report["time"] for report in reports if report["time"] > killed and report["senders"] > 1)
        facts |= {"drop_at": DROP_AT, "seconds_after_drop": round(after - killed, 2)}
    return facts


def page_settings() -> dict:
    """What the page must know to train the same model in the same way."""
    from benchmarks.attacks.attacked_runs import FACTOR
    from benchmarks.swarm.shapes import SEED, SETTINGS, SIDE, Shapes
    from training.swarm.epoch.strategies.local_updates import LocalUpdates

    rate, momentum = LocalUpdates.outer_settings(recipe({"pace": "local"}, SETTINGS.updates))
    return {
        "sizes": Shapes().sizes,
        "side": SIDE,
        "seed": SEED,
        "batch": SETTINGS.batch,
        "microBatch": SETTINGS.micro_batch,
        "updates": SETTINGS.updates,
        "every": SETTINGS.every,
        "rate": SETTINGS.rate,
        "warmup": SETTINGS.warmup,
        "betas": SETTINGS.betas,
        "eps": SETTINGS.eps,
        "maxNorm": SETTINGS.max_norm,
        "inner": SETTINGS.inner,
        "outer": {"rate": rate, "momentum": momentum},
        "hostileFactor": FACTOR,
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each run, and writes the record and the pictures if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="the record; runs that it has and that are not made stay"
    )
    parser.add_argument("--pictures", type=Path, metavar="FILE", help="what the model of the first run draws, as PNG")
    parser.add_argument("--runs", nargs="*", choices=list(RUNS), default=list(RUNS), help="runs to make (all)")
    parser.add_argument("--updates", type=int, help="updates of a run (the page's)")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.peer:
        from training.processes.environment import prepare_environment
        from training.processes.role import run_role

        prepare_environment()
        run_role(partial(peer, *json.loads(flags.peer)))
    from benchmarks.swarm.shapes import SETTINGS, drawings

    updates = flags.updates or SETTINGS.updates
    earlier = json.loads(flags.json.read_text()) if flags.json and flags.json.exists() else {"runs": {}}
    runs = earlier["runs"]
    for name in flags.runs:
        runs[name] = {"switches": RUNS[name]} | train(RUNS[name], updates, flags.pictures if name == "plain" else None)
        facts = runs[name]
        print(f"{name:<14}loss {facts['losses'][-1][1]:.4f}, {facts['right']} + {facts['right_unseen']} right, "
              f"{facts['bytes'] / 1000:.0f} kB and {facts['seconds']:.2f} s an update", flush=True)  # fmt: skip
    if flags.json:
        versions = {name: version(name) for name in ("torch", "hivemind")}
        runs = {name: runs[name] for name in RUNS if name in runs}
        results = [
            result(f"{name}: loss after {updates} updates", "", run["losses"][-1][1]) for name, run in runs.items()
        ]
        more = {"settings": page_settings(), "drawings": drawings(), "runs": runs}
        record(flags.json, "together", versions, results, **more)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
