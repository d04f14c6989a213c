"""Checks of open files, disk and folders: room, rights, and who else uses them."""

from __future__ import annotations

import fcntl
import os
import resource
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from calculator.reports.units import show_bytes
from calculator.swarm.settings import MIN_GROUP_SIZE
from training.doctor.finding import Fault, Finding, fine, skipped
from training.errors import reason_of
from training.processes.environment import FILE_LIMIT, files_of_group

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

FEW_FILES = Fault(
    name="few-open-files",
    why="Each connection to another peer takes a file. Without more, averages fail as soon as a group is large.",
    remedy="Raise the limit: `ulimit -n {wanted}`; if that is refused, in /etc/security/limits.conf.",
)
SOME_FILES = Fault(
    name="open-files-limited",
    level="warning",
    why="A full group of this run may need more connections than this program may open.",
    remedy="Raise the limit: `ulimit -n {wanted}`; if that is refused, in /etc/security/limits.conf.",
)
STATE_FOLDER = Fault(
    name="state-folder-unusable",
    why="The peer's identity and contribution are kept there; `join` ends if it cannot write to it.",
    remedy="Give another folder with --state-dir, or give yourself the right to write to this one.",
)
STATE_IN_USE = Fault(
    name="state-folder-in-use",
    why="Two peers with one identity would receive each other's messages, so `join` refuses to start.",
    remedy="Stop the other peer, or give this one a folder of its own with --state-dir.",
)
STATE_FULL = Fault(
    name="state-disk-full",
    why="The peer's identity and contribution are written there; without room, a restart counts as a new volunteer.",
    remedy="Free some space there, or give another folder with --state-dir.",
)
CACHE_FOLDER = Fault(
    name="cache-unusable",
    why="What is fetched of the shards is kept there; without it, `join` fetches everything again in each pass.",
    remedy="Set XDG_CACHE_HOME to a folder that you may write to.",
)
CACHE_FULL = Fault(
    name="cache-disk-full",
    why="What is fetched of the shards is kept there; without room, `join` fetches everything again in each pass.",
    remedy="Free space there, or set XDG_CACHE_HOME to a folder on another disk.",
)
CACHE_SHORT = Fault(
    name="cache-disk-short",
    level="warning",
    why="Shards are kept there up to the cache's size. The disk would be full before, for all programs.",
    remedy="Free space there, set XDG_CACHE_HOME to a folder on another disk, or join with a smaller --cache-size.",
)
TEMP_FOLDER = Fault(
    name="temp-folder-unusable",
    why="Programs of this peer talk through sockets and files in the folder for temporary files.",
    remedy="Free space there, or set TMPDIR to a folder that you may write to.",
)
NO_PROGRAMS = Fault(
    name="cache-runs-no-programs",
    level="warning",
    why="The optimizer's compiled loops are kept there; where programs may not run, it computes several times slower.",
    remedy="Set XDG_CACHE_HOME to a folder on a disk that is not mounted with `noexec`.",
)
FAULTS = (
    FEW_FILES,
    SOME_FILES,
    STATE_FOLDER,
    STATE_IN_USE,
    STATE_FULL,
    CACHE_FOLDER,
    CACHE_FULL,
    CACHE_SHORT,
    TEMP_FOLDER,
    NO_PROGRAMS,
)

STATE_BYTES = 16 << 20
"""Far more than identity and contribution take."""
TEMP_BYTES = 64 << 20
"""Sockets, and files of a few megabytes while the optimizer's loops are compiled."""
SHARD_BYTES = 64 << 20
"""Room for a shard if its size is not known."""


