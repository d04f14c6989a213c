"""A program that starts on a full disk waits for room."""

import shutil

import pytest

from training.storage import room


@pytest.mark.parametrize("ends", ["room", "stop"])
def test_a_program_waits_for_room_and_says_so_once(tmp_path, monkeypatch, ends):
    """The disk is this computer's; what changes is how much room a program needs to begin."""
    monkeypatch.setattr(room, "LEAST_BYTES", shutil.disk_usage(tmp_path).free + (1 << 33))
    looks, said = [], []

    def wait(seconds):
        looks.append(seconds)
        if len(looks) == 3 and ends == "room":
            monkeypatch.setattr(room, "LEAST_BYTES", 1)
        return len(looks) == 3 and ends == "stop"

    room.await_room(tmp_path / "a run" / "not there yet", wait, said.append)
    assert looks == [room.LOOK_SECONDS] * 3
    assert len(said) == 1 and "is full: make room" in said[0]


def test_with_room_it_begins_at_once(tmp_path):
    room.await_room(tmp_path, lambda seconds: pytest.fail("waits"), pytest.fail)
