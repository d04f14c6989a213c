"""Three runs that the same hostile volunteer attacks: with the mean, with CenteredClip, and with tickets.

    python benchmarks/attacks/attacks.py attacked_runs --json benchmarks/results/attacked_runs.json

Each run is of the programs that people start: a bootstrap peer and four volunteers, who train a small language model
on the demo's stories. One of them, mallory, is changed: from one epoch on, it sends its gradients times -1000. The
first run averages by the mean and the second by CenteredClip. In the third one, which averages by the mean as well,
only members take part. A volunteer without an invitation tries to join. This program plays the maintainer: when the
loss of the honest volunteers has risen by `NOTICED_RISE`, it bans mallory and takes the run back to the last checkpoint
from before the attack, with one command. Mallory's program hears of no ban and goes on; the others keep it out.

The record has the losses of the honest after each update, and what happened at which update and second.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import result
from tests.support.ports import free_port
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints
from training.demo.children import Part, read_events, sweep
from training.recipe import read_recipe

PACKAGES = ("torch", "hivemind")
HONEST, HOSTILE, STRANGER = ("ada", "ben", "cleo"), "mallory", "eve"
FACTOR = -1000.0
"""What mallory multiplies its gradients with."""
NOTICED_RISE = 0.5
"""The maintainer acts when the loss of the honest is above its lowest value by this, in nats a token."""
MICRO_BATCH = 8
READY_SECONDS, RUN_SECONDS = 240.0, 1500.0
PROGRAM = (sys.executable, "-m", "training")
LOOPBACK = ("--host-maddrs", "/ip4/127.0.0.1/tcp/0")
SMALL = {
    "hidden_size = 128": "hidden_size = 64",
    "intermediate_size = 336": "intermediate_size = 168",
    "num_hidden_layers = 3": "num_hidden_layers = 2",
    "target_batch_size = 128": "target_batch_size = 96",
    "max_epochs_alone = 10": "max_epochs_alone = 0",
    "pictures_every_epochs = 10": "pictures_every_epochs = 1000\nkeep_last = 20",
}
"""Changes of the recipe `stories`: a smaller model and batch, so that four volunteers on one machine are quick."""
MEAN, CLIP, TICKETS = SCENARIOS = ("mean", "centered-clip", "tickets")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How long the runs are."""

    attack_epoch: int = 30
    """The first epoch of the attack; the recipe keeps a checkpoint every ten epochs."""
    last_update: int = 100
    stories: int = 20_000


def be_hostile(first_epoch: int) -> None:
    """Changes this process: it sends its gradients times `FACTOR` from an epoch on, and hears of no ban."""
    from training.swarm.epoch.gradients import GradientAverager
    from training.trust.member import Member

    load_mean = GradientAverager.load_mean

    def load_hostile(self: GradientAverager) -> int:
        samples = load_mean(self)
        if self._epoch >= first_epoch:
            with self.get_tensors() as averaged:
                for mean in averaged:
                    mean.mul_(FACTOR)
        return samples

    GradientAverager.load_mean = load_hostile
    Member._look = lambda self: None


# -- the programs of a run ---------------------------------------------------------------------------------------------


