"""Priority of a program and of all that it starts."""

import os
import sys

import pytest

from tests.support.programs import run_program
from training.processes.priority import AUTOGROUP, LOW, SERVING, lower_session

STARTS = """
import os, subprocess, sys
from training.processes.priority import SERVING, lower_priority
lower_priority(SERVING)
child = subprocess.Popen([sys.executable, "-c", "import os; print(os.nice(0))"])
child.wait()
print(os.nice(0))
lower_priority()
lower_priority(SERVING)
print(os.nice(0))
"""


def test_all_that_a_program_starts_is_as_low_and_its_computing_lower():
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    shown = run_program([sys.executable, "-c", STARTS]).stdout
    assert [int(line) for line in shown.split()] == [max(SERVING, usual)] * 2 + [max(LOW, usual)]


def test_a_session_is_lowered_and_raised_again(tmp_path):
    file = tmp_path / "autogroup"
    file.write_text("/autogroup-5172 nice 3\n")
    raise_again = lower_session(file=file)
    assert file.read_text() == f"{LOW}\n"
    raise_again()
    assert file.read_text() == "3\n"


def test_where_the_system_has_no_such_groups_nothing_happens(tmp_path):
    lower_session(file=tmp_path / "autogroup")()
    assert list(tmp_path.iterdir()) == []


OWN_SESSION = """
from training.processes.priority import AUTOGROUP, lower_session
raise_again = lower_session()
print(AUTOGROUP.read_text().split()[-1])
raise_again()
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this system has no groups of sessions")
def test_linux_takes_the_niceness_of_a_session():
    shown = run_program([sys.executable, "-c", OWN_SESSION]).stdout
    assert shown == f"{LOW}\n"
