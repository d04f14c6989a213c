"""Parts of `prepare` that pictures and text share: reuse of finished work, digests,
and the move of a set to its place."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

from pydantic import BaseModel

from training.data.demo.captions import Split
from training.data.store.shards import (
    MANIFEST_FILE,
    TOKENIZER_FILE,
    Manifest,
    SplitEntry,
    TextManifest,
    describe_file,
    describe_shard,
    is_same_file,
    read_manifest,
)
from training.errors import BadInput, TrainingError, reason_of
from training.storage.whole import delete_drafts, is_disk_fault, replace_folder, write_whole

Progress = Callable[[str, int, int], None]
"""Called with the name of the current work, the amount done, and the total."""
NOTE_SUFFIX = ".note.json"
"""Suffix of the note beside a finished shard of unfinished work, with counts of its input."""
HELD_OUT_ONE_IN, MOST_HELD_OUT = 20, 256
"""Share of the samples that `held_out_places` holds out, and the most: no more are measured."""
PLACE_SUFFIX, MARKS_FILE = ".place.json", "pictures.marks"
"""Suffix of the file beside a shard that says where its input ends, for input that is read as a stream; and name of the
file of marks of all pictures. Both let interrupted work continue, and are deleted when the set is finished."""


def files_below(folder: Path, *, but: Path | None = None, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yields the files of a folder in the order of their names, then those of the folders in it; also of linked ones.

    A hidden folder comes as one path, since its files are not pictures or texts to use,
    and so does a folder that may not be read.

    The names are sorted on disk: one folder may have millions of files.

    Args:
        folder: The folder.
        but: Folder of the shards that are made, which may lie in `folder`; its files are left out.
        above: Folders above `folder`, which links must not lead back to.
    """
    here = folder.resolve()
    if here in above:  # a link leads back to a folder that it is in
        return
    try:
        listing = os.scandir(folder)
    except PermissionError:
        yield folder
        return
    with closing(sqlite3.connect("")) as names, listing as entries:
        names.execute("CREATE TABLE names (name BLOB, is_folder INTEGER)")
        found = ((os.fsencode(entry.name), entry.is_dir() and entry.name[0] != ".") for entry in entries)
        names.executemany("INSERT INTO names VALUES (?, ?)", found)
        for name, is_folder in names.execute("SELECT name, is_folder FROM names ORDER BY is_folder, name"):
            path = folder / os.fsdecode(name)
            if but is not None and here == but.parent and _is_of(but, path.name):
                continue
            if is_folder:
                yield from files_below(path, but=but, above=above | {here})
            else:
                yield path


def _is_of(out: Path, name: str) -> bool:
    """Returns whether a name beside a set is that of the set, of its lock, or of unfinished work on it."""
    return name == out.name or name.startswith((f".{out.name}.part-", f".{out.name}.rows-", f".{out.name}.lock"))


