"""The wheel that `uvx` and `pipx` make of the repository: it has all that `join` needs, and runs anywhere."""

from __future__ import annotations

import json
import tomllib
import zipfile
from email import message_from_bytes

import pytest

from tests.support.installed import SCRIPT, build_wheel, install
from tests.support.programs import ROOT, run_program

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_it_has_every_file_of_the_packages(wheel):
    listed = run_program(["git", "ls-files", "training", "calculator"])
    if listed.returncode:
        pytest.skip("no git clone")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert len(listed.stdout.split()) > 300
    assert set(listed.stdout.split()) <= names
    assert not any(name.startswith(("tests/", "site/", "benchmarks/")) for name in names)


def test_it_names_its_program_and_what_to_install(wheel):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = message_from_bytes(archive.read(about)).get_all("Requires-Dist")
        programs = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
    assert {need for need in needs if "extra ==" not in need} == set(project["dependencies"])
    assert f"{SCRIPT} = training.__main__:main" in programs


def test_installed_alone_it_knows_its_commands_and_recipes(wheel, tmp_path):
    program = install(wheel, tmp_path / "environment")
    options = {"cwd": tmp_path, "env": {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}}
    where = run_program([program.with_name("python"), "-c", "import training; print(training.__file__)"], **options)
    assert where.stdout.startswith(str(tmp_path / "environment"))
    shown = run_program([program, "join", "--help"], **options)
    assert shown.returncode == 0 and f"Usage: {SCRIPT} join [OPTIONS] [URL]" in shown.stdout, shown.stderr
    plan = run_program([program, "plan", "--recipe", "demo", "--gpu", "t4", "--json"], **options)
    assert json.loads(plan.stdout)["parameters"] == 1_364_560, plan.stderr
