"""The rows of captions files and of lists of addresses, in all kinds of `training.data.sources.records`.

    captions.jsonl     {"file": "1.png", "caption": "a red circle"}, and optionally "split" and "nsfw"
    captions.csv       the same, with a line of names
    captions_*.json    "images" and "annotations", as COCO has them
    list.parquet       URL, TEXT and optionally NSFW, WIDTH and HEIGHT: LAION's lists

A line or file that cannot be used gives the reason instead of a row.
Of several captions of a picture, the first is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from training.data.demo.captions import Split
from training.data.sources.documents import NOT_TEXT, UNKNOWN_SPLIT, name_of, split_named
from training.data.sources.records import (
    BROKEN,
    BROKEN_FILE,
    NO_COLUMN,
    RECORD_KINDS,
    Records,
    key_of,
    kind_of,
    opened_text,
    until_broken,
)
from training.data.sources.rows import Row
from training.data.sources.unused import HIDDEN, Unusable
from training.data.sources.work import files_below
from training.errors import BadInput, reason_of

NO_KEYS, NO_CAPTION, NO_ADDRESS = "line without file and caption", "no caption", "no web address"
COCO = re.compile(r'\s*\{\s*"(info|licenses|images|annotations|categories|type)"\s*:\s*[\[{"]')
"""Beginning of a file of COCO."""
COCO_KEYS = ("images", "annotations", "id", "file_name", "image_id", "caption")
UNSAFE = ("TRUE", "1", "NSFW")
"""Values of `nsfw` that mark a picture, in capital letters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """Keys or columns that may have a picture's name and its caption; the first that a record has counts."""

    file: tuple[str, ...] = ("file", "file_name", "filename", "image", "image_name", "image_path", "path")
    caption: tuple[str, ...] = ("caption", "text", "captions")

    def named(self, file: str | None, caption: str | None) -> Keys:
        """Returns these keys, with the given names of file and caption in place of the usual names."""
        return Keys(file=(file,) if file else self.file, caption=(caption,) if caption else self.caption)

    @property
    def all(self) -> tuple[str, ...]:
        """All keys of a row."""
        return (*self.file, *self.caption, "split", "nsfw")


USUAL, ADDRESSES = Keys(), Keys(file=("url", "image_url"), caption=("text", "caption", "captions"))


def read_captions(captions: Path, keys: Keys = USUAL) -> Iterator[Row | Unusable]:
    """Yields the rows of a captions file.

    Raises:
        BadInput: If the file cannot be read, or has columns but none of captions.
    """
    records = Records(captions, keys.all, long=keys.caption)
    try:
        if kind_of(captions.name) == ".json" and _is_coco(captions):
            for row in until_broken(_coco_rows(captions)):
                yield Unusable(reason=row, file=captions.name) if isinstance(row, str) else row
            return
        for place, record in records:
            if record == NO_COLUMN or (records.columns and not _has_both(records.columns, keys)):
                raise BadInput(
                    f"{captions} has the columns {', '.join(records.columns):.200}; captions have file and caption.",
                    cure="Rename the columns in the file's first line, or name them with --image-column and "
                    "--text-column.",
                )
            yield row_of(record, keys, f"{captions.name}, {place}")
    except OSError as error:
        raise BadInput(
            f"The captions in {captions} cannot be read: {reason_of(error)}. Give a file of JSON lines, or a .csv, "
            "with --captions."
        ) from None


def _is_coco(captions: Path) -> bool:
    with opened_text(captions) as (_, _, start):
        return COCO.match(start) is not None


def _coco_rows(captions: Path) -> Iterator[Row | Unusable]:
    """Yields the rows of a file of COCO: pictures in one list, and their captions in another.

    Reads the file as a whole, since it has no lines, and keeps only the needed keys in memory.
    """

    def needed(fields: dict) -> dict:
        return {key: fields[key] for key in COCO_KEYS if key in fields}

    with opened_text(captions) as (text, _, _):
        try:
            whole = json.load(text, object_hook=needed)
            images, annotations = whole["images"], whole["annotations"]
            texts: dict[str, list[object]] = {}
            for one in annotations:
                if "caption" in one:
                    texts.setdefault(str(one["image_id"]), []).append(one["caption"])
            records = [(one.get("file_name"), texts.get(str(one["id"]))) for one in images]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            yield Unusable(reason=BROKEN_FILE, file=captions.name)
            return
    for number, (file, found) in enumerate(records, start=1):
        place = f"{captions.name}, image {number}"
        row = {"file_name": file, "caption": found}
        yield row_of(row, USUAL, place) if found else Unusable(reason=NO_CAPTION, file=place)


