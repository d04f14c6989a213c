"""Keys on a terminal."""

import os
import pty
import sys
import termios

import pytest

from tests.support.programs import until
from training.volunteer.manners.keys import HELP, press
from training.volunteer.manners.manners import Manners


def pressed(keys):
    left = []
    manners = Manners(leave=lambda: left.append(True), clock=lambda: 0.0)
    for key in keys:
        press(key, manners)
    return manners, left


def test_each_key_does_what_the_screen_says():
    assert [part.split()[0] for part in HELP.split(", ")] == ["p", "s", "f", "q"]
    assert pressed("p")[0].rest().startswith("as you wish") and pressed("pp")[0].rest() is None
    assert pressed("S")[0].rest().startswith("snoozing") and pressed("sp")[0].rest() is None
    assert pressed("f")[0].is_finishing and not pressed("psq")[0].is_finishing
    assert pressed("q")[1] == [True] and pressed("pfs xyz\x1b")[1] == []


LISTENS = """
import sys, threading
from training.volunteer.manners.keys import listen
from training.volunteer.manners.manners import Manners
left = threading.Event()
manners = Manners(leave=left.set)
restore = listen(0, manners)
left.wait()
restore()
print(manners.rest(), flush=True)
"""


@pytest.mark.programs
def test_a_program_takes_single_keys_and_restores_the_terminal(programs):
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    # A session of its own whose terminal is this one, as a shell starts a program in the foreground.
    leads = (
        "import os, sys, fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
    )
    command = [sys.executable, "-c", leads, sys.executable, "-c", LISTENS]
    program = programs.start(command, stdin=theirs, stdout=theirs, stderr=theirs)
    until(lambda: not termios.tcgetattr(theirs)[3] & termios.ICANON)
    os.write(ours, b"sq")
    assert program.wait() == 0
    assert b"snoozing until" in os.read(ours, 1000)
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
