"""The pinned versions: pip installs only files whose hashes are known."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.programs import ROOT

PINS = ROOT / "constraints"
PROFILES = ("tests", "training", "demo", "site", "zensical")
TOOLS = ("nox", "uv", "sbom", "fuzz")
WITHOUT_HASHES = {"torch"}
"""Its builds for CPUs and for GPUs have the same version and other hashes."""


def pins_of(name: str) -> dict[str, str]:
    """Package -> version."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (PINS / f"{name}.txt").read_text(), re.MULTILINE))


def test_each_file_belongs_to_a_profile_or_a_tool():
    assert {path.stem for path in PINS.glob("*.txt")} == {*PROFILES, *TOOLS, *WITHOUT_HASHES}


@pytest.mark.parametrize("name", [*PROFILES, *TOOLS])
def test_every_pin_has_hashes(name):
    pins = re.split(r"\n(?! )", (PINS / f"{name}.txt").read_text().strip())
    assert all(re.fullmatch(r"[\w.-]+==\S+( ; [^\n]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+", pin) for pin in pins)


def test_all_profiles_have_the_same_versions():
    every = pins_of("tests")
    assert all(pins_of(profile).items() <= every.items() for profile in PROFILES)


def parts() -> dict[str, list[str]]:
    """The parts of pyproject.toml, by the names that noxfile.py has for them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {**project["dependency-groups"], "training": project["project"]["dependencies"]}


def test_the_demo_installs_a_part_of_what_the_trainer_does():
    assert set(parts()["demo"]) < set(parts()["training"])
    assert pins_of("demo").items() < pins_of("training").items()


def test_what_the_project_needs_is_pinned():
    for profile in PROFILES:
        wanted = {re.match(r"[\w-]+", need)[0].replace("_", "-") for need in parts()[profile]}
        assert wanted - WITHOUT_HASHES <= pins_of(profile).keys()
