"""The demo's supervisor starts, watches and stops real processes, and leaves none behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.programs import are_gone, until
from training.demo import run as demo
from training.demo.config import DemoConfig, command_again
from training.errors import BadInput

TINY = Path(__file__).with_name("tiny_trainer.py")
RUN = """
import sys
from pathlib import Path
from training.demo import run as demo
from training.errors import TrainingError
demo.READY_SECONDS = float(sys.argv[4])
try:
    sys.exit(demo.run_demo(demo.DemoConfig(run_dir=Path(sys.argv[1]), python=(sys.executable, sys.argv[2]),
                                           epochs=int(sys.argv[3]) or None, port=0)))
except TrainingError as error:
    print("Error:", error)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def start(programs, tmp_path):
    """Starts a demo of the tiny trainer."""

    def run(*, epochs=0, ready_seconds=120, **environment):
        return programs.start(
            [sys.executable, "-c", RUN, tmp_path / "run", TINY, str(epochs), str(ready_seconds)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    run.processes = programs.running
    return run


def read_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} never came:\n{''.join(lines)}")


def read_until_all_joined(process):
    for _ in range(3):
        read_until(process, "has joined")


@pytest.mark.programs
def test_runs_the_wanted_epochs_and_leaves_nothing(start, tmp_path):
    process = start(epochs=3)
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 0, output
    for text in (
        "draw: drew pictures",
        "prepare: made shards",
        "http://127.0.0.1:",
        "join http://127.0.0.1:",
        "is done, loss",
    ):
        assert text in output
    assert start.processes() == []
    logs = {path.name for path in (tmp_path / "run" / "logs").iterdir()}
    assert {f"{name}.log" for name in ("bootstrap", "monitor", "ada", "grace", "alan")} <= logs

    again = start(epochs=3)
    output, _ = again.communicate(timeout=40)
    assert again.returncode == 0
    assert "Shards are ready" in output
    assert "drew" not in output


@pytest.mark.programs
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_ends_everything_in_time(start, number, code):
    process = start()
    read_until_all_joined(process)
    assert len(start.processes()) >= 11  # the demo; five parts, each with its helper
    process.send_signal(number)
    process.wait(timeout=10)  # nox would kill it after 15 seconds
    assert process.returncode == code
    assert start.processes() == []


@pytest.mark.programs
def test_parts_that_ignore_the_request_are_killed(start):
    process = start(STUBBORN="1")
    read_until_all_joined(process)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    process.wait(timeout=15)
    assert time.monotonic() - asked < 10
    assert start.processes() == []


def test_epochs_that_the_schedule_does_not_have_are_refused(tmp_path):
    """It would have waited for them for ever."""
    with pytest.raises(BadInput, match=r"--epochs is 401, and the schedule of demo ends after 400"):
        demo.run_demo(DemoConfig(run_dir=tmp_path / "run", epochs=401))


@pytest.mark.programs
def test_interrupt_while_preparing(start):
    process = start(SLOW_PREPARE="1")
    read_until(process, "preparing slowly")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=10)
    assert process.returncode == 130
    assert start.processes() == []


@pytest.mark.programs
@pytest.mark.parametrize(
    "broken, name", [("draw", "draw"), ("prepare", "prepare"), ("bootstrap", "bootstrap peer"), ("monitor", "monitor")]
)
def test_broken_part_is_named_with_its_log(start, broken, name):
    process = start(BREAK=broken)
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 1
    error = output[output.index("Error:") :]
    assert name in error
    assert "exit code 7" in error
    assert f"{broken}.log" in error
    assert "something broke here" in error
    assert start.processes() == []


@pytest.mark.programs
def test_dead_volunteer_is_reported_and_the_run_goes_on(start):
    process = start(epochs=8, BREAK="alan")
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 0, output
    assert "Volunteer alan ended (exit code 7); the others continue" in output


@pytest.mark.programs
def test_killed_volunteer_leaves_no_helper(start):
    process = start()
    read_until_all_joined(process)
    (volunteer,) = [p for p in start.processes() if "--name" in p.cmdline() and "grace" in p.cmdline()]
    (helper,) = volunteer.children()
    volunteer.kill()
    read_until(process, "Volunteer grace ended (killed by SIGKILL)")
    assert are_gone([helper], within=5)


@pytest.mark.programs
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_killed_demo_takes_its_parts_along(start):
    process = start()
    read_until_all_joined(process)
    process.kill()
    process.wait()
    assert until(lambda: not start.processes(), within=10)


@pytest.mark.programs
def test_finished_run_stays_on_show_until_interrupt(start):
    process = start(FINISH="4")
    output = read_until(process, "has finished its schedule of 4 epochs")
    output += read_until(process, "evaluate --checkpoint")
    for _ in range(3):
        output += read_until(process, "has left.")
    assert "the others continue" not in output
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0
    assert start.processes() == []


def test_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=str(port)):
            demo._free_port(port)
    assert demo._free_port(port) == port
    assert demo._free_port(None) >= 1024


def test_the_command_that_goes_on_names_the_same_run():
    python = ("python", "-m", "training")
    assert command_again(DemoConfig(python=python, epochs=3)) == "python -m training demo"
    other = DemoConfig(python=python, run_dir=Path("my runs"), recipe="my.toml", volunteers=2)
    assert command_again(other) == "python -m training demo --recipe my.toml --run-dir 'my runs' --volunteers 2"