@dataclass
class Run:
    """The programs of one run in a folder."""

    folder: Path
    shards: Path
    sizes: Sizes
    parts: list[Part] = field(default_factory=list)

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.toml"

    def start(self, name: str, *words: object, program: Sequence[str] = PROGRAM) -> Part:
        """Starts a program with an event log."""
        log = self.folder / f"{name}.log"
        command = [*program, *map(str, words), "--log-json", str(log.with_suffix(".jsonl"))]
        self.parts.append(Part(name, command, log))
        return self.parts[-1]

    def join(self, name: str, known: Sequence[str], *words: str, program: Sequence[str] = PROGRAM) -> Part:
        """Starts a volunteer."""
        initial = [word for address in known for word in ("--initial-peers", address)]
        own = ("--recipe", self.recipe, "--shards", self.shards, "--state-dir", self.folder / name, "--name", name)
        sizes = ("--threads", "1", "--micro-batch-size", MICRO_BATCH, "--precision", "float32", "--verbose")
        return self.start(name, "join", *initial, *own, *sizes, *LOOPBACK, *words, program=program)

    def volunteers(self, known: Sequence[str], words_of: Callable[[str], Sequence[str]]) -> None:
        """Starts the honest and mallory; returns when all have joined."""
        hostile = (sys.executable, __file__, str(self.sizes.attack_epoch))
        for name in (*HONEST, HOSTILE):
            self.join(name, known, *words_of(name), program=hostile if name == HOSTILE else PROGRAM)
        for name in (*HONEST, HOSTILE):
            self.await_event(name, "joined")

    def part(self, name: str) -> Part:
        return next(one for one in self.parts if one.name == name)

    def events(self, name: str) -> list[dict]:
        return list(read_events(self.part(name).events))

    def await_event(self, name: str, kind: str) -> dict:
        """The first event of a kind.

        Raises:
            TrainingError: If the program ends before, or there is none for a long time.
        """
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            for event in self.events(name):
                if event["event"] == kind:
                    return event
            if self.part(name).exit_code is not None:
                break
            time.sleep(0.2)
        raise self.part(name).failure(f"has no event {kind!r}")

    def updates(self) -> list[dict]:
        """The run's updates in their order: epoch, loss of the honest before it, weighted by samples, and when it was.

        After the run has gone back, epochs come a second time, in the branch.
        """
        found: dict[tuple[int, int], list[dict]] = {}
        for name in HONEST:
            branch = 0
            for event in self.events(name):
                if event["event"] == "branch":
                    branch += 1
                elif event["event"] == "epoch" and event["loss"] is not None and event["samples"]:
                    found.setdefault((branch, event["epoch"]), []).append(event)
        return [_update(branch, epoch, events) for (branch, epoch), events in sorted(found.items())]

    def end(self) -> None:
        """Ends all programs and what they have started."""
        for part in self.parts:
            part.send(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while any(part.exit_code is None for part in self.parts) and time.monotonic() < deadline:
            time.sleep(0.1)
        sweep(self.parts)


def _update(branch: int, epoch: int, events: Sequence[dict]) -> dict:
    samples = sum(event["samples"] for event in events)
    loss = sum(event["loss"] * event["samples"] for event in events) / samples
    senders = max(event["senders"] for event in events)
    first = min(event["time"] for event in events)
    return {"branch": branch, "epoch": epoch, "loss": loss, "senders": senders, "time": first}


@contextmanager
def run_in(shards: Path, aggregation: str, sizes: Sizes) -> Iterator[Run]:
    """A run of the recipe `stories` with some changes that averages so; its programs end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), shards, sizes)
        text = read_recipe("stories")
        for before, after in {**SMALL, 'aggregation = "mean"': f'aggregation = "{aggregation}"'}.items():
            if before not in text:
                raise SystemExit(f"The recipe has no line {before!r}; change this program.")
            text = text.replace(before, after)
        run.recipe.write_text(text, encoding="utf-8")
        try:
            yield run
        finally:
            run.end()


# -- the three runs ----------------------------------------------------------------------------------------------------


def open_run(shards: Path, aggregation: str, sizes: Sizes) -> dict:
    """A run that anyone may join, with four volunteers, one of them hostile."""
    with run_in(shards, aggregation, sizes) as run:
        run.start("bootstrap", "bootstrap", "--recipe", run.recipe, "--state-dir", run.folder / "bootstrap", *LOOPBACK)
        run.volunteers(run.await_event("bootstrap", "ready")["addresses"], lambda name: ())
        until(lambda: len(run.updates()) >= sizes.last_update, run)
        updates = run.updates()
        return summary_of(aggregation, updates, [attack_of(updates, sizes)], sizes)


def members_run(shards: Path, sizes: Sizes) -> dict:
    """A run that admits members only, whose maintainer bans the hostile one and goes back."""
    with run_in(shards, MEAN, sizes) as run:
        members = Members(run)
        bootstrap_dir, monitor_dir = run.folder / "bootstrap", run.folder / "monitor"
        code = members.invite("bootstrap")
        own = ("--recipe", run.recipe, "--state-dir", bootstrap_dir, "--invitation", code)
        run.start("bootstrap", "bootstrap", *own, *LOOPBACK)
        known = run.await_event("bootstrap", "ready")["addresses"]
        own = ("--recipe", run.recipe, "--shards", shards, "--run-dir", monitor_dir, "--port", free_port())
        given = ("--initial-peers", known[0], "--invitation", members.invite("monitor"))
        run.start("monitor", "monitor", *own, *given, *LOOPBACK)
        known = run.await_event("monitor", "ready")["initial_peers"]
        stranger = run.join(STRANGER, known, "--invitation", "made-up")
        stranger.process.wait(READY_SECONDS)
        run.volunteers(known, lambda name: ("--invitation", members.invite(name)))
        until(lambda: has_risen(run.updates(), sizes), run)
        noticed = time.time()
        before = [epoch for epoch in checkpoint_epochs(monitor_dir) if epoch <= sizes.attack_epoch]
        back = ("--revert-to", max(before), "--run-dir", monitor_dir, "--bootstrap-dir", bootstrap_dir)
        banned = members.ban("--reason", "reversed gradients", *back)
        until(lambda: len(run.updates()) >= sizes.last_update and run.updates()[-1]["branch"], run)
        updates = run.updates()
        refused = {"kind": "refused", "who": STRANGER, "update": 0, "exit_code": stranger.exit_code}
        went_back = {"kind": "back", "to_epoch": max(before), "update": _first(updates, lambda one: one["branch"])}
        went_back["time"] = updates[went_back["update"] - 1]["time"]
        notice = {"kind": "noticed", "time": noticed, "update": _count_before(updates, noticed)}
        ban = {"kind": "banned", "time": banned, "update": _count_before(updates, banned)}
        return summary_of(TICKETS, updates, [refused, attack_of(updates, sizes), notice, ban, went_back], sizes)


class Members:
    """The membership server of a run, and the maintainer's commands."""

    def __init__(self, run: Run):
        self.run, self.state = run, run.folder / "membership"
        own = ("membership", "--recipe", run.recipe, "--state-dir", self.state, "--port", free_port())
        asked = subprocess.run([*PROGRAM, *map(str, own)], capture_output=True, text=True, cwd=ROOT)
        lines = asked.stdout.split("\n\n")[1]  # what the recipe of a run with members needs, says the server
        run.recipe.write_text(f"{run.recipe.read_text(encoding='utf-8')}\n{lines}\n", encoding="utf-8")
        run.start("membership", *own)
        run.await_event("membership", "ready")

    def moderate(self, *words: object) -> str:
        """What `moderate` says."""
        command = [*PROGRAM, "moderate", *map(str, words), "--state-dir", str(self.state)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    def ban(self, *words: object) -> float:
        """Bans mallory; returns the time at which the ban holds, which is before the run has gone back."""
        command = [*PROGRAM, "moderate", "ban", HOSTILE, *map(str, words), "--state-dir", str(self.state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as moderating:
            times = [time.time() for line in moderating.stdout if line.startswith("Banned")]
        if moderating.returncode:
            raise SystemExit("The ban has failed; its error is printed above.")
        return times[0]

    def invite(self, name: str) -> str:
        """A new invitation's code."""
        return re.search(r"--invitation (\S+),", self.moderate("invite", name))[1]


def until(condition: Callable[[], object], run: Run) -> None:
    """Waits until a condition holds.

    Raises:
        TrainingError: If an honest volunteer ends, or the condition does not hold for a long time.
    """
    deadline = time.monotonic() + RUN_SECONDS
    while not condition():
        for name in HONEST:
            if run.part(name).exit_code is not None or time.monotonic() > deadline:
                raise run.part(name).failure("ended, or took too long")
        time.sleep(0.5)


def checkpoint_epochs(monitor_dir: Path) -> list[int]:
    """Epochs of the monitor's checkpoints."""
    return [checkpoint_epoch(path) for path in list_checkpoints(monitor_dir / "checkpoints")]


def has_risen(updates: Sequence[dict], sizes: Sizes) -> bool:
    """Returns True if the last two losses are above the lowest by `NOTICED_RISE`."""
    losses = [update["loss"] for update in updates]
    return len(losses) > sizes.attack_epoch and min(losses[-2:]) > min(losses) + NOTICED_RISE


def attack_of(updates: Sequence[dict], sizes: Sizes) -> dict:
    """The event that the attack begins."""
    update = _first(updates, lambda one: one["epoch"] >= sizes.attack_epoch)
    return {"kind": "attack", "update": update, "time": updates[update - 1]["time"]}


def _first(updates: Sequence[dict], wanted: Callable[[dict], object]) -> int:
    """The number of the first such update, from 1."""
    return next(number for number, update in enumerate(updates, start=1) if wanted(update))


def _count_before(updates: Sequence[dict], moment: float) -> int:
    return sum(update["time"] <= moment and not update["branch"] for update in updates)


# -- the record --------------------------------------------------------------------------------------------------------


def summary_of(name: str, updates: Sequence[dict], events: Sequence[dict], sizes: Sizes) -> dict:
    """A run for the record; times are seconds since the attack began."""
    began = next(event["time"] for event in events if event["kind"] == "attack")
    shown = updates[: sizes.last_update]
    for event in events:
        if "time" in event:
            event["seconds"] = round(event.pop("time") - began, 1)
    columns = {"epochs": [one["epoch"] for one in shown], "losses": [round(one["loss"], 4) for one in shown]}
    print(f"{name}: {' '.join(f'{loss:.2f}' for loss in columns['losses'])}\n    {list(events)}", flush=True)
    return {"run": name, **columns, "events": list(events)}


def figures(runs: Sequence[dict]) -> list[dict]:
    """The record's results."""
    results = []
    for run in runs:
        start = next(event["update"] for event in run["events"] if event["kind"] == "attack")
        before = min(run["losses"][:start])
        last = sum(run["losses"][-5:]) / 5
        entry = result(f"loss at the end: {run['run']}", "nats", last, peer=before, peer_name="before the attack")
        results.append({**entry, "highest": max(run["losses"][start:])})
    for event in chain.from_iterable(run["events"] for run in runs if run["run"] == TICKETS):
        if event["kind"] in ("noticed", "banned", "back"):
            results.append(result(f"seconds from the attack's first epoch: {event['kind']}", "s", event["seconds"]))
    return results


def make_shards(folder: Path, stories_count: int) -> Path:
    """Stories, and shards of them."""
    stories, shards = folder / "stories", folder / "shards"
    sizes = ("--vocabulary", "640", "--block-length", "128")
    for words in (
        ("stories", "--out", stories, "--count", stories_count),
        ("prepare", "--text", stories, *sizes, "--out", shards),
    ):
        subprocess.run([*PROGRAM, *map(str, words)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return shards


def measure(scenarios: Sequence[str], earlier: dict, *, small: bool, processes: int) -> dict:
    """Runs scenarios one after the other; results beside the earlier runs."""
    sizes = Sizes(attack_epoch=11, last_update=20, stories=2000) if small else Sizes()
    runs = {run["run"]: run for run in earlier.get("courses", ())}
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder), sizes.stories)
        for kind in scenarios:
            runs[kind] = members_run(shards, sizes) if kind == TICKETS else open_run(shards, kind, sizes)
    courses = [runs[one] for one in SCENARIOS if one in runs]
    return {"results": figures(courses), "volunteers": len(HONEST) + 1, "factor": FACTOR, "courses": courses}


if __name__ == "__main__":  # a hostile volunteer's program
    from training.cli import main as trainer

    be_hostile(int(sys.argv[1]))
    sys.argv = ["training", *sys.argv[2:]]
    trainer()
