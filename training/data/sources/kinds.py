"""The rows of all kinds of sets that people have: a captions file, texts beside pictures, tars, lists of addresses.

    captions.jsonl     {"file": "1.png", "caption": "a red circle"}, and optionally "split" and "nsfw"
    captions.csv       the same, with a line of names
    1.png, 1.txt       a folder without a captions file: the text beside a picture is its caption
    00000.tar          webdataset: 1.jpg and 1.txt, or 1.json with "caption"
    list.parquet       URL, TEXT and optionally NSFW, WIDTH and HEIGHT: LAION's lists

A line or file that cannot be used gives the reason instead of a row.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.data.demo.captions import SPLITS
from training.data.sources.documents import LONG_LINE, LONGEST_LINE, lines_of
from training.data.sources.rows import Row, Unusable
from training.data.store.layouts import LARGEST_CAPTION_BYTES
from training.errors import BadInput, reason_of

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
LARGEST_NOTE_BYTES = 1 << 20
"""Largest size of a text or JSON beside a picture."""
BROKEN, NO_KEYS = Unusable(reason="broken line"), Unusable(reason="line without file and caption")
NO_CAPTION, BROKEN_TEXT, NO_ADDRESS = "no caption", "broken text", "no web address"
NOT_UTF8 = "name is not UTF-8"
COMPRESSED_TAR, COMPRESSED_SUFFIXES = "compressed tar", (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def read_captions(captions: Path) -> Iterator[Row | Unusable]:
    """The rows of a captions file, JSON lines or CSV.

    Raises:
        BadInput: If the file cannot be read, or a .csv lacks the columns.
    """
    try:
        with captions.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            if captions.suffix.lower() == ".csv":
                yield from _csv_rows(file, captions)
            else:
                yield from _json_rows(file)
    except OSError as error:
        raise BadInput(
            f"The captions in {captions} cannot be read: {reason_of(error)}. Give a file of JSON lines, or a .csv, "
            "with --captions."
        ) from None


def read_folder(images: Path) -> Iterator[Row | Unusable]:
    """Yields the rows of a folder without a captions file: those of its tars if it has any, else pictures with texts
    beside them."""
    if tars := tars_of(images):
        for tar in tars:
            yield from _tar_rows(tar)
        yield from map(_compressed_tar, _names(images, COMPRESSED_SUFFIXES))
    else:
        yield from _text_rows(images)


def tars_of(images: Path) -> list[Path]:
    """Lists the tars of a folder, or the single tar that is given in place of a folder."""
    return [images] if images.suffix == ".tar" else [images / name for name in _names(images, (".tar",))]


def _names(images: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Lists the names in a folder that end with a suffix; an empty list if it is not a folder."""
    if not images.is_dir():
        return []
    with os.scandir(images) as entries:  # `Path.glob` would hold all entries of the folder
        return sorted(entry.name for entry in entries if entry.name.endswith(suffixes))


def read_addresses(lists: Path) -> Iterator[Row | Unusable]:
    """The rows of a Parquet file, or a folder of such, that lists addresses of pictures and their captions.

    Raises:
        BadInput: If a file cannot be read, or lacks the columns.
    """
    files = sorted(lists.glob("*.parquet")) if lists.is_dir() else [lists]
    if not files:
        raise BadInput(f"{lists} has no Parquet files. Give a list of addresses with --urls.")
    if not lists.exists():
        raise BadInput(f"There is no {lists}. Give a Parquet file, or a folder of such, with --urls.")
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                names = {name.upper(): name for name in opened.schema_arrow.names}
                if not {"URL", "TEXT"} <= names.keys():
                    raise BadInput(
                        f"{file} has the columns {opened.schema_arrow.names}; a list of addresses has URL and TEXT.",
                        cure="Give a list as LAION's with --urls.",
                    )
                wanted = [name for name in ("URL", "TEXT", "NSFW", "WIDTH", "HEIGHT") if name in names]
                for batch in opened.iter_batches(batch_size=4096, columns=[names[name] for name in wanted]):
                    for values in zip(*(batch.column(names[name]).to_pylist() for name in wanted), strict=True):
                        yield _address_row(dict(zip(wanted, values, strict=True)))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{file} cannot be read: {reason_of(error)}. Give a Parquet file with --urls.") from None


def _json_rows(file: io.TextIOBase) -> Iterator[Row | Unusable]:
    for line in lines_of(file):
        if line is None:
            yield Unusable(reason=LONG_LINE)
        elif line.strip():
            try:
                fields = json.loads(line)
                has_keys = not isinstance(fields, dict) or {"file", "caption"} <= fields.keys()
                yield _row(fields) if has_keys else NO_KEYS
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                yield BROKEN


def _csv_rows(file: io.TextIOBase, source: Path) -> Iterator[Row | Unusable]:
    # In pieces of a bounded length; `csv` joins them, and refuses a field that is too long.
    # Strict: else a quote that is not closed would make one caption of all lines up to the next quote.
    rows = csv.DictReader(iter(partial(file.readline, LONGEST_LINE), ""), strict=True)
    try:
        names = rows.fieldnames or []
    except csv.Error as error:
        raise BadInput(f"{source} cannot be read: {error}. Give a file of JSON lines, or a .csv.") from None
    if names and not {"file", "caption"} <= set(names):
        raise BadInput(
            f"{source} has the columns {', '.join(names):.200}; captions have file and caption, with commas between "
            "them.",
            cure="Rename the columns in the file's first line.",
        )
    while True:
        try:
            fields = next(rows)
            given = {name: value for name, value in fields.items() if value}
            given["nsfw"] = given.get("nsfw", "").upper() in ("TRUE", "1", "NSFW")
            yield _row({"caption": "", **given})
        except StopIteration:
            return
        except (csv.Error, ValueError, KeyError, TypeError, AttributeError):
            yield BROKEN


