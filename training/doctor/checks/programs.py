"""Checks of the programs below the trainer: system, Python, packages and their versions.

Uses the standard library only, so that it works if packages are missing.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from training.doctor import ROOT
from training.doctor.finding import Fault, Finding, fine, skipped

INSTALL = (
    "Run `.venv/bin/nox -s training -- doctor`, which installs what is missing, or "
    "`pip install --no-deps -r constraints/training.txt && pip install -r constraints/torch.txt`."
)

PINS = ("training", "torch")
"""Files in constraints/, without their ending."""

SYSTEM = Fault(
    name="system-unsupported",
    why="The network daemon runs on Linux and macOS only, and peers limit their open files as Unix does.",
    remedy="On Windows, install WSL 2 (`wsl --install`) and run the same commands in it.",
)
PYTHON = Fault(
    name="python-version",
    why="The trainer and the versions that it pins are for Python 3.11, 3.12 and 3.13.",
    remedy="Install one of these and make the environment again: `python3.13 -m venv .venv`.",
)
MISSING = Fault(
    name="package-missing",
    why="The trainer needs it, and would end at its first use.",
    remedy=INSTALL,
)
UNSUITABLE = Fault(
    name="package-unsuitable",
    why="The trainer overrides parts of one version of hivemind, and numpy from 2.4 on makes averages fail in silence.",
    remedy=INSTALL,
)
OTHER_VERSIONS = Fault(
    name="package-versions",
    level="warning",
    why="The trainer was tested with the pinned versions only. Others may work.",
    remedy=INSTALL,
)
FAULTS = (SYSTEM, PYTHON, MISSING, UNSUITABLE, OTHER_VERSIONS)

PYTHONS = ((3, 11), (3, 14))
"""First Python version that works, and first later version that does not, as in pyproject.toml."""


def check_system(_shared: object, platform: str = sys.platform) -> Finding:
    """Checks that this operating system can run a peer."""
    if not platform.startswith(("linux", "darwin")):
        return SYSTEM.found(f"This is {platform}.")
    return fine(f"This is {platform}.")


def check_python(_shared: object, found: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    """Checks that the trainer is for this version of Python."""
    shown = ".".join(map(str, found))
    if not PYTHONS[0] <= found[:2] < PYTHONS[1]:
        return PYTHON.found(f"This is Python {shown}, at {sys.executable}.")
    return fine(f"Python {shown}, at {sys.executable}.")


def check_packages(_shared: object, root: Path = ROOT) -> list[Finding]:
    """Checks that the packages of pyproject.toml are installed, in versions that it allows and constraints/ pins.

    Args:
        root: The project's folder.
    """
    try:
        wanted = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        pins = "".join((root / "constraints" / f"{name}.txt").read_text(encoding="utf-8") for name in PINS)
    except OSError:
        return [skipped(f"Not checked: {root} is no clone of the project, so the pinned versions are not known.")]
    requirements = dict(map(_parted, wanted["dependencies"]))
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", pins, re.MULTILINE))
    here = {name: _version(name) for name in {*requirements, *pinned}}
    findings = _unsuitable(requirements, here)
    bad = {name for name, rule in requirements.items() if here[name] and not _suits(here[name], rule)}
    others = {
        name: (pin, here[name])
        for name, pin in pinned.items()
        if here[name] and here[name].split("+")[0] != pin and name not in bad
    }
    if others:
        told = ", ".join(f"{name} {found} (pinned: {pin})" for name, (pin, found) in sorted(others.items()))
        findings.append(OTHER_VERSIONS.found(f"{len(others)} packages have other versions: {told}."))
    same = sum(here[name] is not None for name in pinned) - len(others)
    return findings or [fine(f"{same} packages have the pinned versions.")]


def _unsuitable(requirements: dict[str, str], here: dict[str, str | None]) -> list[Finding]:
    missing = sorted(name for name in requirements if here[name] is None)
    findings = [MISSING.found(f"Not installed: {', '.join(missing)}.")] if missing else []
    for name, rule in requirements.items():
        if (found := here[name]) is not None and not _suits(found, rule):
            findings.append(UNSUITABLE.found(f"{name} {found} is installed; {name}{rule} is needed."))
    return findings


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _parted(requirement: str) -> tuple[str, str]:
    """Name and rule of a requirement.

    >>> _parted("numpy<2.4"), _parted("rich")
    (('numpy', '<2.4'), ('rich', ''))
    """
    name = re.match(r"[\w.-]+", requirement).group()
    return name, requirement[len(name) :]


def _suits(found: str, rule: str) -> bool:
    """Returns whether a version obeys a rule of one comparison, as pyproject.toml has them.

    >>> _suits("2.3.5", "<2.4"), _suits("2.4.0", "<2.4"), _suits("1.1.12", "==1.1.12"), _suits("1.1.11", "==1.1.12")
    (True, False, True, False)
    """
    sign = re.match(r"[<>=!]*", rule).group()
    ours, theirs = _numbers(found), _numbers(rule[len(sign) :])
    return {"": True, "<": ours < theirs, "==": ours == theirs, ">=": ours >= theirs}[sign]


def _numbers(version_text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version_text.split("+")[0]))
