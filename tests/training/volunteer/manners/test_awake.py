"""The machine stays awake while a peer computes."""

import subprocess
import sys

import pytest

from training.volunteer.manners.awake import Awake, command_of

STAYS = (sys.executable, "-c", "import sys; sys.stdin.read()")


def test_a_program_keeps_it_awake_until_the_peer_rests(programs):
    started = []

    def start(command):
        started.append(programs.start(command, stdin=subprocess.PIPE))
        return started[-1]

    awake = Awake(start, STAYS)
    awake.hold()
    awake.hold()
    assert len(started) == 1 and started[0].poll() is None
    awake.release()
    awake.release()
    assert started[0].poll() is not None
    awake.hold()
    assert len(started) == 2
    awake.release()


def test_without_such_a_program_nothing_happens():
    for awake in (Awake(lambda command: pytest.fail(command), ("no-such-program",)), Awake()):
        awake.hold()
        awake.release()


def test_each_system_has_its_program():
    assert command_of("darwin")[0] == "caffeinate" and command_of("linux")[0] == "systemd-inhibit"
