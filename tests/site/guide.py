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

from tests.ports import free_ports
from tests.programs import ROOT, run_program, until

BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRAINER = ".venv/bin/nox -s training -- "


class Guide:
    """The commands of a text, each of which is to be taken once and in order."""

    def __init__(self, folder: Path, text: str):
        self.commands = [line for block in BLOCK.findall(text) for line in block.splitlines()]
        self.folder = folder
        # The bootstrap peer and the monitor listen at the DHT's port and at the next.
        self.port, self.dht_port, _ = free_ports(3)

    def take(self, beginning: str) -> list[str]:
        """The next command, for this machine; it must begin like this."""
        command = self.commands.pop(0)
        assert command.startswith(beginning), command
        for site in ("http://run.example:8000", "https://run.example"):
            command = command.replace(site, f"http://localhost:{self.port}")
        command = command.replace("run.example", "localhost")
        command = command.removeprefix("sudo ").replace(" /etc/", f" {self.folder}/etc/")
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
        """Of the dashboard; empty while nobody answers."""
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
