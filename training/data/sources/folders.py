"""The rows of folders, tars and zips of pictures.

    1.png, 1.txt       the text beside a picture is its caption; or 1.json with "caption"
    metadata.jsonl     "file_name" and "text", as `imagefolder` of `datasets` has it, for its folder and those below
    00000.tar          webdataset: 1.jpg and 1.txt, or 1.json; a .zip of them likewise
    train/, test/      folders of the splits

A sample's files have the same name up to the last dot, so that 22.00.png and 22.01.png are two samples. A file that is
not used gives the reason instead of a row.
"""

from __future__ import annotations

import json
import os
import posixpath
import sqlite3
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from training.data.demo.captions import Split
from training.data.sources.documents import NOT_TEXT, split_of_folder
from training.data.sources.kinds import NO_CAPTION, USUAL, Keys, row_of
from training.data.sources.records import BROKEN, RECORD_KINDS, Records, inflated, kind_of
from training.data.sources.rows import Row
from training.data.sources.unused import HIDDEN, Unusable
from training.data.sources.work import files_below
from training.errors import BadInput

PICTURE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
    | {".avif", ".heic", ".heif", ".hif", ".jp2", ".ppm", ".pgm", ".tga"}
)
TEXT_SUFFIXES = (".txt", ".text", ".caption")
"""Suffixes of a caption's file beside a picture; the first that exists counts, before a .json."""
METADATA = "metadata"
LARGEST_NOTE_BYTES = 1 << 20
"""Largest size of a text or JSON beside a picture."""
NOT_LISTED, ALONE = "not in the captions", "text without a picture"
BROKEN_TEXT, BROKEN_TAR, NOT_UTF8, LINK = "broken text", "broken tar", "name is not UTF-8", "link in a tar"
ZIP, BROKEN_ZIP, RARE_IN_ZIP = ".zip", "broken zip", "encrypted, or compressed in a rare way, in a zip"
ZIP_HEADER = struct.Struct("<26xHH")
"""Header in front of a zip's member, with the lengths of the name and the extra field that follow it."""
COMPRESSED_TAR, COMPRESSED_SUFFIXES = "compressed tar", (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")

PICTURE, NOTE, ARCHIVE, LIST = "picture", "note", "archive", "list"
"""Kinds of files that may be used; for other files, `_kind` returns the reason why they are not used."""


def read_folder(
    images: Path, keys: Keys = USUAL, *, captions: Iterable[Row | Unusable] | None = None, but: Path | None = None
) -> Iterator[Row | Unusable]:
    """Yields the rows of a folder, or of a tar or zip in its place, and the files that are not used.

    Args:
        images: Folder of the pictures, tars, zips and metadata files, or a tar or zip.
        keys: Keys of a picture's name and caption.
        captions: Rows of a captions file, in place of captions in the folder.
        but: Folder of the shards that are made, which may lie in it.

    Raises:
        BadInput: If `images` is neither a folder nor a tar or zip.
    """
    if captions is None and is_archive(images.name) and not images.is_dir():
        yield from _archive_rows(images, images.name, keys)
        return
    if captions is None and not images.is_dir():
        raise BadInput(f"{images} is no folder. Give the folder of the pictures with --images.")
    with closing(_Files()) as files:
        yield from _used((_within(images, row) for row in captions or ()), files)
        if images.is_dir():
            for path in files_below(images, but=but):
                files.add(path.relative_to(images).as_posix())
        if captions is None:
            yield from _folder_rows(images, files, keys)
        else:
            yield from files.unused(f"kind IN ('{PICTURE}', '{ARCHIVE}')", lambda kind: NOT_LISTED)


def _within(images: Path, row: Row | Unusable) -> Row | Unusable:
    """Returns a row of a captions file with a name relative to the folder; many captions files name the folder too."""
    if isinstance(row, Unusable):
        return row
    if row.file.startswith("/"):
        return replace(row, file=row.file.removeprefix(f"{images.resolve()}/"))
    for prefix in (f"{images}/", f"{images.name}/"):
        if row.file.startswith(prefix) and not (images / row.file).exists():
            return replace(row, file=row.file.removeprefix(prefix))
    return row


def is_archive(name: str) -> bool:
    """Returns whether a file's name is that of a tar or zip."""
    return name.lower().endswith((".tar", ZIP))


def archives_of(images: Path, *, but: Path | None = None) -> list[Path]:
    """Lists the tars and zips below a folder, or the single one that is given in place of a folder."""
    if not images.is_dir():
        return [images] if is_archive(images.name) else []
    return [path for path in files_below(images, but=but) if _kind(path.name) == ARCHIVE]


def tables_of(images: Path, *, but: Path | None = None) -> list[Path]:
    """Lists the Parquet files of a folder that has no pictures, tars or zips: the pictures are in them."""
    if not images.is_dir():
        return []
    tables = []
    for path in files_below(images, but=but):
        kind = _kind(path.name)
        if kind in (PICTURE, ARCHIVE):
            return []
        if kind == NOT_TEXT and path.suffix.lower() == ".parquet":
            tables.append(path)
    return tables


def _kind(name: str) -> str:
    """One of the kinds of files that may be used, or the reason why a file is not."""
    name = posixpath.basename(name)
    path = PurePosixPath(name.lower())
    if name.startswith("."):
        return HIDDEN
    if path.suffix in PICTURE_SUFFIXES:
        return PICTURE if _is_utf8(name) else NOT_UTF8
    if is_archive(name):
        return ARCHIVE
    if path.name.endswith(COMPRESSED_SUFFIXES):
        return COMPRESSED_TAR if _is_utf8(name) else NOT_UTF8
    if path.name.split(".")[0] == METADATA and kind_of(path.name) in RECORD_KINDS:
        return LIST
    return NOTE if path.suffix in (*TEXT_SUFFIXES, ".json") else NOT_TEXT


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stem(name: str) -> str:
    """Common part of the names of a sample's files: `22.00` of 22.00.png, 22.00.txt and 22.00.png.txt."""
    stem, suffix = posixpath.splitext(name)
    before, last = posixpath.splitext(stem)
    return before if last.lower() in PICTURE_SUFFIXES and suffix.lower() not in PICTURE_SUFFIXES else stem


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a folder, or a member of a tar or zip."""

    name: str
    offset: int = 0
    size: int = 0
    deflated: bool = False


class _Files:
    """The files of a folder, tar or zip, in a table on disk: there may be millions."""

    def __init__(self):
        self._table = sqlite3.connect("")
        self._table.execute(
            "CREATE TABLE files (name BLOB, stem BLOB, kind TEXT, offset INTEGER, size INTEGER, deflated INTEGER)"
        )
        self._table.execute("CREATE INDEX samples ON files (stem)")
        self._table.execute("CREATE TABLE used (name BLOB PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        """Deletes the table."""
        self._table.close()

    def add(
        self, name: str, offset: int = 0, size: int = 0, *, deflated: bool = False, kind: str | None = None
    ) -> None:
        """Adds a file, in the order in which rows are made of them; its kind is that of its name if none is given."""
        values = (os.fsencode(name), os.fsencode(_stem(name)), kind or _kind(name), offset, size, deflated)
        self._table.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?)", values)

    def use(self, name: str) -> None:
        """Notes that a line of a captions file names a picture."""
        name = posixpath.normpath(name)
        self._table.execute("INSERT OR IGNORE INTO used VALUES (?)", (os.fsencode(name),))

    def of(self, kind: str) -> Iterator[_File]:
        """Yields files of a kind that no line of a captions file has named."""
        found = self._table.execute(
            "SELECT name, offset, size, deflated FROM files WHERE kind = ? AND name NOT IN used ORDER BY rowid", (kind,)
        )
        return (_File(os.fsdecode(name), *place) for name, *place in found)

    def notes(self, picture: str) -> dict[str, _File]:
        """Texts and JSON of a picture's sample, by suffix."""
        found = self._table.execute(
            "SELECT name, offset, size, deflated FROM files WHERE stem = ? AND kind = ?",
            (os.fsencode(_stem(picture)), NOTE),
        )
        files = [_File(os.fsdecode(name), *place) for name, *place in found]
        return {posixpath.splitext(file.name)[1].lower(): file for file in files}

    def unused(self, condition: str, reason_of: Callable[[str], str]) -> Iterator[Unusable]:
        """Yields files that no line of a captions file has named, and that belong to no picture's sample."""
        found = self._table.execute(
            f"SELECT name, kind FROM files WHERE {condition} AND name NOT IN used AND (kind NOT IN (?, ?) OR "
            "NOT EXISTS (SELECT 1 FROM files other WHERE other.stem = files.stem AND other.kind = ?)) ORDER BY rowid",
            (NOTE, NOT_TEXT, PICTURE),
        )
        for name, kind in found:
            yield Unusable(reason=reason_of(kind), file=name.decode("utf-8", "backslashreplace"))


def _used(rows: Iterable[Row | Unusable], files: _Files) -> Iterator[Row | Unusable]:
    for row in rows:
        if isinstance(row, Row):
            files.use(row.file)
        yield row


def _folder_rows(images: Path, files: _Files, keys: Keys) -> Iterator[Row | Unusable]:
    for archive in files.of(ARCHIVE):
        yield from _archive_rows(images / archive.name, archive.name, keys, split_of_folder(archive.name))
    listed = set()
    for file in list(files.of(LIST)):
        folder = posixpath.dirname(file.name)
        for row in _used(_metadata_rows(images / file.name, file.name, folder, keys), files):
            if isinstance(row, Row):
                listed.add(folder)
            yield row
    for picture in files.of(PICTURE):
        above = posixpath.dirname(picture.name)
        if listed and any(folder == "" or f"{above}/".startswith(f"{folder}/") for folder in listed):
            yield Unusable(reason=NOT_LISTED, file=picture.name)
        else:
            split = split_of_folder(picture.name)
            yield _captioned(picture, files, lambda note: _read(images / note.name), keys, picture.name, split=split)
    kinds = {NOTE: ALONE}
    yield from files.unused(f"kind NOT IN ('{PICTURE}', '{ARCHIVE}', '{LIST}')", lambda kind: kinds.get(kind, kind))


def _metadata_rows(path: Path, name: str, folder: str, keys: Keys) -> Iterator[Row | Unusable]:
    """Yields the rows of a metadata file, in which pictures' names are relative to its folder."""
    records = Records(path, keys.all, long=keys.caption)
    for place, record in records:
        row = row_of(record, keys, f"{name}, {place}", split=split_of_folder(name))
        if isinstance(row, Row):
            row = replace(row, file=posixpath.normpath(posixpath.join(folder, row.file)))
        elif records.missed:
            row = replace(row, keys=records.missed)
        yield row


def _read(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
        raise OSError("it is no file")
    with path.open("rb") as file:
        return file.read(LARGEST_NOTE_BYTES)


def _captioned(
    picture: _File, files: _Files, read: Callable[[_File], bytes], keys: Keys, name: str, **where: object
) -> Row | Unusable:
    """Makes a row of a picture and the texts of its sample, or the reason why there is none."""
    notes = files.notes(picture.name)
    text = next((notes[suffix] for suffix in TEXT_SUFFIXES if suffix in notes), None)
    if not notes:
        return Unusable(reason=NO_CAPTION, file=name)
    try:
        fields = json.loads(_decoded(read(notes[".json"])) or "{}") if ".json" in notes else {}
        # A key that somebody names is meant, even if there is a text as well.
        if text is not None and (keys.caption == USUAL.caption or not fields):
            fields = {**fields, keys.caption[0]: _decoded(read(text))}
    except (OSError, ValueError, TypeError, RecursionError, zlib.error):
        return Unusable(reason=BROKEN_TEXT, file=name)
    row = row_of(fields, keys, name, file=name, **where) if isinstance(fields, dict) else None
    if row is None or (isinstance(row, Unusable) and row.reason == BROKEN):
        return Unusable(reason=BROKEN_TEXT, file=name)
    return row


def _decoded(content: bytes) -> str:
    is_wide = content[:2] in (b"\xff\xfe", b"\xfe\xff") and len(content) > 2
    return content.decode("utf-16" if is_wide else "utf-8-sig")


def _archive_rows(path: Path, name: str, keys: Keys, split: Split = "train") -> Iterator[Row | Unusable]:
    """Yields the rows of a tar or zip; the members of a sample may be anywhere in it."""
    with closing(_Files()) as files:
        is_zip = name.lower().endswith(ZIP)
        fault = (_list_zip if is_zip else _list_members)(path, files)
        try:
            with path.open("rb") as file:

                def read(note: _File) -> bytes:
                    file.seek(note.offset)
                    content = file.read(min(note.size, LARGEST_NOTE_BYTES))
                    return inflated(content, LARGEST_NOTE_BYTES) if note.deflated else content

                for picture in files.of(PICTURE):
                    where = {"archive": name, "offset": picture.offset, "size": picture.size, "split": split}
                    where["deflated"] = bool(picture.deflated)
                    yield _captioned(picture, files, read, keys, f"{name}/{picture.name}", **where)
        except OSError:
            fault = BROKEN_ZIP if is_zip else BROKEN_TAR
        kinds = {NOTE: ALONE, LIST: ALONE, ARCHIVE: NOT_TEXT}
        for one in files.unused(f"kind != '{PICTURE}'", lambda kind: kinds.get(kind, kind)):
            yield replace(one, file=f"{name}/{one.file}")
        if fault is not None:
            yield Unusable(reason=fault, file=name)


def _list_members(tar: Path, files: _Files) -> str | None:
    """Adds the members of a tar. Returns the fault of a damaged tar, or None."""
    try:
        with tarfile.open(tar, "r:") as opened:  # parts of a compressed tar cannot be read alone
            for member in opened:
                if not member.isdir():
                    files.add(member.name, member.offset_data, member.size, kind=None if member.isfile() else LINK)
            # `tarfile` takes a header in the middle that is broken, or missing, for the end, which is a block of zeros.
            opened.fileobj.seek(opened.offset)
            return None if opened.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE) else BROKEN_TAR
    except (tarfile.TarError, OSError, EOFError, ValueError):  # ValueError: a header has letters in place of a number
        return COMPRESSED_TAR if _is_gzip(tar) else BROKEN_TAR


def _list_zip(path: Path, files: _Files) -> str | None:
    """Adds the members of a zip. Returns the fault of a damaged zip, or None."""
    try:
        with zipfile.ZipFile(path) as opened, path.open("rb") as file:
            for member in opened.infolist():
                if member.is_dir():
                    continue
                is_deflated = member.compress_type == zipfile.ZIP_DEFLATED
                is_rare = member.flag_bits & 1 or not (is_deflated or member.compress_type == zipfile.ZIP_STORED)
                file.seek(member.header_offset)
                begin = member.header_offset + ZIP_HEADER.size + sum(ZIP_HEADER.unpack(file.read(ZIP_HEADER.size)))
                how = {"deflated": is_deflated, "kind": RARE_IN_ZIP if is_rare else None}
                files.add(member.filename, begin, member.compress_size, **how)
    except (zipfile.BadZipFile, OSError, ValueError, struct.error, NotImplementedError):
        return BROKEN_ZIP
    return None


def _is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False
