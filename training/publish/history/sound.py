"""Damage to a history's file: its checksum, and the search for what a disk or another program has changed in it.

A history that was closed carries the CRC-32 of its bytes in the field `application_id` of SQLite's header, which SQLite
keeps and does not use; 0 while a monitor writes, and after a kill. A copy of the file carries it along.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

from training.errors import BeginsAnew

MISSING, EMPTY, FOREIGN = "it is missing", "it is empty", "it is no database"
"""Kinds of damage after which nothing says that the file was a history."""
_HEADER_BYTES, _VERSION_AT, _CHECKSUM_AT = 100, 60, 68
"""Length of SQLite's header, and the places of `user_version` and `application_id` in it (sqlite.org/fileformat2.html,
section 1.3)."""
_MAGIC = b"SQLite format 3\0"
_PIECE_BYTES = 1 << 20


class DamagedHistory(BeginsAnew):
    """The history is damaged; a monitor that begins anew sets it aside and goes on from a backup."""

    def __init__(self, file: Path, damage: str):
        super().__init__(
            f"The history {file} is damaged: {damage}.",
            cure="A monitor that starts sets it aside and goes on from the newest sound backup.",
        )


def is_damage(error: sqlite3.Error) -> bool:
    """Returns True if an error of SQLite comes from the file's content, not from a lock or a full disk."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest of it tells more
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def damage_of(file: Path, *, version: int | None = None) -> str | None:
    """Describes the damage of a history, as the end of a sentence; None if it is sound.

    Reads the whole file. Damage that leaves SQLite's structure whole is found only in a history that was closed.

    Args:
        file: The history; another program may write it meanwhile.
        version: Version of the tables; a history of another version is left to those who read it. None: any version.

    Raises:
        sqlite3.Error: If SQLite cannot read the file now, such as a locked one.
        OSError: If the file cannot be read.
    """
    if not file.is_file():
        return MISSING
    with file.open("rb") as content:
        header = content.read(_HEADER_BYTES)
    if not header.strip(b"\0"):
        return EMPTY
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        return FOREIGN
    found, checksum = (struct.unpack_from(">I", header, place)[0] for place in (_VERSION_AT, _CHECKSUM_AT))
    if version is not None and found not in (0, version):
        return None
    if checksum and not _has_changes(file) and checksum != _checksum(file):
        return "its content differs from its checksum: the disk has a fault, or another program has changed the file"
    return _fault_of_structure(file)


def seal(file: Path) -> None:
    """Writes the checksum into a history that nobody has open; leaves one alone that has changes beside it."""
    if not _has_changes(file):
        with file.open("r+b") as content:
            content.seek(_CHECKSUM_AT)
            content.write(struct.pack(">I", _checksum(file)))
            content.flush()
            os.fsync(content.fileno())


def open_seal(connection: sqlite3.Connection) -> None:
    """Removes the checksum before the first change."""
    connection.execute("PRAGMA application_id = 0")


def _fault_of_structure(file: Path) -> str | None:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            if not connection.execute("PRAGMA user_version").fetchone()[0]:
                return EMPTY
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return str(error)
    return None if found == "ok" else " ".join(found.replace("***", "").split())


def _has_changes(file: Path) -> bool:
    """Returns True if SQLite keeps changes of this file in another one beside it."""
    beside = file.with_name(f"{file.name}-wal")
    return beside.is_file() and beside.stat().st_size > 0


def _checksum(file: Path) -> int:
    """CRC-32 of a file as if it had no checksum; never 0, which stands for none."""
    with file.open("rb") as content:
        header = bytearray(content.read(_HEADER_BYTES))
        header[_CHECKSUM_AT : _CHECKSUM_AT + 4] = bytes(4)
        found = zlib.crc32(header)
        while piece := content.read(_PIECE_BYTES):
            found = zlib.crc32(piece, found)
    return found or 1
