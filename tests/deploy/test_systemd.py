"""The systemd units: systemd itself reads them, and the trainer understands their commands."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from tests.deploy.tools import DEPLOY, parse_command, read_environment, tool
from tests.support.programs import run_program
from training.processes.environment import FILE_LIMIT
from training.processes.role import GRACE_SECONDS
from training.roles.serve import STOP_SECONDS

UNITS = {
    "training-run.service": None,
    "training-bootstrap.service": "bootstrap.env",
    "training-membership.service": "membership.env",
}
"""Each with its environment file; None: its settings are in the run's folder."""
PYTHON = "/opt/training-transformers-together/.nox/training/bin/python"
MOST_EXPOSURE = 20
"""Tenths of systemd's measure, from 0 to 10.0. A service that opens sockets to the Internet cannot have much less."""


@pytest.fixture(params=UNITS)
def unit(request):
    return DEPLOY / request.param


def settings_of(unit) -> dict[str, str]:
    """Settings by name; lines that end in a backslash go on in the next one."""
    text = re.sub(r" *\\\n *", " ", unit.read_text())
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


@pytest.mark.programs
def test_systemd_finds_no_fault(unit, tmp_path):
    analyze = tool("systemd-analyze", "systemd")
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace(PYTHON, sys.executable))
    checked = run_program([analyze, "verify", "--man=no", here])
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    faulty = tmp_path / "faulty.service"
    faulty.write_text(here.read_text().replace("Restart=always", "Restart=sometimes"))
    assert "restart specifier" in run_program([analyze, "verify", "--man=no", faulty]).stderr


@pytest.mark.programs
def test_systemd_calls_it_well_protected(unit):
    threshold = ["--offline=true", f"--threshold={MOST_EXPOSURE}", "--no-pager"]
    checked = run_program([tool("systemd-analyze", "systemd"), "security", *threshold, unit])
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_its_command_is_understood_with_the_settings_of_its_environment_file(unit):
    values = read_environment(DEPLOY / UNITS[unit.name]) if UNITS[unit.name] else {}
    values |= {"STATE_DIRECTORY": "/var/lib/x", "LOGS_DIRECTORY": "/var/log/x"}
    line = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: values[found[1] or found[2]], settings_of(unit)["ExecStart"])
    words = shlex.split(line)
    assert words[:3] == [PYTHON, "-m", "training"]
    parsed = parse_command(words[3:])
    assert parsed.get("recipe") == values.get("RECIPE", values.get("RUN"))
    assert str(parsed.get("state_dir") or parsed["data"]).startswith("/var/lib/x")


@pytest.mark.parametrize("unit", [name for name in UNITS if UNITS[name]], indirect=True)
def test_its_environment_file_holds_no_secrets(unit):
    names = read_environment(DEPLOY / UNITS[unit.name])
    assert names and not [name for name in names if re.search("TOKEN|KEY|SECRET|PASSWORD", name)]
    assert f"\nEnvironmentFile=/etc/training-run/{UNITS[unit.name]}\n" in unit.read_text()


def test_it_gives_the_trainer_the_time_and_the_files_that_it_asks_for(unit):
    settings = settings_of(unit)
    assert int(settings["TimeoutStopSec"]) > max(STOP_SECONDS, GRACE_SECONDS) + 5
    assert int(settings["LimitNOFILE"]) >= FILE_LIMIT
    assert settings["KillMode"] == "mixed"  # otherwise hivemind's processes end before the last checkpoint
