"""Atomic writes of files and folders: a reader finds the old content or the new, never a part of either.

The content goes to a draft in the same folder, is flushed to the disk, and is then renamed, which is atomic. A program
that is killed leaves its draft behind; one that ends with an exception does not.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEFTOVER_SECONDS = 3600.0
"""Seconds after which an unchanged draft belongs to a killed program; the next writer deletes it."""
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of writing that come from the disk: no space, no quota, read-only, broken. They often carry no file name."""
_MARK = ".draft-"
_numbers = itertools.count()
"""Numbers of the drafts, which differ since two threads of a process may write the same file."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file (text as UTF-8). It replaces an existing file and keeps its permissions.

    Raises:
        OSError: If the file cannot be written; an existing file is then unchanged.
    """
    with whole_file(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path, *, flushed: bool = True) -> Iterator[Path]:
    """Yields a path to write to, for libraries that open files themselves; renames it into place after the block.

    Args:
        path: Final path of the file.
        flushed: Wait until the file is on the disk; without this, a power cut may leave a damaged file, which readers
            must notice.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder, "greeting")) as draft:
    ...         _ = draft.write_text("hello")
    ...     Path(folder, "greeting").read_text()
    'hello'
    """
    place = Path(os.path.realpath(path))  # renaming onto a link would replace the link, not the file it points to
    if place.is_dir():  # otherwise the error of the renaming would name the draft
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if place.exists() and not place.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe, and no file", str(path))  # which would be renamed away
    draft = _draft_beside(place)
    try:
        yield draft
        with suppress(FileNotFoundError):
            shutil.copymode(place, draft)
        if flushed:
            flush(draft)
        os.replace(draft, place)
    finally:
        # After an exception the draft is still there; otherwise it has been renamed.
        draft.unlink(missing_ok=True)
    if flushed:
        # A power cut could undo the renaming as long as the folder's list of names is not on the disk.
        flush(place.parent)


@contextmanager
def whole_folder(path: Path, *, flushed: bool = True) -> Iterator[Path]:
    """Yields a new folder to fill. After the block, renames it into place and deletes an older one there.

    Args:
        path: Final path of the folder.
        flushed: Flush each file to the disk first; see `replace_folder`.
    """
    place = Path(os.path.realpath(path))
    check_folder(place)
    draft = _draft_beside(place)
    draft.mkdir(parents=True)
    try:
        yield draft
        replace_folder(draft, place, flushed=flushed)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def replace_folder(new: Path, place: Path, *, flushed: bool = True) -> None:
    """Renames a finished folder into place and then deletes an older one there.

    A folder with content cannot be replaced in one step: if the program is killed between the two renames, the place is
    empty and the older folder lies next to it.

    Args:
        new: Finished folder, on the disk of `place`.
        place: Final path of the folder.
        flushed: Flush each file to the disk first, which takes milliseconds per file; without this, files may be empty
            after a power cut.

    Raises:
        NotADirectoryError: If something other than a folder is at `place`.
    """
    check_folder(place)
    for file in new.rglob("*") if flushed else ():
        flush(file)
    older = _draft_beside(place)
    with suppress(FileNotFoundError):
        os.replace(place, older)
    try:
        os.replace(new, place)
    except OSError:
        with suppress(FileNotFoundError):
            os.replace(older, place)
        raise
    flush(place.parent)
    shutil.rmtree(older, ignore_errors=True)


def check_folder(place: Path) -> None:
    """Checks that a folder may be put at a path: a file, or a device, would be renamed away and lost.

    Raises:
        NotADirectoryError: If something other than a folder is there.
    """
    if place.exists() and not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))


def free_place(place: Path) -> Path:
    """Returns a path if nothing is there, or else the first free one of NAME-2, NAME-3 and so on beside it."""
    places = (place.with_stem(f"{place.stem}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([place], places) if not one.exists())


def move_aside(path: Path, place: Path) -> None:
    """Renames a file or folder to a free path on the same disk; makes the folders above that path."""
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, place)
    flush(place.parent)
    flush(path.parent)


def delete_folder(path: Path) -> None:
    """Deletes a folder in one step for readers, even if the program is killed meanwhile: it renames the folder
    first."""
    place = Path(os.path.realpath(path))
    gone = _draft_beside(place)
    os.replace(place, gone)
    shutil.rmtree(gone, ignore_errors=True)


def delete_drafts(folder: Path) -> None:
    """Deletes all drafts in a folder, whatever their age; the caller must be the folder's only writer."""
    for draft in folder.glob(f".*{_MARK}*"):
        _delete(draft)


def reserve_space(path: Path, size: int) -> None:
    """Allocates a file of this size next to others, to test that there is room, and deletes it again.

    Free space alone is no proof: a quota or a limit on a file's size may be lower. macOS has no such call; there, this
    function does nothing.

    Raises:
        OSError: If there is no room.
    """
    draft = _draft_beside(path)
    try:
        with draft.open("wb") as file:
            if hasattr(os, "posix_fallocate") and size:
                os.posix_fallocate(file.fileno(), 0, size)
    finally:
        draft.unlink(missing_ok=True)


def is_disk_fault(error: BaseException) -> bool:
    """Returns True if the disk is full or cannot be written at all, or a file would exceed a limit on its size
    (EFBIG)."""
    return isinstance(error, OSError) and error.errno in (*DISK_FAULTS, errno.EFBIG)


def flush(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _draft_beside(place: Path) -> Path:
    """Makes a unique name for a draft; deletes leftover drafts of killed programs for the same place."""
    for leftover in place.parent.glob(f".{glob.escape(place.name)}{_MARK}*"):
        with suppress(OSError):  # its own writer may have renamed or deleted it meanwhile
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                _delete(leftover)
    # In the same folder: only within one disk is renaming atomic.
    return place.with_name(f".{place.name}{_MARK}{os.getpid()}-{next(_numbers)}")


def _delete(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
