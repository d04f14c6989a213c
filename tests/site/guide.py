"""The commands of a page, run one by one in its order on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx

from tests.deploy.tools import parse_command
from tests.support.ports import free_ports
from tests.support.programs import ROOT, run_program, until
from training.cli import COMMANDS

BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRAINER = ".venv/bin/nox -s training -- "
NOT_RUN = {
    "sudo systemctl": "needs a machine that systemd has started; tests/deploy/test_systemd.py lets it read the units",
    "sudo chown": "needs root",
    "journalctl": "shows what units under systemd print",
    "apt-get install": "changes this machine",
    "podman": "needs a base image from a registry; `nox -s container` builds the image and runs its tests",
    "RUN=": "needs a container engine; tests/deploy/test_container.py reads deploy/compose.yml",
    ".venv/bin/nox -s site": "makes an environment, and builds the site in which other tests look",
    ".venv/bin/nox -s demo": "makes an environment; tests/training/demo/test_whole_run.py runs a demo",
}
"""Beginning of a command that no test runs -> the reason. A test checks what can be checked of it."""
PROGRAMS = ("sudo", "journalctl", "apt-get", "podman", "tar", "rm", "cp", ".venv/bin/nox -s")


def reason_not_to_run(command: str) -> str | None:
    """The reason why tests do not run a command; None if they do."""
    return next((reason for beginning, reason in NOT_RUN.items() if command.startswith(beginning)), None)


def commands_in_sentences(text: str) -> list[str]:
    """Commands that a page has in its sentences and tables: code of several words, the first of which is a program's
    name or one of the trainer's commands."""
    begins = tuple(f"{name} " for name in (*PROGRAMS, *COMMANDS))
    named = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    return [code for code in named if code.startswith(begins) and not code.startswith(TRAINER.strip())]


def check_sentences(text: str) -> None:
    """Checks of each command in a page's sentences that the trainer understands it, or that `NOT_RUN` has it.

    The commands in blocks are those that `Guide` runs.
    """
    for command in commands_in_sentences(text):
        if reason_not_to_run(command) is None:
            parse_command(shlex.split(command))


class Guide:
    """The commands of a text, each of which is to be taken once and in order."""

    def __init__(self, folder: Path, text: str):
        self.commands = [line for block in BLOCK.findall(text) for line in block.splitlines()]
        self.folder = folder
        # The bootstrap peer and the monitor listen at the DHT's port and at the next.
        self.port, self.dht_port, _ = free_ports(3)

    def take(self, beginning: str) -> list[str]:
        """The next command, for this machine; it must begin like this, and be one that tests run."""
        command = self._next(beginning)
        assert reason_not_to_run(command) is None, command
        return self._here(command)

    def read(self, beginning: str) -> list[str]:
        """The next command, for a check of what it names; it must begin like this, and be one that tests do not run."""
        command = self._next(beginning)
        assert reason_not_to_run(command) is not None, command
        return shlex.split(command)

    def _next(self, beginning: str) -> str:
        command = self.commands.pop(0)
        assert command.startswith(beginning), command
        return command

    def _here(self, command: str) -> list[str]:
        for site in ("http://run.example:8000", "http://localhost:8000", "https://run.example"):
            command = command.replace(site, f"http://localhost:{self.port}")
        command = command.removeprefix("sudo ").replace("run.example", "localhost")
        for folder in ("etc", "var"):
            command = command.replace(f" /{folder}/", f" {self.folder}/{folder}/")
        if command.startswith(TRAINER):
            return [sys.executable, "-m", "training", *shlex.split(command.removeprefix(TRAINER))]
        return shlex.split(command)

    def run(self, beginning: str, *, where: Path | None = None, within: float = 240) -> str:
        """Runs the next command to its end; its output."""
        command = self.take(beginning)
        ended = run_program(command, cwd=where or self.folder, env=environment(), within=within)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class Machine:
    """Programs that run in a folder, with what they print."""

    def __init__(self, programs, guide: Guide):
        self.programs, self.guide = programs, guide
        self.serving: subprocess.Popen | None = None
        self.log = self.events = Path()
        self.starts = 0

    def serve(self, command: list[str], folder: Path) -> dict:
        """Starts `serve` on loopback; its `ready` event."""
        self.starts += 1
        self.log, self.events = (self.guide.folder / f"serve-{self.starts}.{ending}" for ending in ("log", "jsonl"))
        here = ["--host", "127.0.0.1", "--port", self.guide.port, "--dht-host", "127.0.0.1"]
        here += ["--dht-port", self.guide.dht_port, "--log-json", self.events]
        self.serving = self.start([*command, *here], self.log, folder)
        return until(lambda: self.told("ready"), said=self.log.read_text)[0]

    def start(self, command: list, log: Path, folder: Path) -> subprocess.Popen:
        with log.open("w") as printed:
            return self.programs.start(command, cwd=folder, env=environment(), stdout=printed, stderr=subprocess.STDOUT)

    def told(self, event: str) -> list[dict]:
        """What `serve` has logged of itself; it must still run."""
        assert self.serving.poll() is None, self.log.read_text()
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == event and "role" not in one]

    def end(self) -> None:
        """Ctrl-C."""
        self.serving.send_signal(signal.SIGINT)
        assert self.serving.wait(30) == 0, self.log.read_text()

    def state(self) -> dict:
        """State of the run as the dashboard reads it; empty while nobody answers."""
        with suppress(httpx.HTTPError):
            address = f"http://127.0.0.1:{self.guide.port}/live/state.json"
            return httpx.get(address, timeout=5).raise_for_status().json()
        return {}

    def until_epoch(self, least: int, others: Path, within: float = 120) -> int:
        """The dashboard's epoch, once it has come so far while a volunteer is there."""

        def come_so_far():
            state = self.state()
            return state.get("active_peers") and (state["epoch"] or 0) >= least and state["epoch"]

        return until(come_so_far, within, said=lambda: self.log.read_text() + others.read_text())
