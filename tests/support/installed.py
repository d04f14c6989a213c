"""The trainer as `uvx` or `pipx` installs it: a wheel in an environment of its own."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

from tests.support.programs import ROOT, run_program

SCRIPT = "training-transformers-together"


def build_wheel(folder: Path) -> Path:
    """Builds the project's wheel from a copy, since setuptools writes beside its sources."""
    copy = folder / "copy"
    copy.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("calculator", "training"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    done = run_program([sys.executable, "-m", "pip", "wheel", *quiet, "--wheel-dir", folder, copy])
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Installs a wheel into a new environment, and gives the path of its program.

    The wheel's dependencies come from the environment of the tests, which has their pinned versions.
    """
    made = run_program([sys.executable, "-m", "venv", "--without-pip", folder])
    assert made.returncode == 0, made.stderr
    python, quiet = folder / "bin" / "python", ["--quiet", "--disable-pip-version-check"]
    options = ["--python", python, "install", *quiet, "--no-deps", "--no-index", wheel]
    done = run_program([sys.executable, "-m", "pip", *options])
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / SCRIPT
