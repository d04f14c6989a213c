"""Data for a new run, found at the place that a person gives: text, pictures with captions, or prepared shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from calculator.units import show_bytes, show_count
from training.data.sources.documents import TEXT_KINDS
from training.data.sources.folders import PICTURE, PICTURE_SUFFIXES, is_archive
from training.data.sources.hub import HubSet, is_hub
from training.data.sources.hub_rows import IMAGE_COLUMNS
from training.data.sources.records import RECORD_KINDS, kind_of
from training.data.sources.work import files_below
from training.data.store.shards import MANIFEST_FILE, Kind, read_manifest
from training.errors import BadInput

if TYPE_CHECKING:
    from training.data.store.shards import Manifest, TextManifest

ARCHIVE, TABLE, TEXT = "tar or zip of pictures", "Parquet file with pictures", "file of text"
"""Kinds of files beside `PICTURE`, for people."""
PLURALS = {
    PICTURE: "pictures",
    ARCHIVE: "tars or zips of pictures",
    TABLE: "Parquet files with pictures",
    TEXT: "files of text",
    "block": "blocks",
}
CAPTIONS = "captions"
"""Name, without its suffix, of the file beside the pictures that has their captions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Data for a run."""

    kind: Kind
    place: str
    """A folder, a file, or a data set of the hub, `hf://OWNER/NAME`."""
    words: str
    """Description of the data for people."""
    text_bytes: int | None = None
    """Bytes of the files of text; None if they are not known."""
    samples: int | None = None
    """Pictures, or blocks of text in prepared shards; None if their number is not known."""
    captions: Path | None = None
    """File `captions` in the folder of the pictures; None: captions are beside them."""
    manifest: Manifest | TextManifest | None = None
    """The manifest of shards that are prepared already."""


def look(place: str) -> Found:
    """Looks at data without reading all of them.

    Raises:
        BadInput: If there are neither text nor pictures.
        TrainingError: If the hub does not answer.
    """
    if is_hub(place):
        return _on_the_hub(place)
    path = Path(place)
    if not path.exists():
        raise BadInput(
            f"There is no {place}.",
            cure="Give a folder of text or of pictures with captions, or a data set of the hub, hf://OWNER/NAME.",
        )
    if (path / MANIFEST_FILE).is_file():
        return _prepared(path)
    kinds: Counter[str] = Counter()
    text_bytes = captions_beside = 0
    # Files come in the order of their names, a picture and the caption beside it together.
    for _, same_name in groupby(files_below(path) if path.is_dir() else [path], lambda file: (file.parent, file.stem)):
        here: Counter[str] = Counter()
        for file in same_name:
            if (kind := _kind(file)) is not None:
                here[kind] += 1
                text_bytes += file.stat().st_size if kind == TEXT else 0
        kinds += here
        captions_beside += here[TEXT] if here[PICTURE] else 0
    if not kinds:
        raise BadInput(
            f"{place} has neither text nor pictures.",
            cure=f"Text is in files that end in {', '.join(TEXT_KINDS)}, also compressed; pictures in .jpg, .png and "
            "other usual kinds, in tars, zips or Parquet files.",
        )
    if kinds.total() - kinds[TEXT] >= kinds[TEXT] - captions_beside:
        packed = kinds[ARCHIVE] + kinds[TABLE]
        words = " and ".join(_counted(kinds[kind], kind) for kind in (PICTURE, ARCHIVE, TABLE) if kinds[kind])
        captions = next(filter(Path.is_file, (path / f"{CAPTIONS}{kind}" for kind in RECORD_KINDS)), None)
        samples = None if packed else kinds[PICTURE]
        return Found(kind="pictures", place=place, words=words, samples=samples, captions=captions)
    words = f"{_counted(kinds[TEXT], TEXT)}, {show_bytes(text_bytes)}"
    return Found(kind="text", place=place, words=words, text_bytes=text_bytes)


def _kind(file: Path) -> str | None:
    """Kind of a file; None if it has neither text nor pictures."""
    if file.name.startswith(".") or not file.is_file():
        return None
    if file.suffix.lower() in PICTURE_SUFFIXES:
        return PICTURE
    if is_archive(file.name):
        return ARCHIVE
    if file.suffix.lower() == ".parquet" and _has_pictures(file):
        return TABLE
    return TEXT if kind_of(file.name) in TEXT_KINDS else None


def _has_pictures(table: Path) -> bool:
    """Returns True if a Parquet file has pictures inside, as `datasets` writes them."""
    try:
        schema = pq.read_schema(table)
    except (pa.ArrowException, OSError):
        return False
    return any(field.name in IMAGE_COLUMNS and pa.types.is_struct(field.type) for field in schema)


def _on_the_hub(place: str) -> Found:
    found = HubSet(place)
    features = found.features or {}
    pictures = any(type(kind).__name__ == "Image" for kind in features.values())
    pictures = pictures or any(name in IMAGE_COLUMNS for name in found.columns())
    kind: Kind = "pictures" if pictures else "text"
    return Found(kind=kind, place=place, words=f"a data set of {kind} on the Hugging Face Hub")


def _prepared(path: Path) -> Found:
    manifest = read_manifest(path)
    samples = manifest.splits["train"].samples
    of = {"text": "block", "pictures": PICTURE}[manifest.kind]
    words = f"prepared shards of {_counted(samples, of)}"
    return Found(kind=manifest.kind, place=str(path), words=words, samples=samples, manifest=manifest)


def _counted(count: int, noun: str) -> str:
    """A count and its noun.

    >>> _counted(1, TEXT), _counted(3, ARCHIVE)
    ('1 file of text', '3 tars or zips of pictures')
    """
    return f"{show_count(count)} {noun if count == 1 else PLURALS[noun]}"
