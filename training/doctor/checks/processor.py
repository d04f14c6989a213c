"""Checks of the processor: cores, speed, other programs, priority."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from training.doctor.finding import Fault, Finding, fine

FEW_CORES = Fault(
    name="few-cores",
    level="warning",
    why="Computing, averaging and the network share one core, so each waits for the others. Averages may time out.",
    remedy="Allow this program two cores or more: a larger container or virtual machine, or no `taskset`.",
)
THROTTLED = Fault(
    name="processor-throttled",
    level="warning",
    why="This machine computes fewer samples than it could, and an average waits for its slowest peer.",
    remedy="Plug in the power supply, choose the performance profile, let it cool, or raise the container's CPU quota.",
)
BUSY = Fault(
    name="processor-busy",
    level="warning",
    why="Other programs take the processor from training. A peer that answers late is left out of averages.",
    remedy="Stop them while you train, or give training fewer cores with `join --threads {free}`.",
)
LOW_PRIORITY = Fault(
    name="low-priority",
    level="warning",
    why="Other programs come first. While one of them is busy, this peer answers late and is left out of averages.",
    remedy="Start it without `nice`, or with at most `nice -n 10`.",
)
FAULTS = (FEW_CORES, THROTTLED, BUSY, LOW_PRIORITY)

LOOK_SECONDS = 1.0
"""How long the load is measured."""
SLOW_SHARE = 0.7
"""A processor whose greatest speed is set below this share of what it can do is slowed on purpose or by heat."""
QUOTA_SHARE = 0.1
"""Of the periods in which a container computed, so many may be cut short."""
BUSY_SHARE = 0.5
"""Other programs that take at least this share of the cores slow training visibly."""
LOWEST_PRIORITY = 10


def check_cores(_shared: object) -> Finding:
    """How many cores this program may use."""
    from training.compute.machine import usable_cores

    cores, there = usable_cores(), os.cpu_count() or 1
    if cores < 2:
        return FEW_CORES.found(f"This program may use {cores} of {there} processor cores.")
    return fine(f"This program may use {cores} of {there} processor cores.")


def check_speed(_shared: object, root: Path = Path("/sys")) -> Finding:
    """Whether the processor is slowed down, by its settings or by a container's quota.

    Args:
        root: Where the system describes its hardware.
    """
    shares = []
    for folder in sorted((root / "devices/system/cpu/cpufreq").glob("policy*")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            set_to, possible = (int((folder / f"{which}_max_freq").read_text()) for which in ("scaling", "cpuinfo"))
            shares.append(set_to / possible)
    if shares and min(shares) < SLOW_SHARE:
        return THROTTLED.found(f"A core is set to at most {min(shares):.0%} of its full speed.")
    with suppress(OSError, ValueError, KeyError):
        words = dict(line.split() for line in (root / "fs/cgroup/cpu.stat").read_text().splitlines())
        periods, cut = int(words["nr_periods"]), int(words["nr_throttled"])
        if periods and cut / periods > QUOTA_SHARE:
            return THROTTLED.found(f"The container's CPU quota has cut {cut / periods:.0%} of its time slices short.")
    return fine("The processor is not slowed down." if shares else "The system reports no limit of speed.")


def check_load(_shared: object) -> Finding:
    """Which other programs compute now."""
    import psutil

    from training.compute.machine import usable_cores

    cores, mine = usable_cores(), {os.getpid()}
    mine |= {child.pid for child in psutil.Process().children(recursive=True)}
    others = [process for process in psutil.process_iter(["name"]) if process.pid not in mine]
    for process in others:
        with suppress(psutil.Error):
            process.cpu_percent()
    time.sleep(LOOK_SECONDS)
    took = []
    mine |= {child.pid for child in psutil.Process().children(recursive=True)}
    for process in others:
        with suppress(psutil.Error):
            took.append((process.cpu_percent() / 100, process.info["name"], process.pid))
    busy = sum(share for share, _, _ in took)
    if busy / cores < BUSY_SHARE:
        return fine(f"Other programs use {busy:.1f} of {cores} cores.")
    greatest = ", ".join(f"{name} (process {pid}: {share:.1f})" for share, name, pid in sorted(took, reverse=True)[:3])
    return BUSY.found(f"Other programs use {busy:.1f} of {cores} cores: {greatest}.", free=max(int(cores - busy), 1))


def check_priority(_shared: object) -> Finding:
    """Whether this program runs behind others."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice > LOWEST_PRIORITY:
        return LOW_PRIORITY.found(f"This program runs with nice {nice}.")
    return fine(f"This program runs with nice {nice}.")