def _row(fields: dict, **where: object) -> Row:
    """A row from the fields of a line.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: If it is none.
    """
    file, caption, split = fields["file"], fields["caption"], fields.get("split", "train")
    if not (isinstance(file, str) and isinstance(caption, str) and split in SPLITS):
        raise ValueError("file and caption are text, split is " + " or ".join(SPLITS))
    if b"\0" in file.encode() + caption.encode():  # encode: half of a surrogate pair is not valid text
        raise ValueError("no file name has a null character, and no text needs one")
    return Row(file=file, caption=caption.strip(), split=split, unsafe=fields.get("nsfw") in (True, "NSFW"), **where)


def _text_rows(images: Path) -> Iterator[Row | Unusable]:
    if not images.is_dir():
        raise BadInput(f"{images} is no folder. Give the folder of the pictures with --images.")
    for picture in _files_below(images):
        if picture.suffix.lower() in PICTURE_SUFFIXES:
            name, note = picture.relative_to(images).as_posix(), picture.with_suffix(".txt")
            if (fault := _fault_of_name(name)) is not None:
                yield fault
                continue
            if note.exists() and not note.is_file():  # reading a pipe would wait for ever
                yield Unusable(reason=BROKEN_TEXT, file=name)
                continue
            try:
                with note.open("rb") as file:
                    text = file.read(LARGEST_NOTE_BYTES)
                yield _row({"file": name, "caption": text.decode("utf-8-sig")})
            except FileNotFoundError:
                yield Unusable(reason=NO_CAPTION, file=name)
            except (OSError, ValueError):
                yield Unusable(reason=BROKEN_TEXT, file=name)
        elif picture.name.endswith(COMPRESSED_SUFFIXES):
            yield _compressed_tar(picture.relative_to(images).as_posix())


def _compressed_tar(name: str) -> Unusable:
    return _fault_of_name(name) or Unusable(reason=COMPRESSED_TAR, file=name)


def _fault_of_name(name: str) -> Unusable | None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return Unusable(reason=NOT_UTF8, file=name.encode("utf-8", "backslashreplace").decode())
    return None


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files in the order of their names, those of a folder before those below it; also below linked folders.

    The names are sorted on disk: one folder may have millions of files.
    """
    here = folder.resolve()
    if here in above:  # a link leads back to a folder that it is in
        return
    with closing(sqlite3.connect("")) as names, os.scandir(folder) as entries:
        names.execute("CREATE TABLE names (name BLOB, is_folder INTEGER)")
        found = ((os.fsencode(entry.name), entry.is_dir()) for entry in entries)
        names.executemany("INSERT INTO names VALUES (?, ?)", found)
        for name, is_folder in names.execute("SELECT name, is_folder FROM names ORDER BY is_folder, name"):
            path = folder / os.fsdecode(name)
            if not is_folder:
                yield path
            else:
                yield from _files_below(path, above | {here})


def _tar_rows(tar: Path) -> Iterator[Row | Unusable]:
    """Members of a sample follow each other and have the same name up to the first dot, as webdataset writes them."""
    try:
        with tarfile.open(tar, "r:") as opened:  # parts of a compressed tar cannot be read alone
            key, parts = None, {}
            for member in opened:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                if (folder, stem) != key:
                    yield from _tar_row(tar, key, parts)
                    key, parts = (folder, stem), {}
                small = member.size <= LARGEST_NOTE_BYTES and suffix.lower() in ("txt", "json")
                parts[suffix.lower()] = (member, opened.extractfile(member).read() if small else None)
            yield from _tar_row(tar, key, parts)
            # `tarfile` takes a header in the middle that is broken, or missing, for the end, which is a block of zeros.
            opened.fileobj.seek(opened.offset)
            if opened.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                yield Unusable(reason="broken tar", file=tar.name)
    except (tarfile.TarError, OSError, EOFError, ValueError):  # ValueError: a header has letters in place of a number
        yield Unusable(reason=COMPRESSED_TAR if _is_gzip(tar) else "broken tar", file=tar.name)


def _is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False


def _tar_row(tar: Path, key: object, parts: dict) -> Iterator[Row | Unusable]:
    picture = next((part for suffix, (part, _) in parts.items() if f".{suffix}" in PICTURE_SUFFIXES), None)
    if key is None or picture is None:
        return
    name = f"{tar.name}/{picture.name}"
    if (fault := _fault_of_name(name)) is not None:
        yield fault
        return
    try:
        fields = json.loads(parts["json"][1] or b"{}") if "json" in parts else {}
        if "txt" in parts:
            fields["caption"] = (parts["txt"][1] or b"").decode()
        if "NSFW" in fields:
            fields["nsfw"] = fields["NSFW"]
        if "caption" not in fields:
            yield Unusable(reason=NO_CAPTION, file=name)
            return
        where = {"tar": tar.name, "offset": picture.offset_data, "size": picture.size}
        yield _row({**fields, "file": name}, **where)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield Unusable(reason=BROKEN_TEXT, file=name)


def _address_row(fields: dict) -> Row | Unusable:
    try:
        sides = [float(fields.get(name) or 0) for name in ("WIDTH", "HEIGHT")]
        ratio = max(sides) / min(sides) if min(sides) > 0 else 1.0
        row = {"file": fields["URL"], "caption": fields["TEXT"], "nsfw": fields.get("NSFW")}
        if not fields["URL"].startswith(("http://", "https://")) or len(fields["URL"]) > LARGEST_CAPTION_BYTES:
            return Unusable(reason=NO_ADDRESS)
        return _row(row, url=fields["URL"], aspect_ratio=ratio)
    except (ValueError, KeyError, TypeError, AttributeError):
        return BROKEN
