"""Freed memory stays with the process once it is told to, and goes back when it is asked for."""

import os
import sys

import pytest

from tests.support.programs import run_program

pytestmark = pytest.mark.programs

PROGRAM = """
import resource, sys
from training.model.kernels.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def page_faults_of_a_step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [b"x" * (12 << 20) for _ in range(5)]
    del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(page_faults_of_a_step() for _ in range(10)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_buffers_are_handed_out_again_without_page_faults():
    """Against glibc's first thresholds, which it else moves by itself as it sees fit: each buffer is mapped anew."""
    thresholds = str(128 << 10)
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": thresholds, "MALLOC_TRIM_THRESHOLD_": thresholds}
    faults = {
        how: int(run_program([sys.executable, "-c", PROGRAM, how], env=environment).stdout) for how in ("keep", "leave")
    }
    assert faults["leave"] >= 5 * (12 << 20) // (64 << 10)  # pages are 64 KiB at most
    assert faults["keep"] < faults["leave"] / 10


GIVING_BACK = """
from pathlib import Path
from training.model.kernels.memory import give_back_freed_memory, keep_freed_memory

def resident_mib():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024

keep_freed_memory()
before = resident_mib()
buffers = [b"x" * (12 << 20) for _ in range(10)]
del buffers
kept = resident_mib() - before
assert give_back_freed_memory()
print(kept, resident_mib() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_what_only_the_start_needed_goes_back():
    done = run_program([sys.executable, "-c", GIVING_BACK])
    kept, after = (float(word) for word in done.stdout.split())
    assert kept > 100
    assert after < 15
