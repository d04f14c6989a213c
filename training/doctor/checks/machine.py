"""Checks of processor and folders that need no other library: cores, load, room and rights."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from calculator.units import show_bytes
from training.doctor.facts import Facts
from training.doctor.finding import Fault, Finding, fine
from training.errors import reason_of
from training.volunteer.manners.folders import state_folders

FEW_CORES = Fault(
    name="few-cores",
    level="warning",
    why="Computing, averaging and the network share one core, so each waits for the others. Averages may time out.",
    remedy="Allow this program two cores or more: a larger container or virtual machine, or no `taskset`.",
)
BUSY = Fault(
    name="processor-busy",
    level="warning",
    why="Other programs take the processor from training. A peer that answers late is left out of averages.",
    remedy="Stop them while you train, or give training fewer cores with `join --threads {free}`.",
)
STATE_FOLDER = Fault(
    name="state-folder-unusable",
    why="The peer's identity and contribution are kept there, for one peer at a time; `join` ends if it cannot write.",
    remedy="Stop the other peer, free space there, or give a folder that you may write to with --state-dir.",
)
TEMP_FOLDER = Fault(
    name="temp-folder-unusable",
    why="Programs of this peer talk through sockets and files in the folder for temporary files.",
    remedy="Free space there, or set TMPDIR to a folder that you may write to.",
)
FAULTS = (FEW_CORES, BUSY, STATE_FOLDER, TEMP_FOLDER)

LOOK_SECONDS = 1.0
"""Time over which the load is measured."""
BUSY_SHARE = 0.5
"""Share of the cores from which on other programs slow training visibly."""
STATE_BYTES = 16 << 20
"""Room that the state folder must have, far more than identity and contribution take."""
TEMP_BYTES = 64 << 20
"""Room for temporary files: sockets, and a few megabytes while the optimizer's loops are compiled."""


def check_cores(_facts: object) -> Finding:
    """Checks how many cores this program may use."""
    from training.compute.machine import usable_cores

    cores, told = usable_cores(), f"This program may use {usable_cores()} of {os.cpu_count()} processor cores."
    return FEW_CORES.found(told) if cores < 2 else fine(told)


def check_load(_facts: object) -> Finding:
    """Finds the programs that compute now, besides the doctor and what it has started."""
    import psutil

    from training.compute.machine import usable_cores

    cores, me = usable_cores(), psutil.Process()
    others = [process for process in psutil.process_iter(["name"]) if process.pid != me.pid]
    for process in others:
        with suppress(psutil.Error):
            process.cpu_percent()
    time.sleep(LOOK_SECONDS)
    mine = {child.pid for child in me.children(recursive=True)}
    took = []
    for process in others:
        with suppress(psutil.Error):
            if process.pid not in mine:
                took.append((process.cpu_percent() / 100, process.info["name"], process.pid))
    busy = sum(share for share, _, _ in took)
    if busy / cores < BUSY_SHARE:
        return fine(f"Other programs use {busy:.1f} of {cores} cores.")
    greatest = ", ".join(f"{name} (process {pid}: {share:.1f})" for share, name, pid in sorted(took, reverse=True)[:3])
    return BUSY.found(f"Other programs use {busy:.1f} of {cores} cores: {greatest}.", free=max(int(cores - busy), 1))


def check_state_folder(facts: Facts) -> Finding:
    """Checks that the state folder can be written, has room, and is used by no other peer.

    Without --state-dir, `join` takes a free folder in `state_folders()`.
    """
    folder = facts.asked.state_dir or state_folders()
    there = first_existing(folder)
    if not there.exists():
        return STATE_FOLDER.found(f"{there} leads nowhere: it is a link to what is not there.")
    if (free := free_bytes(there)) < STATE_BYTES:
        return STATE_FOLDER.found(f"{show_bytes(free)} are free at {there}.")
    if (fault := unwritable(there)) is not None:
        return STATE_FOLDER.found(f"{there} cannot be written to: {fault}.")
    try:
        with suppress(FileNotFoundError), (folder / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return STATE_FOLDER.found(f"Another program is using {folder}.")
    except OSError as error:
        return STATE_FOLDER.found(f"{folder / 'lock'} cannot be locked: {reason_of(error)}.")
    return fine(f"{folder} can be written; {show_bytes(free)} are free.")


def check_temp_folder(_facts: object) -> Finding:
    """Checks that the folder for temporary files can be used."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        return TEMP_FOLDER.found(f"There is no folder for temporary files: {reason_of(error)}.")
    if (free := free_bytes(folder)) < TEMP_BYTES:
        return TEMP_FOLDER.found(f"{show_bytes(free)} are free at {folder}; up to {show_bytes(TEMP_BYTES)} are used.")
    if (fault := unwritable(folder)) is not None:
        return TEMP_FOLDER.found(f"{folder} cannot be written to: {fault}.")
    return fine(f"{folder} can be written; {show_bytes(free)} are free.")


def first_existing(folder: Path) -> Path:
    """Returns the folder, or the nearest folder above it that exists, in which it would be made."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))


def unwritable(folder: Path) -> str | None:
    """Tries to write into a folder. Returns the reason why that fails; None if it succeeds."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"doctor")
            file.flush()
    except OSError as error:
        return reason_of(error)
    return None


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
