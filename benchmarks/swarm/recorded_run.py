"""Records a short run for the home page: a newcomer comes, and is killed in the middle of an average.

    python benchmarks/swarm/recorded_run.py --json benchmarks/results/recorded_run.json --pictures site/images/run.png

The programs are those that people start: the demo's servers, and volunteers who join by `join`, on this machine, which
must run Linux. Settings that cost or save time make them unequal, as computers are. Barbara comes later than the
others. In a later epoch, when it has sent half of what it usually sends in an average, all its processes are killed;
later still it is started again. The run has the recipe `demo` with a shorter schedule, and takes about ten minutes on
two free cores.

The record has a row for each epoch of each volunteer, from their event logs, and for each epoch of the run, from the
monitor's history. Times are seconds since the first volunteer's program was ready. A run with `--small` only shows that
this program works.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import psutil
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from tests.support.ports import free_port
from training.demo.children import Part, processes_of, read_events, sweep
from training.demo.run import LOOPBACK, MICRO_BATCH_SIZE
from training.publish.history.history import HistoryReader
from training.recipe import load_recipe, read_recipe

PROGRAM = (sys.executable, "-m", "training")
VOLUNTEERS = {
    "ada": (("--precision", "bfloat16"), "computes in 16 bits"),
    "grace": (("--precision", "float32"), ""),
    "alan": (
        ("--precision", "float32", "--checkpointing", "--micro-batch-size", "2"),
        "computes its activations twice",
    ),
    "barbara": (("--precision", "float32"), ""),
}
"""Name -> flags, and what they mean, if they make a difference: on a core with instructions for bfloat16, ada computes
2.4 times as fast as grace, and alan 0.7 times."""
LATECOMER = "barbara"
AGAIN = "-again"
"""Ending of the log's name of a volunteer's second start."""
PATIENCE_SECONDS = 1800.0
"""Longest wait for anything; a busy machine needs ten seconds for an epoch."""
COMPUTING_SHARE = 0.6
"""Share of an epoch in which its average has certainly not begun."""
LOOK_SECONDS = 0.002
"""Interval at which the sent bytes are read; an average of this model takes about a tenth of a second."""
COLUMNS = ("epoch", "time", "samples", "senders", "waiting_seconds", "averaging_seconds", "bytes_sent", "loss")
"""Fields of an `epoch` event that the record keeps."""
DIGITS = {"time": 2, "waiting_seconds": 2, "averaging_seconds": 2, "loss": 3}
SNAPSHOTS = 12
"""Pictures of at most this many epochs, evenly spread from the first to the last."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Epochs at which something happens."""

    comes: int = 8
    dies: int = 31
    returns: int = 52
    last: int = 100
    pictures_every: int = 5
    pictures: int = 12_000


SMALL = Plan(comes=2, dies=12, returns=14, last=45, pictures_every=15, pictures=400)


