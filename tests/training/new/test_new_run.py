"""`new` from a folder of texts to a live run, with real servers and a volunteer that joins by the printed command."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest

from tests.site.guide import environment
from tests.support.ports import free_ports
from tests.support.programs import run_program, until
from training.demo.children import read_events
from training.new.folder import read_servers
from training.new.questions import HOW_LONG, WHERE, WHO
from training.publish.invitation import PROGRAM

TRAINER = [sys.executable, "-m", "training"]


def here(command: str) -> list[str]:
    """A command that a person would type, for this environment."""
    words = shlex.split(command)
    return [*TRAINER, *(words[1:] if words[0] == PROGRAM else words[words.index("training") + 1 :])]


class Run:
    """A run that `new` serves on loopback."""

    def __init__(self, programs, folder):
        self.programs, self.folder, self.run_dir = programs, folder, folder / "runs" / "texts"
        self.port, self.dht_port, _ = free_ports(3)
        self.log, self.events = folder / "new.log", self.run_dir / "logs" / "servers.jsonl"
        self.process: subprocess.Popen | None = None

    def start(self, command: list[str]) -> dict:
        """Starts the servers; returns their `ready` event."""
        before = len(self._ready())
        with self.log.open("a") as printed:
            options = {"cwd": self.folder, "env": environment(), "stderr": subprocess.STDOUT}
            self.process = self.programs.start(command, stdout=printed, **options)
        return until(lambda: self._is_running() and self._ready()[before:], said=self.log.read_text)[0]

    def _is_running(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return True

    def _ready(self) -> list[dict]:
        return [event for event in read_events(self.events) if event["event"] == "ready" and "role" not in event]

    def end(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) == 0, self.log.read_text()

    def join(self, command: str) -> subprocess.Popen:
        """Starts a volunteer with the printed command."""
        # Otherwise a volunteer leaves a busy machine to other programs, and its epochs last for minutes.
        how = ["--threads", "1", "--normal-priority", "--precision", "float32"]
        own = ["--state-dir", self.folder / "volunteer", *how]
        options = {"cwd": self.folder, "env": environment(), "stderr": subprocess.STDOUT}
        with (self.folder / "volunteer.log").open("a") as printed:
            return self.programs.start([*here(command), *own], stdout=printed, **options)

    def until_epoch(self, least: int) -> int:
        """The dashboard's epoch, once it has come so far while the volunteer is there."""
        told = lambda: self.log.read_text() + (self.folder / "volunteer.log").read_text()  # noqa: E731

        def come_so_far() -> int | None:
            state = self.state() if self._is_running() else {}
            return state["epoch"] if state["active_peers"] and (state["epoch"] or 0) >= least else None

        return until(come_so_far, within=400, said=told)

    def state(self) -> dict:
        return json.loads(httpx.get(f"http://127.0.0.1:{self.port}/live/state.json", timeout=10).text)


@pytest.mark.programs
@pytest.mark.timeout(1200)
def test_one_command_makes_a_run_that_goes_on_after_a_stop(programs, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(60):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"Story {number}: Ada has a red key. " * 12)
    run = Run(programs, tmp_path)
    where = ["--host", "127.0.0.1", "--port", run.port, "--dht-host", "127.0.0.1", "--dht-port", run.dht_port]
    first = run.start([*TRAINER, "new", "texts", "--yes", "--volunteers", "1:cpu", *where])
    volunteer = run.join(first["join_command"])
    run.until_epoch(1)
    readme = (run.run_dir / "README.md").read_text()
    assert "held out of training: the dashboard shows" in readme
    start, join, use = re.findall(r"^    (.+)$", readme, re.MULTILINE)
    assert here(join) == here(first["join_command"]) and f"    {first['join_command']}\n" in run.log.read_text()
    run.end()

    prepared = (run.run_dir / "shards" / "manifest.json").stat().st_mtime_ns
    again = run.start(here(start))
    assert again["initial_peers"] == first["initial_peers"] and again["url"] == first["url"]
    assert (run.run_dir / "shards" / "manifest.json").stat().st_mtime_ns == prepared
    run.until_epoch((run.state()["epoch"] or 0) + 1)
    assert volunteer.poll() is None
    used = run_program(here(use), cwd=tmp_path, env=environment())
    assert used.returncode == 0 and used.stdout.strip(), used.stdout + used.stderr
    run.end()


@pytest.mark.programs
def test_a_terminal_is_asked_three_questions(programs, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("Ada has a red key. " * 400)
    ours, its = os.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), its)
    command = [*TRAINER, "new", "texts", "--no-serve"]
    process = programs.start(command, cwd=tmp_path, env={**environment(), "TERM": "dumb"}, **streams)
    os.close(its)
    os.write(ours, b"two\n3:cpu\n7\nrun.example\n")  # the terminal keeps the lines until they are read
    printed = b""
    with suppress(OSError):  # the end of a terminal that nobody has open any more
        while part := os.read(ours, 4096):
            printed += part
    os.close(ours)
    assert process.wait(60) == 0, printed.decode()
    said = " ".join(printed.decode().split())
    assert "'two' names no volunteers" in said and "3 × computer without a GPU: " in said
    assert [said.count(question.split("?")[0]) for question in (WHO, HOW_LONG, WHERE)] == [2, 1, 1]
    assert read_servers(tmp_path / "runs" / "texts").announce_host == "run.example"
