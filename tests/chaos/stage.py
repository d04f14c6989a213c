"""A run as its programs: starts, kills and watches them, and writes down what happened when."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from calculator.swarm.settings import DEFAULTS, SPARSE_STATES_EVERY
from tests.chaos.network import Machine, build_machines
from tests.chaos.volunteer import Control
from tests.support.programs import Programs
from tests.support.random_shards import write_shards
from training.recipe import RECIPES, parse_recipe

BOOTSTRAP, MONITOR, SERVERS = "bootstrap", "monitor", "servers"
VOLUNTEERS = ("ada", "grace", "alan", "edsger", "barbara")
SAMPLE_SECONDS = 0.125
"""Seconds for which a volunteer's device computes a sample."""
EPOCH_SECONDS = 5.0
"""Seconds for which all of them together compute an epoch, if nothing is wrong."""
AGAIN_SECONDS = 5.0
"""A program that has ended by itself is started again after this time, as systemd or its owner would."""
DISK_BYTES = 64 << 20
"""Size of the monitor's disk."""
READY_SECONDS, LEAVE_SECONDS = 120.0, 20.0
"""Longest start and longest end of a program, on a computer with other work."""


def recipe(changes: dict[str, object], mode: str = DEFAULTS.mode) -> str:
    """The demo's recipe with a tiny model, short epochs and frequent checkpoints."""
    text = (RECIPES / "demo.toml").read_text(encoding="utf-8")
    tiny = {"hidden_size": 16, "num_heads": 1, "head_dim": 16, "num_layers": 2, "shared_groups": 1}
    tiny |= {"text_seq_len": 4, "image_grid": 2, "image_vocab_size": 64}
    codec = {"image_size": 16, "codebook_size": 64}
    swarm = {"target_batch_size": round(len(VOLUNTEERS) * EPOCH_SECONDS / SAMPLE_SECONDS), "total_epochs": 1_000_000}
    # A group waits for a window or two for a peer whose link is cut, so these decide what that costs the survivors.
    swarm |= {"matchmaking_seconds": 1.0}
    swarm |= {"metrics_every_seconds": 2.5, "mode": f'"{mode}"'}
    swarm |= {"average_state_every": SPARSE_STATES_EVERY} if mode == "sparse" else {}
    monitor = {"checkpoint_every_epochs": 5, "pictures_every_epochs": 1_000_000}
    for name, value in (tiny | codec | swarm | monitor | changes).items():
        text, found = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
        assert found == 1, f"the demo's recipe has {found} lines of {name}"
    text = re.sub(r"(?s)\nprompts = \[.*?\n\]", "", text)
    text = text.replace("[monitor]\n", "[monitor]\nkeep_every_epochs = 0\n")  # else each tenth checkpoint is kept
    parse_recipe(text)
    return text


@dataclass
class Program:
    """A program of the run, which may be started several times."""

    name: str
    machine: Machine
    command: list[str]
    process: subprocess.Popen | None = None
    wanted: bool = False
    """True if it should be running now."""
    again_at: float = 0.0
    stopped: list[psutil.Process] = field(default_factory=list)