@dataclass
class Run:
    """The programs of the run in a folder."""

    folder: Path
    plan: Plan
    parts: dict[str, Part] = field(default_factory=dict)

    def start(self, name: str, words: Sequence[object], *, threads: int | None = 1) -> Part:
        """Starts a program."""
        log = self.folder / "logs" / f"{name}.log"
        self.parts[name] = Part(name, [*PROGRAM, *map(str, words)], log, threads=threads)
        return self.parts[name]

    def start_servers(self) -> None:
        """Starts bootstrap peer and monitor, as the demo does."""
        recipe = self.folder / "recipe.toml"
        recipe.write_text(_recipe(self.plan), encoding="utf-8")
        own = ("--recipe", recipe, "--run-dir", self.folder / "run", "--port", free_port(), "--volunteers", 0)
        self.start("demo", ("demo", *own, "--pictures", self.plan.pictures), threads=None)

    def join(self, name: str, ending: str = "") -> None:
        """Starts a volunteer, once the servers are ready."""
        ready = self.await_event(self.folder / "run" / "logs" / "monitor.jsonl", "ready", self.parts["demo"])
        known = [word for address in ready["initial_peers"] for word in ("--initial-peers", address)]
        own = ("--name", name, "--state-dir", self.folder / name, "--host-maddrs", LOOPBACK, "--pause-when", "never")
        sizes = ("--threads", 1, "--micro-batch-size", MICRO_BATCH_SIZE, *VOLUNTEERS[name][0])
        # At normal priority: otherwise any other work on this machine would decide who is fast.
        own += ("--normal-priority", "--verbose")
        words = ("join", "--recipe", f"{ready['url']}/recipe.toml", *known, *own, *sizes)
        log = self.folder / "logs" / f"{name}{ending}.jsonl"
        self.start(f"{name}{ending}", (*words, "--log-json", log))

    def events(self, name: str) -> list[dict]:
        """Events of a volunteer so far, of both starts."""
        logs = [self.folder / "logs" / f"{name}{ending}.jsonl" for ending in ("", AGAIN)]
        return [event for log in logs for event in read_events(log)]

    def await_event(self, log: Path, kind: str, part: Part) -> dict:
        """The first event of a kind in a log that the part, or a program of its, writes."""
        return self._await(lambda: next((one for one in read_events(log) if one["event"] == kind), None), part)

    def await_epoch(self, name: str, epoch: int) -> None:
        """Waits until a volunteer has ended an epoch."""
        self._await(lambda: any(one["epoch"] >= epoch for one in self.epochs(name)), self.parts[name])

    def epochs(self, name: str) -> list[dict]:
        """Events `epoch` of a volunteer so far."""
        return [one for one in self.events(name) if one["event"] == "epoch"]

    def _await(self, condition: Callable[[], object], part: Part):
        """What a condition gives as soon as it holds.

        Raises:
            TrainingError: If the part ends before, or it takes very long.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            if part.exit_code is not None or time.monotonic() > deadline:
                raise part.failure("ended, or took too long")
            time.sleep(0.05)
        return found

    def end(self) -> None:
        """Ends the volunteers, then the servers."""
        for names in ([name for name in self.parts if name != "demo"], ["demo"]):
            parts = [self.parts[name] for name in names if name in self.parts]
            for part in parts:
                part.send(signal.SIGTERM)
            deadline = time.monotonic() + 20
            while any(part.exit_code is None for part in parts) and time.monotonic() < deadline:
                time.sleep(0.1)
            sweep(parts)


def _recipe(plan: Plan) -> str:
    """The recipe `demo` with a shorter schedule, and pictures more often."""
    text, run = read_recipe("demo"), load_recipe("demo")
    wanted = {
        "total_epochs": (run.schedule.total_epochs, plan.last),
        "warmup_epochs": (run.schedule.warmup_epochs, plan.last // 8),
        "checkpoint_every_epochs": (run.monitor.checkpoint_every_epochs, plan.pictures_every),
        "pictures_every_epochs": (run.monitor.pictures_every_epochs, plan.pictures_every),
    }
    changes = {f"{key} = {before}\n": f"{key} = {after}\n" for key, (before, after) in wanted.items()}
    for before, after in changes.items():
        if before not in text:
            raise SystemExit(f"The recipe has no line {before!r}; change this program.")
        text = text.replace(before, after)
    return text


def kill_while_it_averages(run: Run, name: str) -> float:
    """Kills a volunteer's processes when it has sent half of what it sends in an average; returns the time.

    The average is one whose epoch begins with no round of parameters, which would send bytes as well.
    """
    every, seen = load_recipe("demo").swarm.average_state_every, len(run.epochs(name))
    found, sent = run.epochs(name), []
    while not sent or len(found) <= seen or found[-1]["epoch"] % every not in (1, 2):
        time.sleep(0.01)
        found = run.epochs(name)
        sent = [one["bytes_sent"] for one in found if one["senders"] > 1]
    processes = processes_of([run.parts[name]])
    # A round of parameters may still run in the background: after a fault, the peers hold one more.
    time.sleep(COMPUTING_SHARE * found[-1]["step_seconds"])
    with _before_all_others():
        # The node also writes what it receives, to the trainer, and that is as much as it sends.
        enough = _written_bytes(processes) + min(sent)
        while _written_bytes(processes) < enough:
            time.sleep(LOOK_SECONDS)
        # Those that write most go first: the node would send on while the others are ended.
        for process in sorted(processes, key=lambda one: _written_bytes([one]), reverse=True):
            process.kill()
        killed = time.time()
    sweep([run.parts[name]])
    return killed


def _written_bytes(processes: Iterable[psutil.Process]) -> int:
    """Bytes that processes have written; a node writes to its sockets as to files."""
    written = 0
    for process in processes:
        with suppress(psutil.Error):  # one that has just ended
            written += process.io_counters().write_chars
    return written


@contextmanager
def _before_all_others() -> Iterator[None]:
    """Lets this program come before others on a busy machine, if it may: an average is short."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


# -- the record --------------------------------------------------------------------------------------------------------


def condensed(logs: dict[str, list[dict]], *, killed: dict[str, float]) -> dict:
    """Facts about the volunteers of a run, in seconds since the first of them was ready.

    Args:
        logs: Volunteer -> its events, of all its starts.
        killed: Volunteer -> time at which it was killed.
    """
    began = min(event["time"] for events in logs.values() for event in events if event["event"] == "ready")

    def since(moment: float) -> float:
        return round(moment - began, 2)

    volunteers = []
    for name, events in logs.items():
        joined = [since(event["time"]) for event in events if event["event"] == "joined"]
        left = [(since(event["time"]), "left") for event in events if event["event"] == "stopped"]
        left += [(since(killed[name]), "killed")] if name in killed else []
        lives = [[came, *gone] for came, gone in zip(joined, sorted(left), strict=True)]
        epochs = [event | {"time": event["time"] - began} for event in events if event["event"] == "epoch"]
        rows = [[_rounded(key, event[key]) for key in COLUMNS] for event in epochs]
        warnings = [[since(event["time"]), event["text"]] for event in events if event["event"] == "warning"]
        volunteers.append({"name": name, "lives": lives, "warnings": warnings, "epochs": rows})
    return {"began": began, "columns": list(COLUMNS), "volunteers": volunteers}


