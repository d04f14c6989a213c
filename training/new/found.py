"""The data of a new run, as a person gives them: text, pictures with captions, or prepared shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calculator.reports.units import show_bytes, show_count
from training.data.sources.documents import TEXT_KINDS
from training.data.sources.folders import PICTURE_SUFFIXES, is_tar
from training.data.sources.hub import HubSet, is_hub
from training.data.sources.records import RECORD_KINDS, kind_of
from training.data.sources.work import files_below
from training.data.store.shards import MANIFEST_FILE, Kind, read_manifest
from training.errors import BadInput

if TYPE_CHECKING:
    from training.data.store.shards import Manifest, TextManifest

CAPTIONS = "captions"
"""Name, without its suffix, of a file beside the pictures that is taken for that of their captions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Data for a run."""

    kind: Kind
    place: str
    """A folder, a file, or a data set of the hub, `hf://OWNER/NAME`."""
    words: str
    """What was found, for people."""
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
    kinds: Counter[Kind] = Counter()
    text_bytes = 0
    for file in files_below(path) if path.is_dir() else [path]:
        if file.name.startswith("."):
            continue
        if file.suffix.lower() in PICTURE_SUFFIXES or is_tar(file.name):
            kinds["pictures"] += 1
        elif kind_of(file.name) in TEXT_KINDS and file.is_file():
            kinds["text"] += 1
            text_bytes += file.stat().st_size
    if not kinds:
        raise BadInput(
            f"{place} has neither text nor pictures.",
            cure=f"Text is in files that end in {', '.join(TEXT_KINDS)}, also compressed; pictures in .jpg, .png and "
            "other usual kinds, or in tars.",
        )
    # Each picture may have its caption in a file of text beside it.
    if kinds["pictures"] >= kinds["text"]:
        count = None if is_tar(path.name) else kinds["pictures"]
        words = _counted(kinds["pictures"], "picture")
        captions = next(filter(Path.is_file, (path / f"{CAPTIONS}{kind}" for kind in RECORD_KINDS)), None)
        return Found(kind="pictures", place=place, words=words, samples=count, captions=captions)
    words = f"{_counted(kinds['text'], 'file')} of text, {show_bytes(text_bytes)}"
    return Found(kind="text", place=place, words=words, text_bytes=text_bytes)


def _on_the_hub(place: str) -> Found:
    from training.data.sources.hub_rows import IMAGE_COLUMNS

    found = HubSet(place)
    features = found.features or {}
    pictures = any(type(kind).__name__ == "Image" for kind in features.values())
    pictures = pictures or any(name in IMAGE_COLUMNS for name in found.columns())
    kind: Kind = "pictures" if pictures else "text"
    return Found(kind=kind, place=place, words=f"a data set of {kind} on the Hugging Face Hub")


def _prepared(path: Path) -> Found:
    manifest = read_manifest(path)
    samples = manifest.splits["train"].samples
    of = {"text": "block", "pictures": "picture"}[manifest.kind]
    words = f"prepared shards of {_counted(samples, of)}"
    return Found(kind=manifest.kind, place=str(path), words=words, samples=samples, manifest=manifest)


def _counted(count: int, noun: str) -> str:
    return f"{show_count(count)} {noun}{'' if count == 1 else 's'}"