def _has_both(columns: list[str], keys: Keys) -> bool:
    there = dict.fromkeys(columns)
    return key_of(there, keys.file) is not None and key_of(there, keys.caption) is not None


def row_of(
    record: object, keys: Keys, name: str, *, file: str | None = None, split: Split = "train", **where: object
) -> Row | Unusable:
    """Makes a row of the fields of a record, or the reason why there is none.

    Args:
        record: Fields of the record, or the reason why it cannot be read.
        keys: Keys of a picture's name and caption.
        name: File and place of the record, for people.
        file: Name of the picture, if the record need not have it.
        split: Split of the row, if the record has none.
        where: More fields of the row.
    """
    if isinstance(record, str):
        return Unusable(reason=record, file=name)
    file_key, caption_key = key_of(record, keys.file), key_of(record, keys.caption)
    if file is None and (file_key is None or caption_key is None):
        return Unusable(reason=NO_KEYS, file=name, keys=tuple(record))
    if caption_key is None:
        return Unusable(reason=NO_CAPTION, file=name, keys=tuple(record))
    captions = record[caption_key]
    if file is None:
        # Lists made on Windows have its slashes.
        file = record[file_key].strip().replace("\\", "/") if isinstance(record[file_key], str) else None
    captions = captions if isinstance(captions, list) else [captions]
    if not file or not all(isinstance(one, str) for one in captions):
        return Unusable(reason=BROKEN, file=name)
    split = split_named(record["split"]) if record.get("split") else split
    if split is None:
        return Unusable(reason=UNKNOWN_SPLIT, file=name)
    captions = [one.strip() for one in captions if one.strip()]
    if not _is_text(file + "".join(captions)):
        return Unusable(reason=BROKEN, file=name)
    return Row(
        file=file,
        caption=captions[0] if captions else "",
        more_captions=len(captions[1:]),
        split=split,
        unsafe=str(record.get("nsfw", record.get("NSFW"))).upper() in UNSAFE,
        **where,
    )


def _is_text(text: str) -> bool:
    """Returns False for a text with a null character, which no file name may have, or with half of a surrogate pair."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def read_addresses(lists: Path, keys: Keys = ADDRESSES) -> Iterator[Row | Unusable]:
    """Yields the rows of a list of pictures' addresses and captions: a file, or a folder of such files.

    Raises:
        BadInput: If there is no file, or the only file lacks the columns.
    """
    if not lists.exists():
        raise BadInput(f"There is no {lists}. Give a Parquet file, or a folder of such, with --urls.")
    for file in files_below(lists) if lists.is_dir() else [lists]:
        name = name_of(file, lists)
        if file.name.startswith("."):
            yield Unusable(reason=HIDDEN, file=name)
        elif kind_of(file.name) not in RECORD_KINDS:
            yield Unusable(reason=NOT_TEXT, file=name)
        else:
            yield from _listed(file, name, keys)


def lists_of(lists: Path) -> list[Path]:
    """Lists the files that `read_addresses` reads."""
    return [path for path in files_below(lists) if kind_of(path.name) in RECORD_KINDS] if lists.is_dir() else [lists]


def _listed(file: Path, name: str, keys: Keys) -> Iterator[Row | Unusable]:
    records = Records(file, (*keys.all, "width", "height"), long=keys.caption)
    try:
        for place, record in records:
            row = row_of(record, keys, f"{name}, {place}")
            if isinstance(row, Row) and not row.file.startswith(("http://", "https://")):
                row = Unusable(reason=NO_ADDRESS, file=f"{name}, {place}")
            elif isinstance(row, Row):
                row = replace(row, url=row.file, aspect_ratio=_aspect_ratio(record))
            elif record == NO_COLUMN:
                row = replace(row, keys=records.missed)
            yield row
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {reason_of(error)}. Give a Parquet file with --urls.") from None


def _aspect_ratio(record: dict) -> float:
    try:
        sides = [float(record[key]) for name in ("width", "height") if (key := key_of(record, (name,)))]
    except (TypeError, ValueError):
        return 1.0
    return max(sides) / min(sides) if len(sides) == 2 and min(sides) > 0 else 1.0
