"""The event log: lines that programs read, and never the end of a role."""

import json
from pathlib import Path

import pytest

from training.errors import BadInput
from training.processes.events import EventLog


def test_each_event_is_one_line(tmp_path):
    log = EventLog(tmp_path / "new" / "log.jsonl", clock=lambda: 5.0)
    log.write("epoch", epoch=3)
    assert json.loads((tmp_path / "new" / "log.jsonl").read_text()) == {"time": 5.0, "event": "epoch", "epoch": 3}


@pytest.mark.parametrize("place", [".", "file/log.jsonl"], ids=["a folder", "below a file"])
def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot be written: .* Give --log-json a file that you may write to"):
        EventLog(tmp_path / place)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="stands for a full disk; Linux has it")
def test_a_full_disk_does_not_end_a_role():
    EventLog(Path("/dev/full")).write("epoch", epoch=3)
