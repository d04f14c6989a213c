"""A service is started again when it ends or hangs; real programs, whose behaviour a file decides."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.programs import ROOT, are_gone, until
from training.processes.programs import marked_processes
from training.processes.servers.service import Pace, Service

SERVER = """
import json, subprocess, sys, time
from pathlib import Path
behaviour, log = Path(sys.argv[1]), sys.argv[3]
assert sys.argv[2] == "--log-json"
wish = behaviour.read_text()
if wish == "broken":
    print("Error: a fault at the start", file=sys.stderr)
    sys.exit(2)
if wish == "unready":
    time.sleep(60)
helper = subprocess.Popen(["sleep", "60"], start_new_session=True)
with open(log, "a") as file:
    file.write(json.dumps({"event": "ready", "helper": helper.pid}) + "\\n")
print("at work", flush=True)
while behaviour.read_text() == wish:
    time.sleep(0.02)
print("Error: a fault in mid-run")
sys.exit(7)
"""
PACE = Pace(
    first_pause_seconds=0.1,
    longest_pause_seconds=0.4,
    calm_seconds=30,
    ready_seconds=30,
    look_seconds=0.05,
    silent_seconds=0.5,
)


class Watched:
    """A service with all that it showed and told."""

    def __init__(self, folder: Path, **pace: float):
        self.behaviour, self.lines, self.events = folder / "behaviour", [], []
        self.answers = True
        self.behaviour.write_text("work")
        self.service = Service(
            "server",
            lambda: [sys.executable, "-c", SERVER, str(self.behaviour)],
            show=self.lines.append,
            event=self.events.append,
            alive=lambda: self.answers,
            pace=Pace(**{name: getattr(PACE, name) for name in PACE.__slots__} | pace),
        )

    def until(self, condition):
        def met():
            self.service.look()
            return condition()

        return until(met, within=30, said=lambda: "\n".join(self.lines))

    def starts(self) -> int:
        return sum(event["event"] == "ready" for event in self.events)

    def pauses(self) -> list[str]:
        return [line.rpartition(" in ")[2] for line in self.lines if "starts again" in line]


@pytest.fixture
def watched(tmp_path):
    made = []

    def make(**pace):
        made.append(Watched(tmp_path, **pace))
        return made[-1]

    yield make
    for each in made:
        each.service.kill()


def test_a_service_that_ends_is_started_again_and_says_so(watched):
    server = watched()
    server.until(lambda: server.starts() == 1)
    server.until(lambda: "server: at work" in server.lines)
    server.behaviour.write_text("work on")
    server.until(lambda: server.starts() == 2)
    said = "The server has ended (exit code 7); it starts again in 0.1 s."
    assert said in server.lines and {"event": "warning", "text": said} in server.events
    assert server.lines.index("server: Error: a fault in mid-run") < server.lines.index(said)


def test_each_pause_is_twice_the_last_up_to_the_longest(watched):
    server = watched()
    server.until(lambda: server.starts() == 1)
    server.behaviour.write_text("broken")
    server.until(lambda: len(server.pauses()) == 5)
    assert server.pauses() == ["0.1 s.", "0.2 s.", "0.4 s.", "0.4 s.", "0.4 s."]
    assert (server.service.ended, server.service.last_line) == (2, "Error: a fault at the start")


def test_after_a_calm_time_the_first_pause_applies_again(watched):
    server = watched(calm_seconds=0.3)
    for wish in ("a", "b", "c"):
        server.until(lambda: server.starts() == len(server.pauses()) + 1)
        time.sleep(0.4)
        server.behaviour.write_text(wish)
        server.until(lambda wish=wish: len(server.pauses()) == "abc".index(wish) + 1)
    assert set(server.pauses()) == {"0.1 s."}


def test_what_a_killed_service_has_started_is_gone_before_the_next_start(watched):
    server = watched()
    server.until(lambda: server.starts() == 1)
    helper = psutil.Process(server.events[0]["helper"])
    psutil.Process(helper.ppid()).kill()
    server.until(lambda: server.pauses())
    assert "killed by SIGKILL" in server.lines[-1]
    assert are_gone([helper], within=1)


def test_a_service_that_does_not_answer_is_ended_and_started_again(watched):
    server = watched()
    server.until(lambda: server.starts() == 1)
    server.answers = False
    server.until(lambda: server.pauses())
    assert any("has not answered" in line for line in server.lines)
    assert any("most recent call first" in line for line in server.lines)  # Python's stacks
    server.answers = True
    server.until(lambda: server.starts() == 2)
    ended = time.monotonic() + 2 * PACE.silent_seconds
    server.until(lambda: time.monotonic() > ended)
    assert len(server.pauses()) == 1


@pytest.mark.programs
def test_a_service_ends_with_its_owner(programs, tmp_path):
    behaviour = tmp_path / "behaviour"
    behaviour.write_text("work")
    owner = f"""
import sys, time
from training.processes.servers.service import Pace, Service
service = Service("server", lambda: [sys.executable, "-c", {SERVER!r}, {str(behaviour)!r}],
                  show=lambda line: print(line, flush=True), event=print, alive=bool, pace=Pace())
while True:
    service.look()
    time.sleep(0.05)
"""
    started = programs.start([sys.executable, "-c", owner], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until(lambda: "at work" in started.stdout.readline())
    child = next(one for one in psutil.Process(started.pid).children() if "python" in one.name())
    started.kill()
    assert are_gone([child], within=5)


def test_marks_find_only_their_own_processes(watched):
    server = watched()
    server.until(lambda: server.starts() == 1)
    assert marked_processes([f"{os.getpid()} nobody"]) == []
