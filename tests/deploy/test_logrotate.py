"""logrotate rotates what the servers append to while they go on writing."""

from __future__ import annotations

import json

import pytest

from tests.deploy.tools import DEPLOY, tool
from tests.support.programs import run_program
from training.processes.events import EventLog

pytestmark = pytest.mark.programs

CONFIGURATION = DEPLOY / "logrotate.conf"


def test_logrotate_understands_the_file():
    checked = run_program([tool("logrotate", "logrotate"), "--debug", CONFIGURATION])
    said = checked.stdout + checked.stderr
    assert checked.returncode == 0 and "error" not in said, said
    assert "weekly (8 rotations)" in said


def test_an_event_log_is_rotated_while_it_is_written(tmp_path):
    logs, run = tmp_path / "logs", tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    printed = (run / "logs" / "servers.log").open("a")  # as `new` opens it
    log = EventLog(logs / "events.jsonl")
    drawn = (run / "pictures.log").open("ab")  # as the monitor opens it
    configuration = tmp_path / "logrotate.conf"
    text = CONFIGURATION.read_text()
    assert "/var/log/training-run/" in text and "/var/lib/training-run/run/" in text
    text = text.replace("/var/log/training-run", str(logs)).replace("/var/lib/training-run/run", str(run))
    configuration.write_text(text)

    for number in range(3):
        log.write("warning", text=f"event {number}")
        drawn.write(b"a line\n")
        drawn.flush()
        print("a line", file=printed, flush=True)
        command = [tool("logrotate", "logrotate"), "--force", "--state", tmp_path / "state", configuration]
        rotated = run_program(command)
        assert rotated.returncode == 0, rotated.stderr
    log.write("stopped")
    assert [json.loads(line)["event"] for line in (logs / "events.jsonl").read_text().splitlines()] == ["stopped"]
    assert json.loads((logs / "events.jsonl.1").read_text())["text"] == "event 2"
    assert {file.name for file in logs.iterdir()} == {
        "events.jsonl",
        *(f"events.jsonl.{n}" for n in ("1", "2.gz", "3.gz")),
    }
    for log in (run / "pictures.log", run / "logs" / "servers.log"):
        assert log.read_bytes() == b"" and log.with_name(f"{log.name}.1").read_bytes() == b"a line\n"
