"""Programs that check the files of `deploy/`: a test that needs one says which package brings it."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import typer

from tests.support.programs import ROOT
from training.cli import build_app

DEPLOY = ROOT / "deploy"
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
"""Where Debian keeps programs for administrators, which other users' PATH lacks."""


def tool(name: str, package: str) -> str:
    """Path of a program; skips the test, naming the package, if it is not there."""
    found = shutil.which(name) or next((f"{folder}/{name}" for folder in SYSTEM_FOLDERS if has(folder, name)), None)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return found


def has(folder: str, name: str) -> bool:
    """True if a folder has a file of this name."""
    return Path(folder, name).is_file()


def parse_command(words: list[str]) -> dict:
    """The settings that the trainer's command line makes of these words; wrong flags and values raise."""
    command = typer.main.get_command(build_app()).commands[words[0]]
    return command.make_context(words[0], list(words[1:])).params


def read_environment(path: Path) -> dict[str, str]:
    """The variables of an environment file."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name: " ".join(shlex.split(value)) for name, _, value in (line.partition("=") for line in lines)}