def check_open_files(shared: Shared) -> Finding:
    """Whether a group's connections fit into the limit of open files, which `join` raises as far as it may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    run = shared.run_or_none()
    if run is None:
        from training.swarm.config import SwarmConfig

        sizes = [MIN_GROUP_SIZE, SwarmConfig.model_fields["max_group_size"].default]
    else:
        sizes = [MIN_GROUP_SIZE, run.swarm.max_group_size]
    least, full = map(files_of_group, sizes)
    told = f"This program may open {limit} files; a group of {sizes[1]} peers may need {full}"
    if limit < least:
        return FEW_FILES.found(
            f"This program may open {limit} files; even a group of {sizes[0]} peers may need {least}.",
            wanted=FILE_LIMIT,
        )
    if limit < full:
        return SOME_FILES.found(f"{told}.", wanted=FILE_LIMIT)
    return fine(f"{told}.")


def check_state_folder(shared: Shared) -> Finding:
    """Whether the state folder can be written, has room, and is used by no other peer."""
    folder = shared.asked.state_dir
    if folder is None:
        return skipped("Not checked: no --state-dir is given, so a restart would begin as a new volunteer.")
    there = _first_existing(folder)
    if not there.exists():
        return STATE_FOLDER.found(f"{there} leads nowhere: it is a link to what is not there.")
    if (free := _free(there)) < STATE_BYTES:
        return STATE_FULL.found(f"{show_bytes(free)} are free at {there}.")
    if (fault := _unwritable(there)) is not None:
        return STATE_FOLDER.found(f"{there} cannot be written to: {fault}.")
    try:
        with suppress(FileNotFoundError), (folder / "lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return STATE_IN_USE.found(f"Another program is using {folder}.")
    except OSError as error:
        return STATE_FOLDER.found(f"{folder / 'lock'} cannot be locked: {reason_of(error)}.")
    return fine(f"{folder} can be written; {show_bytes(free)} are free.")


def check_cache(shared: Shared) -> Finding:
    """Whether the folder that keeps fetched shards has room for them."""
    from training.data.store.cache import CACHE_GB, SUFFIXES, default_cache

    folder = default_cache()
    there = _first_existing(folder)
    free, source = _free(there), shared.source()
    if source is not None and "://" not in source:
        return _programs_run(there) or fine(f"The shards are in a folder, so none of them are kept at {there}.")
    sizes = shared.shard_bytes()
    most = max(sizes, default=SHARD_BYTES)
    if free < most:
        return CACHE_FULL.found(f"{show_bytes(free)} are free at {there}; one shard takes {show_bytes(most)}.")
    if (fault := _unwritable(there)) is not None:
        return CACHE_FOLDER.found(f"{there} cannot be written to: {fault}.")
    taken = sum(path.stat().st_size for path in folder.glob("shards/*/*") if path.suffix in SUFFIXES)
    kept = min(sum(sizes) or CACHE_GB * 1e9, CACHE_GB * 1e9)
    if free + taken < kept:
        return CACHE_SHORT.found(f"{show_bytes(free)} are free at {there}; the cache keeps {show_bytes(int(kept))}.")
    return _programs_run(there) or fine(f"{show_bytes(free)} are free at {there}.")


def _programs_run(folder: Path) -> Finding | None:
    """That programs may not run from a folder; None if they may, or if the system, such as macOS, does not say."""
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        return NO_PROGRAMS.found(f"The disk of {folder} is mounted with noexec.")
    return None


def check_temp_folder(_shared: object) -> Finding:
    """Whether the folder for temporary files can be used."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        return TEMP_FOLDER.found(f"There is no folder for temporary files: {reason_of(error)}.")
    if (free := _free(folder)) < TEMP_BYTES:
        return TEMP_FOLDER.found(f"{show_bytes(free)} are free at {folder}; up to {show_bytes(TEMP_BYTES)} are used.")
    if (fault := _unwritable(folder)) is not None:
        return TEMP_FOLDER.found(f"{folder} cannot be written to: {fault}.")
    return fine(f"{folder} can be written; {show_bytes(free)} are free.")


def _first_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists, where it would be made."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be written into a folder; None if something was."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"doctor")
            file.flush()
    except OSError as error:
        return reason_of(error)
    return None


def _free(folder: Path) -> int:
    """Bytes that this user may still write."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
