"""A role's children go with it: on return, on Ctrl-C, on a second Ctrl-C, on kill -9."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]

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


def start(body, grace=5.0):
    """A role with a forked child that has started a program, in a session of its own; it may wait for `go_on`."""
    code = textwrap.dedent(FORKING).format(body=body, grace=grace)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        family = psutil.Process(process.pid).children(recursive=True)
        if any("sleep" in child.cmdline() for child in family if child.is_running()):
            return process, family
        time.sleep(0.05)
    raise AssertionError("the child's program has not started")


def go_on(process):
    """Ends the role's `input()`."""
    process.stdin.write("\n")
    process.stdin.flush()


def gone(family, within):
    """Whether all of them have ended in time; a zombie has."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family):
            return True
        time.sleep(0.02)
    return False


def test_children_and_temporary_files_go_when_the_role_is_killed():
    process, family = start("import tempfile; print(tempfile.mkdtemp(), flush=True); time.sleep(60)")
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    assert len(family) == 3  # watchdog, forked child, its program
    process.kill()
    process.wait()
    assert gone(family, within=2)
    assert not folder.exists()


def test_what_a_role_killed_with_its_watchdog_has_left_is_removed_by_the_next_one():
    process, family = start("import tempfile; print(tempfile.mkdtemp(), flush=True); time.sleep(60)")
    folder = Path(process.stdout.readline().strip()).parent
    for member in [*family, psutil.Process(process.pid)]:
        member.suspend()
    for member in [*family, psutil.Process(process.pid)]:
        member.kill()
    process.wait()
    assert gone(family, within=2) and folder.is_dir()
    following, _ = start("input()")
    go_on(following)
    assert following.wait(10) == 0
    assert not folder.exists()


def test_a_role_that_returns_takes_its_children_and_temporary_files_along():
    process, family = start("import tempfile; print(tempfile.mkdtemp(), flush=True); input()")
    folder = Path(process.stdout.readline().strip())
    go_on(process)
    assert process.wait(10) == 0
    assert gone(family, within=1)
    assert not folder.exists()


def test_ctrl_c_asks_the_role_and_spares_the_children_until_it_returns():
    process, family = start("stop.wait(60); print(process.is_alive(), flush=True)")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    assert process.stdout.readline() == "True\n"
    assert process.wait(5) == 0
    assert gone(family, within=1)


def test_a_role_that_does_not_stop_is_ended_after_its_grace():
    process, family = start("time.sleep(60); time.sleep(60)", grace=1.0)
    started = time.monotonic()
    process.terminate()
    assert process.wait(5) == 0
    assert time.monotonic() - started < 3
    assert gone(family, within=1)


def test_a_second_ctrl_c_ends_it_at_once():
    process, family = start("stop.wait(60); print('asked', flush=True); time.sleep(60)", grace=50)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "asked\n"  # two signals that come at once are one
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGINT
    assert gone(family, within=1)


@pytest.mark.parametrize(
    "error, code",
    [("e.TrainingError('x')", 1), ("e.BadInput('x')", 2), ("e.RefusedByRun('x')", 3), ("ValueError('x')", 1)],
)
def test_errors_become_exit_codes(error, code):
    process, family = start(f"input(); import training.errors as e; raise {error}")
    go_on(process)
    assert process.wait(5) == code
    assert gone(family, within=1)


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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "8000000\n", done.stderr
