"""Processor, memory, files and disks: limits, mounts and programs that are really so."""

import fcntl
import json
import os
import resource
import sys

import pytest

from tests.programs import ROOT, run_program
from tests.training.doctor.places import CAN_UNSHARE, check_alone
from training.doctor.checks.files import check_state_folder, check_temp_folder
from training.doctor.checks.memory import (
    check_address_space,
    check_memory,
    check_shared_memory,
    check_swap,
    judge_memory,
)
from training.doctor.checks.processor import check_cores, check_load, check_priority, check_speed
from training.doctor.facts.shared import Asked, Shared

MOUNTS = pytest.mark.skipif(not CAN_UNSHARE, reason="this machine allows no mounts of one's own")
GIB = 1 << 30


def shared(**asked):
    return Shared(Asked(**asked))


def limited(shell, check):
    """What a check of `files`, `memory` or `processor` finds in a program that a shell starts with limits."""
    program = (
        "import json\nfrom dataclasses import asdict\nfrom training.doctor.checks import files, memory, processor\n"
        "from training.doctor.facts.shared import Shared\nfrom training.doctor.facts.shared import Asked\n"
        f"print(json.dumps(asdict({check}(Shared(Asked())))))"
    )
    done = run_program(["sh", "-c", f'{shell}; exec "$@"', "sh", sys.executable, "-c", program], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.programs
def test_one_core_is_few():
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "from training.doctor.checks.processor import check_cores; print(check_cores(None).name)"
    assert run_program([sys.executable, "-c", program]).stdout.strip() == "few-cores"
    assert check_cores(None).name == ("" if len(os.sched_getaffinity(0)) > 1 else "few-cores")


@pytest.mark.parametrize("now, name", [(800_000, "processor-throttled"), (3_000_000, "")])
def test_a_processor_that_is_slowed_down(tmp_path, now, name):
    """Linux's own files, as on a notebook in its power-saving profile; a speed cannot be set here."""
    folder = tmp_path / "devices/system/cpu/cpufreq/policy0"
    folder.mkdir(parents=True)
    (folder / "cpuinfo_max_freq").write_text("3200000\n")
    (folder / "scaling_max_freq").write_text(f"{now}\n")
    assert check_speed(None, tmp_path).name == name


def test_a_containers_quota_that_cuts_time_short(tmp_path):
    """Linux's own file, as in a container with half a core."""
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.stat").write_text("usage_usec 9\nnr_periods 200\nnr_throttled 150\n")
    found = check_speed(None, tmp_path)
    assert found.name == "processor-throttled" and "75%" in found.found


@pytest.mark.programs
def test_programs_that_compute_are_named(programs):
    spinning = [
        programs.start([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1)
        for _ in range(os.cpu_count())
    ]
    for one in spinning:
        one.stdout.readline()
    # The doctor leaves out its own children; these are the tests' children, so it runs as a program of its own.
    program = "from training.doctor.checks.processor import check_load as c; f = c(None); print(f.name, f.found)"
    said = run_program([sys.executable, "-c", program]).stdout
    assert said.startswith("processor-busy") and "python" in said
    here = check_load(None).found  # they are the children of this program, which asks
    assert not [one for one in spinning if f"process {one.pid}:" in here]


@pytest.mark.programs
def test_a_program_behind_all_others():
    assert limited("renice -n 19 $$ >/dev/null", "processor.check_priority")["name"] == "low-priority"
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    assert check_priority(None).name == ("low-priority" if nice > 10 else "")


def test_memory_that_is_too_little_limited_or_occupied():
    """A machine with less memory cannot be made here, so its figures are given."""
    told = "This takes 8 GiB"
    assert judge_memory(told, 8 * GIB, 4 * GIB, 4 * GIB, None).name == "memory-too-small"
    assert judge_memory(told, 8 * GIB, 16 * GIB, 12 * GIB, 2 * GIB).name == "memory-limited"
    assert judge_memory(told, 8 * GIB, 16 * GIB, 4 * GIB, None).name == "memory-occupied"
    assert judge_memory(told, 8 * GIB, 16 * GIB, 12 * GIB, 9 * GIB).name == ""
    assert check_memory(shared()).name == ""


@pytest.mark.programs
def test_addresses_may_be_limited():
    found = limited("ulimit -v 4194304", "memory.check_address_space")
    assert found["name"] == "address-space-limited" and "4.00 GiB" in found["found"]
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert check_address_space(None).name == ""


def test_a_system_that_swaps(tmp_path):
    """Linux's own file, as on a machine of 8 GiB with all of them in use."""
    lines = {"MemTotal": 8 << 20, "MemAvailable": 300 << 10, "SwapTotal": 4 << 20, "SwapFree": 1 << 20}
    file = tmp_path / "meminfo"
    file.write_text("".join(f"{name}: {value} kB\n" for name, value in lines.items()))
    assert check_swap(None, file).name == "swapping"
    file.write_text(file.read_text().replace(str(300 << 10), str(4 << 20)))
    assert check_swap(None, file).name == ""


@MOUNTS
def test_shared_memory_that_is_small():
    found = check_alone('mount -t tmpfs -o size=16m x /dev/shm; "$@"', "memory.check_shared_memory(shared())")
    assert found["name"] == "shared-memory-small" and "16.0 MiB are free" in found["found"]
    assert check_shared_memory(shared()).name == ""


@pytest.mark.programs
@pytest.mark.parametrize("files, name", [(200, "few-open-files"), (600, "open-files-limited"), (1024, "")])
def test_open_files(files, name):
    assert limited(f"ulimit -n {files}", "files.check_open_files")["name"] == name


def test_a_state_folder_that_another_peer_uses(tmp_path):
    folder = tmp_path / "state"
    assert check_state_folder(shared()).level == "skipped"
    assert check_state_folder(shared(state_dir=folder)).level == "ok" and not folder.exists()
    folder.mkdir()
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert check_state_folder(shared(state_dir=folder)).name == "state-folder-in-use"
    assert check_state_folder(shared(state_dir=folder)).level == "ok"


def test_a_state_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    found = check_state_folder(shared(state_dir=tmp_path / "file" / "state"))
    assert found.name == "state-folder-unusable" and "not a directory" in found.found


READ_ONLY = 'mount -t tmpfs -o size=4g,ro x /mnt; "$@"'
FULL = 'mount -t tmpfs -o size=2m x /mnt; head -c 2m /dev/zero >/mnt/file; "$@"'


@MOUNTS
@pytest.mark.parametrize(
    "script, name", [(READ_ONLY, "state-folder-unusable"), (FULL, "state-disk-full")], ids=["read-only", "full"]
)
def test_a_state_folder_on_a_bad_disk(script, name):
    assert check_alone(script, 'files.check_state_folder(shared(state_dir=Path("/mnt/state")))')["name"] == name


@MOUNTS
@pytest.mark.parametrize(
    "script, name",
    [
        (READ_ONLY, "cache-unusable"),
        (FULL, "cache-disk-full"),
        ('mount -t tmpfs -o size=500m x /mnt; "$@"', "cache-disk-short"),
        ('mount -t tmpfs -o size=4g,noexec x /mnt; "$@"', "cache-runs-no-programs"),
        ('mount -t tmpfs -o size=4g x /mnt; "$@"', ""),
    ],
    ids=["read-only", "full", "short", "noexec", "well"],
)
def test_caches_on_bad_disks(script, name):
    assert check_alone(script, "files.check_cache(shared())", XDG_CACHE_HOME="/mnt")["name"] == name


@MOUNTS
def test_a_small_disk_for_temporary_files():
    script = 'mount -t tmpfs -o size=10m x /mnt; "$@"'
    assert check_alone(script, "files.check_temp_folder(None)", TMPDIR="/mnt")["name"] == "temp-folder-unusable"
    assert check_temp_folder(None).level == "ok"
