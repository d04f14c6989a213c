"""A peer's state folder: its key, its lock, and what a killed process has left in it."""

import os
import sys

import pytest

from tests.support.programs import run_program
from training.errors import BadInput
from training.swarm.node.identity import Identity


@pytest.mark.parametrize("left", [0, 1, 4, 5, 600, 1100])
def test_a_damaged_key_is_one_sentence_and_stays_as_it_is(tmp_path, left):
    """Another key in its place would be another peer, or a server at another address."""
    Identity(tmp_path)._lock.close()
    path = tmp_path / "identity.key"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(BadInput, match=r"identity\.key cannot be used: it holds no key") as refused:
        Identity(tmp_path)
    assert "or delete it" in refused.value.sentence and len(path.read_bytes()) == left


def test_a_key_that_may_not_be_read_is_one_sentence(tmp_path):
    (tmp_path / "identity.key").mkdir()
    with pytest.raises(BadInput, match=r"identity\.key"):
        Identity(tmp_path)


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
