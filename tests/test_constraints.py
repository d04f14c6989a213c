"""The pinned versions: pip installs only files whose hashes are known."""

from __future__ import annotations

import re

import pytest

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


def test_no_hash_stands_for_another_version(hashed):
    files = [file for file in PINS.glob("*.txt") if file.stem not in ("hashes", *TOOLS)]
    assert hashed.keys() <= {pin for file in files for pin in file.read_text().splitlines()}
    assert all(re.fullmatch(HASHES, options) for options in hashed.values())


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_are_pinned_with_hashes_too(tool):
    lines = (PINS / f"{tool}.txt").read_text().splitlines()
    assert lines and all(re.fullmatch(rf"[\w.-]+==\S+ {HASHES}", line) for line in lines)
