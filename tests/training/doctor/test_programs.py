"""Packages that are missing or of other versions, in environments in which they really are."""

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_program
from training.doctor.checks.programs import PINS, check_packages, check_python, check_system


@pytest.fixture
def environment(tmp_path):
    """Checks the tests' packages, without some or with other versions of some."""

    def check(*, without=(), versions=None):
        changed = {**dict.fromkeys(without), **(versions or {})}
        for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(folder).glob("*.dist-info"):
                name = entry.name.split("-")[0].lower()
                if name not in changed:
                    (tmp_path / entry.name).symlink_to(entry)
        for name, version in (versions or {}).items():
            (tmp_path / f"{name}-{version}.dist-info").mkdir()
            (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
        program = (
            "import json\nfrom dataclasses import asdict\nfrom training.doctor.checks.programs import check_packages\n"
            "print(json.dumps([asdict(one) for one in check_packages(None)]))"
        )
        done = run_program(
            [sys.executable, "-S", "-c", program],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return check


def test_the_tests_own_packages_are_well():
    (found,) = check_packages(None)
    assert found.level == "ok", found.found


@pytest.mark.programs
def test_missing_packages_are_named(environment):
    (found,) = environment(without=("brotli", "pyarrow"))
    assert found["name"] == "package-missing" and "brotli, pyarrow" in found["found"]


@pytest.mark.programs
def test_versions_that_cannot_work_and_others_are_told_apart(environment):
    found = environment(versions={"numpy": "2.4.1", "hivemind": "1.1.11", "rich": "14.0.0"})
    told = {(one["name"], one["level"], one["found"].split(" ")[0]) for one in found}
    assert told >= {("package-unsuitable", "fault", "numpy"), ("package-unsuitable", "fault", "hivemind")}
    assert "rich 14.0.0 (pinned: " in next(one["found"] for one in found if one["name"] == "package-versions")


def test_rules_of_other_packages_count_too(tmp_path):
    (tmp_path / "constraints").mkdir()
    for name in PINS:
        (tmp_path / "constraints" / f"{name}.txt").write_text("")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["rich<2", "numpy<2.4"]\n')
    (found,) = check_packages(None, tmp_path)
    assert found.name == "package-unsuitable" and "rich<2 is needed" in found.found
    assert check_packages(None, tmp_path / "none")[0].level == "skipped"


def test_other_systems_and_pythons():
    """Only one Python and one system are here, so what they say of themselves is given."""
    assert check_system(None, "win32").name == "system-unsupported"
    assert {check_system(None, name).level for name in ("linux", "darwin")} == {"ok"}
    assert {check_python(None, (3, minor, 0)).name for minor in (9, 10, 14)} == {"python-version"}
    assert {check_python(None, (3, minor, 0)).level for minor in (11, 12, 13)} == {"ok"}
    assert check_python(None).level == "ok"
