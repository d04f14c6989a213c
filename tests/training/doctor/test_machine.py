"""Processor, memory, files and disks: limits, mounts and programs that are really so."""

import fcntl
import json
import os
import sys
from dataclasses import replace

import pytest

from calculator.choose.devices import device_named
from tests.support.programs import ROOT, run_program
from tests.training.doctor.places import CAN_UNSHARE, check_alone, checking
from training.doctor.checks.compute import check_memory, check_shared_memory, judge_gpu_memory, judge_memory
from training.doctor.checks.machine import check_cores, check_load, check_state_folder, check_temp_folder
from training.doctor.facts import Asked, Facts

MOUNTS = pytest.mark.skipif(not CAN_UNSHARE, reason="this machine allows no mounts of one's own")
GIB = 1 << 30


def facts(**asked):
    return Facts(Asked(**asked))


@pytest.mark.programs
def test_one_core_is_few():
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "from training.doctor.checks.machine import check_cores; print(check_cores(None).name)"
    assert run_program([sys.executable, "-c", program]).stdout.strip() == "few-cores"
    assert check_cores(None).name == ("" if len(os.sched_getaffinity(0)) > 1 else "few-cores")


@pytest.mark.programs
def test_programs_that_compute_are_named(programs):
    spinning = [
        programs.start([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1)
        for _ in range(os.cpu_count())
    ]
    for one in spinning:
        one.stdout.readline()
    # The doctor leaves out its own children; these are the tests' children, so it runs as a program of its own.
    program = "from training.doctor.checks.machine import check_load as c; f = c(None); print(f.name, f.found)"
    said = run_program([sys.executable, "-c", program]).stdout
    assert said.startswith("processor-busy") and "python" in said
    here = check_load(None).found  # they are the children of this program, which asks
    assert not [one for one in spinning if f"process {one.pid}:" in here]


def test_memory_that_is_too_little_limited_or_occupied():
    """A machine with less memory cannot be made here, so its figures are given."""
    for figures, name in [
        ((4 * GIB, 4 * GIB, None), "memory-too-small"),
        ((16 * GIB, 12 * GIB, 2 * GIB), "memory-too-small"),
        ((16 * GIB, 4 * GIB, None), "memory-occupied"),
        ((16 * GIB, 12 * GIB, 9 * GIB), ""),
    ]:
        assert judge_memory("This", 8 * GIB, *figures).name == name
    assert [finding.name for finding in check_memory(None, 16 * GIB, 12 * GIB)] == [""]


@pytest.mark.parametrize("free, name", [(9, ""), (7, "memory-occupied")])
def test_a_model_that_does_not_fit_the_gpu(free, name):
    gpu = replace(device_named("t4"), memory_bytes=16 * GIB, usable_bytes=free * GIB)
    assert judge_gpu_memory("This", 8 * GIB, gpu).name == name
    assert judge_gpu_memory("This", 17 * GIB, gpu).name == "memory-too-small"


@MOUNTS
def test_shared_memory_that_is_small():
    found = check_alone('mount -t tmpfs -o size=16m x /dev/shm; "$@"', "compute.check_shared_memory(None)")
    assert found["name"] == "shared-memory-small" and "16.0 MiB are free" in found["found"]
    assert check_shared_memory(None).name == ""


@pytest.mark.programs
@pytest.mark.parametrize("files, name", [(200, "few-open-files"), (600, "open-files-limited"), (1024, "")])
def test_open_files(files, name):
    program = checking('network.check_files(facts(recipe="dalle-2021").run())')
    command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-c", program]
    done = run_program(command, cwd=ROOT)
    assert json.loads(done.stdout)["name"] == name, done.stderr


def test_a_state_folder_that_another_peer_uses(tmp_path):
    folder = tmp_path / "state"
    assert check_state_folder(facts(state_dir=folder)).level == "ok" and not folder.exists()
    folder.mkdir()
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "Another program is using" in check_state_folder(facts(state_dir=folder)).found
    assert check_state_folder(facts(state_dir=folder)).level == "ok"


def test_the_state_folder_that_join_takes_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert str(tmp_path) in check_state_folder(facts()).found
    (tmp_path / "training-together").touch()
    assert check_state_folder(facts()).name == "state-folder-unusable"


def test_a_state_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    found = check_state_folder(facts(state_dir=tmp_path / "file" / "state"))
    assert found.name == "state-folder-unusable" and "not a directory" in found.found


READ_ONLY = 'mount -t tmpfs -o size=4g,ro x /mnt; "$@"'
FULL = 'mount -t tmpfs -o size=2m x /mnt; head -c 2m /dev/zero >/mnt/file; "$@"'


@MOUNTS
@pytest.mark.parametrize(
    "script, name", [(READ_ONLY, "state-folder-unusable"), (FULL, "state-folder-unusable")], ids=["read-only", "full"]
)
def test_a_state_folder_on_a_bad_disk(script, name):
    assert check_alone(script, 'machine.check_state_folder(facts(state_dir=Path("/mnt/state")))')["name"] == name


@MOUNTS
@pytest.mark.parametrize(
    "script, name",
    [
        (READ_ONLY, "cache-unusable"),
        (FULL, "cache-unusable"),
        ('mount -t tmpfs -o size=500m x /mnt; "$@"', "cache-disk-short"),
        ('mount -t tmpfs -o size=4g x /mnt; "$@"', ""),
    ],
    ids=["read-only", "full", "short", "well"],
)
def test_caches_on_bad_disks(script, name):
    assert check_alone(script, "compute.check_cache(facts())", XDG_CACHE_HOME="/mnt")["name"] == name


@MOUNTS
def test_a_small_disk_for_temporary_files():
    script = 'mount -t tmpfs -o size=10m x /mnt; "$@"'
    assert check_alone(script, "machine.check_temp_folder(None)", TMPDIR="/mnt")["name"] == "temp-folder-unusable"
    assert check_temp_folder(None).level == "ok"
