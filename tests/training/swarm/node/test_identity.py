"""A peer's state folder: its key, its lock, and what a killed process has left in it."""

import os
import sys

import pytest

from tests.programs import run_program
from training.errors import BadInput
from training.swarm.node.identity import Identity

WRITES = """
import os, signal, sys
from pathlib import Path
from training.storage.whole import whole_file
with whole_file(Path(sys.argv[1], "place")) as draft:
    draft.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_was_writing_goes_when_the_next_one_starts(tmp_path):
    first = Identity(tmp_path)
    (tmp_path / "place").write_text("whole")
    run_program([sys.executable, "-c", WRITES, tmp_path])
    assert len(os.listdir(tmp_path)) == 4
    with pytest.raises(BadInput, match="Another process is using"):
        Identity(tmp_path)
    assert len(os.listdir(tmp_path)) == 4  # whoever has the lock may be writing
    first._lock.close()
    assert Identity(tmp_path).peer_id == first.peer_id
    assert sorted(os.listdir(tmp_path)) == ["identity.key", "lock", "place"]
    assert (tmp_path / "place").read_text() == "whole"
