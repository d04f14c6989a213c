"""A role's children go with it: on return, on Ctrl-C, on a second Ctrl-C, on kill -9."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.programs import are_gone, run_program, until
from training.processes.servers.again import MOST_STARTS, STARTED_AGAIN

pytestmark = pytest.mark.programs

FORKING = """
    import multiprocessing, subprocess, sys, time
    from training.processes.role import run_role

    def child():
        subprocess.Popen(["sleep", "60"])
        time.sleep(60)

    def role(stop):
        process = multiprocessing.Process(target=child)
        process.start()
        print("ready", flush=True)
        {body}

    run_role(role, grace_seconds={grace})
"""


@pytest.fixture
def start(programs):
    """Starts a role with a forked child that has started a program, in a session of its own; it may wait for `go_on`.

    Gives its process and its family: the watchdog, the forked child and the child's program.
    """

    def run(body, grace=5.0):
        code = textwrap.dedent(FORKING).format(body=body, grace=grace)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = programs.start([sys.executable, "-c", code], **pipes, text=True)
        assert process.stdout.readline() == "ready\n"
        return process, until(lambda: family_with_its_program(process))

    return run


def family_with_its_program(process):
    """All three of the role's family, once the child's program has begun."""
    family = psutil.Process(process.pid).children(recursive=True)
    with suppress(psutil.NoSuchProcess):
        return family if any("sleep" in member.cmdline() for member in family) else None


def go_on(process):
    """Ends the role's `input()`."""
    process.stdin.write("\n")
    process.stdin.flush()


def test_children_and_temporary_files_go_when_the_role_is_killed(start):
    process, family = start("import tempfile; print(tempfile.mkdtemp(), flush=True); time.sleep(60)")
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    assert len(family) == 3  # watchdog, forked child, its program
    process.kill()
    process.wait()
    assert are_gone(family, within=2)
    assert not folder.exists()


def test_what_a_role_killed_with_its_watchdog_has_left_is_removed_by_the_next_one(start):
    process, family = start("import tempfile; print(tempfile.mkdtemp(), flush=True); time.sleep(60)")
    folder = Path(process.stdout.readline().strip()).parent
    for member in [*family, psutil.Process(process.pid)]:
        member.suspend()
    for member in [*family, psutil.Process(process.pid)]:
        member.kill()
    process.wait()
    assert are_gone(family, within=2) and folder.is_dir()
    following, _ = start("input()")
    go_on(following)
    assert following.wait(10) == 0
    assert not folder.exists()


def test_a_role_that_returns_takes_its_children_and_temporary_files_along(start):
    process, family = start("import tempfile; print(tempfile.mkdtemp(), flush=True); input()")
    folder = Path(process.stdout.readline().strip())
    go_on(process)
    assert process.wait(10) == 0
    assert are_gone(family, within=1)
    assert not folder.exists()


def test_ctrl_c_asks_the_role_and_spares_the_children_until_it_returns(start):
    process, family = start("stop.wait(60); print(process.is_alive(), flush=True)")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    assert process.stdout.readline() == "True\n"
    assert process.wait(5) == 0
    assert are_gone(family, within=1)


def test_a_role_that_does_not_stop_is_ended_after_its_grace(start):
    process, family = start("time.sleep(60); time.sleep(60)", grace=1.0)
    started = time.monotonic()
    process.terminate()
    assert process.wait(5) == 0
    assert time.monotonic() - started < 3
    assert are_gone(family, within=1)


def test_a_second_ctrl_c_ends_it_at_once(start):
    process, family = start("stop.wait(60); print('asked', flush=True); time.sleep(60)", grace=50)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "asked\n"  # two signals that come at once are one
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGINT
    assert are_gone(family, within=1)


@pytest.mark.parametrize(
    "error, code",
    [("e.TrainingError('x')", 1), ("e.BadInput('x')", 2), ("e.RefusedByRun('x')", 3), ("ValueError('x')", 1)],
)
def test_errors_become_exit_codes(start, error, code):
    process, family = start(f"input(); import training.errors as e; raise {error}")
    go_on(process)
    assert process.wait(5) == code
    assert are_gone(family, within=1)


def test_a_forked_child_computes_though_its_parent_has_done_so_with_threads():
    """Shared out to OpenMP threads that were not forked, the child's sum would never end."""
    code = """
        import multiprocessing, torch
        from training.processes.role import run_role

        def child():
            print(int(torch.ones(4_000_000).mul_(2).sum()), flush=True)

        def role(stop):
            torch.set_num_threads(4)
            torch.ones(4_000_000).mul_(2)
            process = multiprocessing.Process(target=child)
            process.start()
            process.join(20)

        run_role(role)
    """
    done = run_program([sys.executable, "-c", textwrap.dedent(code)])
    assert done.stdout == "8000000\n", done.stderr


BEGINNING = """
import os, sys
from training.errors import ProcessEnded
from training.processes.role import run_role

def role(stop):
    print("began", os.getpid(), os.environ.get("TMPDIR"), flush=True)
    raise ProcessEnded("The node's process has ended.", cure="Start it again.")

run_role(role, begins_anew={begins_anew})
"""


@pytest.mark.parametrize("begins_anew", [True, False])
def test_a_program_whose_process_has_ended_begins_anew_but_not_for_ever(begins_anew):
    environment = {name: value for name, value in os.environ.items() if name != STARTED_AGAIN}
    ended = run_program([sys.executable, "-c", BEGINNING.format(begins_anew=begins_anew)], env=environment)
    starts = ended.stdout.splitlines()
    assert len(starts) == (1 + MOST_STARTS if begins_anew else 1)
    assert len({line.split()[1] for line in starts}) == 1  # the same process, as its starter sees it
    warning = "Warning: The node's process has ended. The program begins anew."
    assert ended.stderr.splitlines() == [
        *([warning] * (len(starts) - 1)),
        "Error: The node's process has ended. Start it again.",
    ]
    assert ended.returncode == 1
    assert not any(Path(line.split()[2]).exists() for line in starts)


FILLS_SHARED_MEMORY = """
    import resource, torch
    from training.processes.role import run_role

    def role(stop):
        # Files of shared memory may be no larger, as if /dev/shm was.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        torch.zeros(10**6).share_memory_()

    run_role(role)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems share memory without files")
def test_too_little_shared_memory_is_one_sentence():
    done = run_program([sys.executable, "-c", textwrap.dedent(FILLS_SHARED_MEMORY)])
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "/dev/shm" in done.stderr and "is too small" in done.stderr and "--shm-size" in done.stderr
