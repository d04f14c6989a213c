"""The pinned versions: pip installs only files whose hashes are known."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution

import pytest
from packaging.specifiers import SpecifierSet

from tests.programs import ROOT

PINS = ROOT / "constraints"
TOOLS = ("fuzz", "hivemind", "nox", "sbom")
"""Files that pip gets as they are: each line has the hashes of its pin."""
WITHOUT_HASHES = "torch"
"""Its builds for CPUs and for GPUs have the same version and other hashes."""
HASHES = r"(--hash=sha256:[0-9a-f]{64} ?)+"


@pytest.fixture(scope="module")
def hashed():
    """Pin -> its options, in pip's words."""
    lines = (PINS / "hashes.txt").read_text().splitlines()
    return {pin: options for pin, _, options in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("profile", ["site", "tests", "training", "zensical"])
def test_every_pin_has_hashes(profile, hashed):
    pins = (PINS / f"{profile}.txt").read_text().splitlines()
    assert len(pins) > 20
    assert [pin for pin in pins if pin not in hashed] == [pin for pin in pins if pin.startswith(f"{WITHOUT_HASHES}==")]


def test_every_pin_installs_on_the_oldest_python_that_is_promised():
    """Systems that are widely used have an early 3.11: Debian 12 has 3.11.2. Here are the pins of the tests, which are
    all of them."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = re.match(r">=(\d+\.\d+),", told)[1] + ".0"
    names = [pin.split("==")[0] for pin in (PINS / "tests.txt").read_text().splitlines()]
    needs = {name: distribution(name).metadata.get("Requires-Python") or "" for name in names}
    assert len(needs) > 100
    assert {name: need for name, need in needs.items() if oldest not in SpecifierSet(need)} == {}


def test_no_hash_stands_for_another_version(hashed):
    files = [file for file in PINS.glob("*.txt") if file.stem not in ("hashes", *TOOLS)]
    assert hashed.keys() <= {pin for file in files for pin in file.read_text().splitlines()}
    assert all(re.fullmatch(HASHES, options) for options in hashed.values())


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_are_pinned_with_hashes_too(tool):
    lines = (PINS / f"{tool}.txt").read_text().splitlines()
    assert lines and all(re.fullmatch(rf"[\w.-]+==\S+ {HASHES}", line) for line in lines)