class Stage:
    """The machines, the programs on them, and what they write.

    Args:
        folder: Gets all files of the run.
        programs: Ends what is started here, however the chaos program ends.
        changes: Lines of the recipe that differ.
        mode: How the volunteers exchange.
        environment: More variables for volunteers, by their names.
    """

    def __init__(
        self,
        folder: Path,
        programs: Programs,
        *,
        changes: dict[str, object] | None = None,
        mode: str = DEFAULTS.mode,
        volunteers: tuple[str, ...] = VOLUNTEERS,
        environment: dict[str, dict[str, str]] | None = None,
        sample_seconds: float = SAMPLE_SECONDS,
    ):
        self.folder, self._programs, self._environment = folder, programs, environment or {}
        self.volunteers, self._sample_seconds = volunteers, sample_seconds
        folder.mkdir(parents=True, exist_ok=True)
        self.machines = build_machines([SERVERS, *volunteers])
        self.recipe = folder / "recipe.toml"
        self.recipe.write_text(recipe(changes or {}, mode), encoding="utf-8")
        write_shards(folder / "shards", parse_recipe(self.recipe.read_text(encoding="utf-8")))
        self.disk = folder / "disk"
        self.disk.mkdir()
        mounted = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(self.disk)]
        subprocess.run(mounted, check=True)
        self._chronicle = (folder / "chaos.jsonl").open("a", encoding="utf-8", buffering=1)
        self.programs: dict[str, Program] = {}
        self.initial_peers: tuple[str, ...] = ()

    # -- what is written down --------------------------------------------------------------------------------------

    def note(self, event: str, **facts: object) -> None:
        """A line of the chronicle."""
        self._chronicle.write(json.dumps({"time": time.time(), "event": event, **facts}) + "\n")

    def events(self, name: str, kind: str) -> list[dict]:
        """The lines of a kind in a program's event log."""
        return [line for line in read_lines(self.folder / f"{name}.jsonl") if line["event"] == kind]

    def log(self, name: str) -> str:
        """What a program has printed."""
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    # -- the programs ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Starts the servers, one after the other, and all volunteers at once; waits until all of them train."""
        address = self.machines[SERVERS].address
        where = ("--recipe", self.recipe, "--host-maddrs")
        state = ("--state-dir", self.folder / "state" / BOOTSTRAP)
        self._add(BOOTSTRAP, SERVERS, "-m", "training", "bootstrap", *where, f"/ip4/{address}/tcp/31337", *state)
        self.start(BOOTSTRAP)
        own = self.await_event(BOOTSTRAP, "ready")["addresses"][0]
        where = (*where, f"/ip4/{address}/tcp/31338", "--initial-peers", own)
        site = ("--host", address, "--port", "8000", "--shards", self.folder / "shards", "--run-dir", self.disk / "run")
        self._add(MONITOR, SERVERS, "-m", "training", "monitor", *where, *site)
        self.start(MONITOR)
        self.initial_peers = tuple(self.await_event(MONITOR, "ready")["initial_peers"])
        for name in self.volunteers:
            self._add_volunteer(name)
            self.start(name)
        for name in self.volunteers:
            self.await_event(name, "epoch")

    def _add(self, name: str, machine: str, *words: object) -> None:
        command = [sys.executable, *map(str, words), "--log-json", str(self.folder / f"{name}.jsonl")]
        self.programs[name] = Program(name, self.machines[machine], command)

    def _add_volunteer(self, name: str) -> None:
        control, notes = self.folder / f"{name}.control", self.folder / f"{name}.notes.jsonl"
        Control(control).set(clock_seconds=0.0, sample_seconds=self._sample_seconds)
        known = [word for address in self.initial_peers for word in ("--initial-peers", address)]
        where = ("--host-maddrs", f"/ip4/{self.machines[name].address}/tcp/0")
        where += ("--state-dir", self.folder / "state" / name, "--shards", self.folder / "shards")
        device = ("--device", "cpu", "--precision", "float32", "--threads", "1", "--micro-batch-size", "4")
        # At a low priority, the servers of this computer would come before its volunteers; no volunteer has them.
        device += ("--normal-priority", "--verbose")
        join = ("join", "--recipe", self.recipe, *known, "--name", name, *where, *device)
        self._add(name, name, "-m", "tests.chaos.volunteer", control, notes, *join)

    def control(self, name: str) -> Control:
        """Sets a volunteer's clock and speed."""
        return Control(self.folder / f"{name}.control")

    def await_event(self, name: str, kind: str) -> dict:
        """The first event of a kind of a program that has been started; fails if it ends, or takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        while not (found := self.events(name, kind)):
            if self.programs[name].process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{name} has no event {kind!r}. It has printed:\n{self.log(name)}")
            time.sleep(0.1)
        return found[0]

    def start(self, name: str) -> None:
        """Starts a program, if it does not run."""
        program = self.programs[name]
        runs = program.process is not None and program.process.poll() is None
        if runs and program.wanted:
            return
        if runs:
            try:
                program.process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.note("stays", name=name)
                self.kill(name)
        program.wanted, program.again_at = True, 0.0
        temporary = self.folder / "temporary" / name
        temporary.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"} | self._environment.get(name, {})
        with (self.folder / f"{name}.log").open("a") as log:
            command = program.machine.command(*program.command)
            program.process = self._programs.start(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.note("start", name=name)

    def kill(self, *names: str, with_family: bool = False) -> None:
        """Kills programs with SIGKILL; with all their processes at once, as a machine does that loses its power."""
        families = {name: self._family(name) for name in names} if with_family else {}
        for name in names:
            program = self.programs[name]
            program.wanted = False
            for process in [*families.get(name, []), program.process]:
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.kill()
            program.process.wait()
            self.note("kill", name=name)

    def ask_to_leave(self, *names: str) -> None:
        """Sends SIGTERM; does not wait."""
        for name in names:
            program = self.programs[name]
            program.wanted = False
            program.process.terminate()
            self.note("ask", name=name)

    def freeze(self, name: str) -> None:
        """Stops a program with all its processes."""
        program = self.programs[name]
        program.stopped = self._family(name)
        self._send(program.stopped, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Lets the stopped processes of a program go on."""
        self._send(self.programs[name].stopped, signal.SIGCONT)

    @staticmethod
    def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _family(self, name: str) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.programs[name].process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def look_after(self) -> None:
        """Notes which programs have ended by themselves, and starts them again after some seconds."""
        for program in self.programs.values():
            if not program.wanted or program.process.poll() is None:
                continue
            if not program.again_at:
                program.again_at = time.monotonic() + AGAIN_SECONDS
                last = self.log(program.name).strip().splitlines()[-1:]
                self.note("ended", name=program.name, code=program.process.returncode, said=" ".join(last))
            elif time.monotonic() >= program.again_at:
                self.start(program.name)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Asks all programs to leave, the monitor after the volunteers, and notes what they leave behind."""
        for names in (self.volunteers, (MONITOR,), (BOOTSTRAP,)):
            self.ask_to_leave(*(name for name in names if self.programs[name].process.poll() is None))
            for name in names:
                try:
                    code = self.programs[name].process.wait(LEAVE_SECONDS)
                    self.note("left", name=name, code=code)
                except subprocess.TimeoutExpired:
                    self.note("stays", name=name)
        deadline = time.monotonic() + 3
        while self._programs.running() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.note(
            "remains",
            processes=[" ".join(process.cmdline())[:200] for process in self._programs.running()],
            files=sorted(map(str, self._remains())),
        )
        shutil.copytree(self.disk / "run", self.folder / "run", dirs_exist_ok=True)

    def _remains(self) -> list[Path]:
        temporary = [path for path in (self.folder / "temporary").glob("*/*")]
        drafts = [path for folder in (self.folder / "state", self.disk) for path in folder.rglob("*.draft-*")]
        return [*temporary, *drafts, *Path("/dev/shm").iterdir()]


def read_lines(path: Path) -> list[dict]:
    """The objects of a file of JSON lines; the last line may still be in writing."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
