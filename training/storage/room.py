"""Waits for free space on a disk before a program begins to write to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import DiskFilled, reason_of

LEAST_BYTES = 4 << 20
"""Least free bytes with which a program begins: enough for the history, a key, and drafts of both."""
LOOK_SECONDS = 2.0


def has_room(folder: Path) -> bool:
    """Returns True if the disk of a folder has room for a program to begin; the folder need not exist yet."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    return shutil.disk_usage(there).free >= LEAST_BYTES


@contextmanager
def beginning(folder: Path) -> Iterator[None]:
    """Context that replaces errors of a program's first writes if the disk has filled up meanwhile.

    Raises:
        DiskFilled: In place of any other error, if the disk is full.
    """
    try:
        yield
    except Exception as error:
        if has_room(folder):
            raise
        raise DiskFilled(
            f"The disk of {folder} has filled up, so this program cannot begin: {reason_of(error)}",
            cure="Make room on the disk, and start the program again.",
        ) from None


def await_room(folder: Path, wait: Callable[[float], bool], tell: Callable[[str], None]) -> None:
    """Waits until the disk of a folder has room, or until the program is asked to stop.

    Otherwise a server that starts on a full disk would end at once, while a running one only stops writing.

    Args:
        folder: Folder on the disk; it need not exist yet.
        wait: Sleeps for a number of seconds, or until the program is asked to stop; returns whether it is asked.
        tell: Called with one sentence if the disk is full.
    """
    asked, told = False, False
    while not has_room(folder) and not asked:
        if not told:
            tell(f"The disk of {folder} is full: make room, {LEAST_BYTES >> 20} MiB at least, and this program begins.")
            told = True
        asked = wait(LOOK_SECONDS)