@contextmanager
def alone_at(out: Path) -> Iterator[None]:
    """Locks the place of a set within the block: two calls at once would mix their shards.

    Deletes rows that killed calls have left. They may take as much room as all captions, and each call makes its own.

    Args:
        out: Folder of the set; the folders above it are made at once.

    Raises:
        BadInput: If another call is making the set, or `out` is a file, a mount or a folder of other files.
        TrainingError: If the disk is full within the block.
    """
    if out.name in ("", ".."):
        raise BadInput(f"{str(out)!r} is no name for a new folder. Give one with --out, such as shards.")
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is there already, and is no folder. Give the name of a new folder with --out.")
    if out.is_dir() and not (out / MANIFEST_FILE).exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty and holds no prepared shards. Give another --out.")
    if os.path.ismount(out) and not (out / MANIFEST_FILE).exists():
        # Only when all is made, the folder could not be renamed to it.
        raise BadInput(f"{out} is where a disk is mounted, and no folder can replace it. Give --out {out / 'shards'}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with _locked(out.with_name(f".{out.name}.lock"), out):
        for left in _beside(out, "rows"):
            shutil.rmtree(left, ignore_errors=True)
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            if not (is_disk_fault(error) or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL):
                raise
            raise TrainingError(
                f"The disk of {out.parent} cannot be written: {reason_of(error)}.",
                cure="Make room, or give --out on another disk. The same command goes on where this one stopped.",
            ) from None


@contextmanager
def _locked(path: Path, out: Path) -> Iterator[None]:
    while True:
        with path.open("a") as lock:
            try:
                # The system releases it however the program ends.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"Another `prepare` makes {out}. Wait for its end, or give another --out.") from None
            # The call that held it may just have deleted the file; a lock on a deleted file excludes no other call.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return


def _beside(out: Path, kind: str) -> Iterator[Path]:
    """Yields hidden folders of unfinished work on a set: its `part`, or its `rows`."""
    return out.parent.glob(f".{glob.escape(out.name)}.{kind}-*")


def part_folder(out: Path, digest: str) -> Path:
    """Folder in which a set is made of an input; the next call with this input finds the finished shards there."""
    return out.with_name(f".{out.name}.part-{digest[:12]}")


def finished(out: Path, digest: str, *, replace: bool) -> Manifest | TextManifest | None:
    """Returns the manifest of existing shards made from this input; None if there are none, or they are damaged.

    Raises:
        BadInput: If `out` has other shards that may not be replaced, or a manifest that cannot be read.
    """
    if (out / MANIFEST_FILE).exists():
        try:
            manifest = read_manifest(out)
        except BadInput:
            if replace:
                return None
            raise
        if manifest.input_digest == digest:
            if not all(is_same_file(out / name, entry) for name, entry in manifest.files.items()):
                return None
            _delete_notes(out)  # of a call that was killed when it was about to
            return manifest
        if not replace:
            raise BadInput(f"{out} holds shards of other input. Give another --out, or --replace.")
    return None


def held_out_places(samples: int) -> range:
    """Chooses the samples that are held out of a set that names none: one of twenty, and few of a large set.

    >>> list(held_out_places(50)), len(held_out_places(1_000_000)), list(held_out_places(1))
    ([1, 21, 41], 256, [])
    """
    return range(1, samples, max(HELD_OUT_ONE_IN, -(-samples // MOST_HELD_OUT)))


def digest_of(file: Path) -> bytes:
    """SHA-256 of a file.

    Raises:
        OSError: If the file cannot be read, or is not a regular file: reading a pipe would never end.
    """
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(file))
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def digest_of_input(file: Path | None) -> bytes:
    """SHA-256 of a file that a flag names; a fixed value if no file was given.

    Raises:
        BadInput: If it cannot be read.
    """
    try:
        return b"-" if file is None else digest_of(file)
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read: {reason_of(error)}.",
            cure="Check that the file is there, whole, and readable for you.",
        ) from None


def described(
    work: Path, splits: dict[Split, SplitEntry], others: Iterable[str] = ()
) -> dict[str, dict[str, BaseModel]]:
    """Returns the manifest's entries for all files: shards, tokenizer and others."""
    shards = sorted(name for split in splits.values() for name in split.shards)
    return {
        "files": {name: describe_file(work / name) for name in [*others, TOKENIZER_FILE, *shards]},
        "index": {name: describe_shard(work / name) for name in shards},
    }


def finish(work: Path, out: Path, manifest: Manifest | TextManifest) -> None:
    """Adds the manifest and renames the folder; only then removes an older set, and unfinished work on other input."""
    delete_drafts(work)  # of a call that was killed while it wrote
    write_whole(work / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")
    replace_folder(work, out)
    # Not before: killed in between, the next call would make every shard again.
    _delete_notes(out)
    for unfinished in chain(_beside(out, "part"), _beside(out, "rows")):
        shutil.rmtree(unfinished, ignore_errors=True)


def _delete_notes(folder: Path) -> None:
    for pattern in (f"*{NOTE_SUFFIX}", f"*{PLACE_SUFFIX}", MARKS_FILE):
        for note in folder.glob(pattern):
            note.unlink()
