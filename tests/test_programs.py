"""What tests start ends with them, also when they are interrupted or killed."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.programs import END_WITH_PARENT, are_gone, until

INNER = """
import multiprocessing, os, subprocess, sys, time
from pathlib import Path

FOLDER = Path(os.environ["FOLDER"])


def test_that_lasts(programs):
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
    programs.start(eval(os.environ["PROGRAM"]))
    (FOLDER / "started").touch()
    time.sleep(1000)
"""
SLEEPING = "['sh', '-c', 'sleep 1000 & sleep 1000']"
BOOTSTRAP = """[
    sys.executable, "-m", "training", "bootstrap", "--recipe", "demo", "--host-maddrs", "/ip4/127.0.0.1/tcp/0",
    "--state-dir", FOLDER / "peer", "--log-json", FOLDER / "peer.jsonl",
]"""


@pytest.fixture
def start_tests(programs, tmp_path):
    """Starts other tests, of which one starts a program and waits for ever; gives their process."""
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml", inner]

    def start(program, *before):
        environment = {**os.environ, "FOLDER": str(tmp_path), "PROGRAM": program}
        with (tmp_path / "log").open("w") as log:
            process = programs.start(
                [*before, *command], env=environment, stdout=log, stderr=subprocess.STDOUT, preexec_fn=_hear_interrupts
            )
        until((tmp_path / "started").exists, said=(tmp_path / "log").read_text)
        return process

    return start


def _hear_interrupts():
    """A shell lets what it starts in the background ignore Ctrl-C, and so may whoever runs these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def family_of(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.programs
def test_tests_whose_nox_is_gone_before_they_begin_end(programs, tmp_path):
    """Process 1 is not their parent."""
    (tmp_path / "test_inner.py").write_text("import time\n\ndef test_that_lasts():\n    time.sleep(1000)\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml", tmp_path]
    tests = programs.start(command, env={**os.environ, END_WITH_PARENT: "1"}, stdout=subprocess.DEVNULL)
    assert tests.wait(60) == -signal.SIGKILL


@pytest.mark.swarm
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_peer_outlives_the_tests(start_tests, tmp_path, number):
    """A real one: its DHT is a process that it forks, and p2pd a program of the DHT's."""
    tests = start_tests(" ".join(BOOTSTRAP.split()))
    events = tmp_path / "peer.jsonl"
    until(lambda: events.is_file() and '"ready"' in events.read_text(), said=(tmp_path / "log").read_text)
    family = family_of(tests)
    assert any(process.name().startswith("p2pd") for process in family) and len(family) >= 6
    tests.send_signal(number)
    tests.wait(30)
    assert are_gone(family, within=10)


@pytest.mark.programs
def test_programs_of_a_killed_test_go_though_their_parent_is_dead(start_tests):
    """Orphans have no parent any more by which they could be found."""
    tests = start_tests(SLEEPING)
    until(lambda: [process.name() for process in family_of(tests)].count("sleep") == 2)
    family = family_of(tests)
    (shell,) = [process for process in family if process.name() == "sh"]
    shell.kill()
    tests.kill()
    assert are_gone(family, within=10)


@pytest.mark.programs
@pytest.mark.parametrize("told, end", [(f"export {END_WITH_PARENT}=$$; ", True), ("", False)])
def test_the_tests_end_with_nox_and_outlive_a_shell(start_tests, told, end):
    """The shell stands for both."""
    parent = start_tests(SLEEPING, "sh", "-c", told + '"$@"; true', "sh")
    family = family_of(parent)
    parent.kill()
    assert are_gone(family, within=10 if end else 1) == end


def starts_programs(path):
    """True if a file calls something of `subprocess`; any file may use its constants and errors."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return any(ast.unparse(call.func).startswith("subprocess.") for call in calls)


def test_no_other_test_starts_programs_by_itself():
    """A program that a test starts may, and so may chaos, whose programs end with their namespaces."""
    folder = Path(__file__).parent
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if starts_programs(path)}
    allowed = {"support/programs.py", "training/demo/tiny_trainer.py", "chaos/network.py", "chaos/stage.py"}
    assert files == allowed