def _rounded(key: str, value: float) -> float:
    return round(value, DIGITS[key]) if key in DIGITS else value


def seconds_to_the_next_update(facts: dict, name: str) -> tuple[float, bool]:
    """Seconds from a volunteer's death to the last survivor's next update, and whether they repeated the average."""
    lives = next(one["lives"] for one in facts["volunteers"] if one["name"] == name)
    died = next(end for _, end, how in lives if how == "killed")
    survivors = [one for one in facts["volunteers"] if one["name"] != name]
    at = COLUMNS.index("time")
    next_updates = [min(row[at] for row in one["epochs"] if row[at] > died) for one in survivors]
    repeated = [
        moment for one in survivors for moment, text in one["warnings"] if "averaged again" in text and moment > died
    ]
    return max(next_updates) - died, bool(repeated) and min(repeated) <= max(next_updates) + 1


def pictures_of(history: HistoryReader, drawn: Path, began: float, sprite: Path) -> list[list[float]]:
    """Writes the pictures of some epochs into one file, below each other; returns what is known of each epoch.

    That is the time, the number, and how many of the pictures the monitor's judge found right. The pictures of an epoch
    form a square, line by line.
    """
    every = [snapshot for snapshot in history.snapshots() if snapshot["pictures"]]
    count = min(SNAPSHOTS, len(every))
    chosen = [every[round(place * (len(every) - 1) / max(count - 1, 1))] for place in range(count)]
    loaded = [[Image.open(drawn / picture["file"]).convert("RGB") for picture in one["pictures"]] for one in chosen]
    (width, height), side = loaded[0][0].size, math.ceil(math.sqrt(len(loaded[0])))
    whole = Image.new("RGB", (width * side, height * side * len(loaded)))
    for place, pictures in enumerate(loaded):
        for number, picture in enumerate(pictures):
            whole.paste(picture, (number % side * width, (place * side + number // side) * height))
    whole.save(sprite, optimize=True)
    right = [sum(bool(picture["shape"] and picture["colour"]) for picture in one["pictures"]) for one in chosen]
    return [[round(one["time"] - began, 2), one["epoch"], count] for one, count in zip(chosen, right, strict=True)]


def run_by(plan: Plan, folder: Path, sprite: Path) -> dict:
    """Makes the run, and returns the record's facts about it."""
    run = Run(folder, plan)
    try:
        run.start_servers()
        early = [name for name in VOLUNTEERS if name != LATECOMER]
        for name in early:
            run.join(name)
        run.await_epoch(early[0], plan.comes)
        run.join(LATECOMER)
        run.await_epoch(LATECOMER, plan.dies)
        killed = {LATECOMER: kill_while_it_averages(run, LATECOMER)}
        run.await_epoch(early[0], plan.returns)
        run.join(LATECOMER, AGAIN)
        run.await_epoch(early[0], plan.last)
        time.sleep(20)  # the monitor draws the last pictures, and the volunteers still serve their state
    finally:
        run.end()
    facts = condensed({name: run.events(name) for name in VOLUNTEERS}, killed=killed)
    history = HistoryReader(folder / "run" / "history.sqlite")
    facts["snapshots"] = pictures_of(history, folder / "run" / "pictures", facts["began"], sprite)
    facts["history"] = [
        [row["epoch"], round(row["time"] - facts["began"], 2), round(row["loss"], 3), row["samples"]]
        for row in history.epochs()
        if row["loss"] is not None
    ]
    recipe = load_recipe("demo")
    facts |= {"prompts": list(recipe.monitor.prompts), "target_batch_size": recipe.swarm.target_batch_size}
    return facts | {"unequal": {name: words for name, (_, words) in VOLUNTEERS.items() if words}}


def main(arguments: list[str] | None = None) -> int:
    """Makes a run and writes its record; returns 1 if the death was not in the middle of an average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record")
    parser.add_argument("--pictures", type=Path, metavar="FILE", required=True, help="what the model drew, as one PNG")
    parser.add_argument("--small", action="store_true", help="a run of a few epochs; not for a record")
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        facts = run_by(SMALL if flags.small else Plan(), Path(folder), flags.pictures)
    seconds, has_repeated = seconds_to_the_next_update(facts, LATECOMER)
    metric = "from a volunteer's death in the middle of an average to the last of the others' next updates"
    results = [result(metric, "s", round(seconds, 2)), result("epochs", "", facts["history"][-1][0])]
    for one in results:
        print(f"{one['metric']}: {one['ours']} {one['unit']}")
    if not has_repeated:
        print("The others did not repeat the average: the death came too early or too late. Run this again.")
        return 1
    if flags.json:
        versions = {name: version(name) for name in ("torch", "hivemind")}
        record(flags.json, "recorded_run", versions, results, **facts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
