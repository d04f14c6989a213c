"""The rows of a set that is prepared: each has a caption and the place of its picture.

Rows are read one at a time from captions files and lists of addresses (`training.data.sources.kinds`), folders, tars or
zips (`training.data.sources.folders`). Kept rows go to a table on disk, from which they are read in a random order:
memory does not grow with the set.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import numpy as np

from training.data.demo.captions import SPLITS, Split
from training.data.sources.unused import Unusable, Unused
from training.data.sources.work import held_out_places
from training.data.store.layouts import LARGEST_ASPECT_RATIO, LARGEST_CAPTION_BYTES, LEAST_CAPTION_CHARACTERS
from training.data.stream.order import permuted
from training.storage.whole import whole_file

READ_TOGETHER = 4096
MORE_CAPTIONS = "more captions than the first, which is used"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One picture and its caption."""

    file: str
    """Name of the picture in its folder, tar or zip, or its address."""
    caption: str
    split: Split = "train"
    unsafe: bool = False
    """True if the picture is marked as not safe for work (`"nsfw": true`, or LAION's `"NSFW"`)."""
    archive: str | None = None
    """The tar or zip that holds the picture."""
    offset: int = 0
    """Offset of the picture in the archive, in bytes."""
    size: int = 0
    """Size of the picture in the archive, in bytes."""
    deflated: bool = False
    """True if a zip has compressed it."""
    url: str | None = None
    """Address of the picture; None: it is in a file."""
    aspect_ratio: float = 1.0
    """Longer side of the picture over the shorter one; 1.0 if the list does not give sizes."""
    more_captions: int = 0
    """Captions beyond the first one, which are not used."""


def reason_to_leave_out(row: Row) -> str | None:
    """Returns why a row is left out, judged without its picture; None: it is kept."""
    if len(row.caption) < LEAST_CAPTION_CHARACTERS:
        return "short caption"
    if len(row.caption.encode()) > LARGEST_CAPTION_BYTES:
        return "long caption"
    if row.unsafe:
        return "marked unsafe"
    if row.aspect_ratio > LARGEST_ASPECT_RATIO:
        return "extreme aspect ratio"
    return None


def _left_out(row: Row) -> Unusable | None:
    reason = reason_to_leave_out(row)
    return None if reason is None else Unusable(reason=reason, file=row.file)


class RowTable:
    """Rows on disk, by split.

    Args:
        folder: Folder for the table's files.
        rows: All rows, and the lines or files that cannot be used.
        holds_out: True to hold some rows out if no row is in another split than `train`.
    """

    def __init__(self, folder: Path, rows: Iterable[Row | Unusable], *, holds_out: bool = False):
        self._file, self._unusable = folder / "rows.jsonl", folder / "unusable.jsonl"
        self._offsets = {split: folder / f"{split}.offsets" for split in SPLITS}
        self.unused = Unused()
        """Rows that were left out, and files that are not used."""
        self.read = 0
        """Rows read, those left out included."""
        with self._file.open("wb") as lines, self._unusable.open("w", encoding="utf-8") as unusable:
            pending = {split: array("Q") for split in SPLITS}
            for row in rows:
                self.read += 1
                one = row if isinstance(row, Unusable) else _left_out(row)
                if one is not None:
                    self.unused.add(one)
                    self._list(one.reason, one.file, unusable)
                    continue
                if row.more_captions:
                    self._list(MORE_CAPTIONS, row.file, unusable)
                pending[row.split].append(lines.tell())
                lines.write(json.dumps(asdict(row)).encode() + b"\n")
                if self.read % READ_TOGETHER == 0:
                    self._append(pending)
            self._append(pending)
        if holds_out and self.kept == self.count("train"):
            self._hold_out()

    @staticmethod
    def _list(reason: str, file: str | None, unusable: TextIO) -> None:
        if file is not None:
            unusable.write(json.dumps({"file": file, "reason": reason}, ensure_ascii=False) + "\n")

    def unusable(self) -> Iterator[dict[str, str]]:
        """The files and lines that are left out, by `file`, each with its `reason`."""
        with self._unusable.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def count(self, split: Split) -> int:
        """Rows of a split."""
        path = self._offsets[split]
        return path.stat().st_size // 8 if path.exists() else 0

    @property
    def kept(self) -> int:
        """Rows of all splits."""
        return sum(map(self.count, SPLITS))

    def shuffled(self, split: Split, start: int, end: int, *, seed: str) -> list[Row]:
        """Rows at some places of a random order of a split, which `seed` decides."""
        count = self.count(split)
        if not count:  # no file can be mapped that has no bytes
            return []
        places = permuted(np.arange(start, min(end, count)), count, f"{seed}/{split}")
        offsets = np.memmap(self._offsets[split], dtype="<u8", mode="r")[places]
        with self._file.open("rb") as lines:
            return [self._row(lines, int(offset)) for offset in offsets]

    def batches(self, split: Split, size: int, *, seed: str, folder: Path) -> Iterator[tuple[int, list[Row]]]:
        """Yields the rows of a split in a random order, in numbered batches of `size`.

        Args:
            split: One of `SPLITS`.
            size: Rows of a batch.
            seed: Seed of the order.
            folder: Folder of the shards; not used here.
        """
        for number, start in enumerate(range(0, self.count(split), size)):
            yield number, self.shuffled(split, start, start + size, seed=seed)

    def sample(self, most: int, *, seed: str) -> list[Row]:
        """Returns at most `most` random rows to train on."""
        return self.shuffled("train", 0, most, seed=f"{seed}/codec")

    def captions(self, most: int, *, seed: str) -> Iterator[str]:
        """Yields all captions to train on, even if they are more than `most`."""
        if not self.count("train"):
            return
        with self._file.open("rb") as lines:
            for offset in np.memmap(self._offsets["train"], dtype="<u8", mode="r"):
                yield self._row(lines, int(offset)).caption

    def __iter__(self) -> Iterator[Row]:
        with self._file.open("rb") as lines:
            for line in lines:
                yield Row(**json.loads(line))

    def _hold_out(self) -> None:
        """Moves some rows from the split `train` to the one that is held out."""
        train = self._offsets["train"]
        if not (places := held_out_places(self.count("train"))):
            return
        offsets = np.memmap(train, dtype="<u8", mode="r")
        np.array(offsets[places]).tofile(self._offsets["held-out"])
        with whole_file(train, flushed=False) as kept, kept.open("wb") as file:
            for before, after in pairwise((-1, *places, len(offsets))):
                offsets[before + 1 : after].tofile(file)

    def _append(self, pending: dict[str, array]) -> None:
        for split, offsets in pending.items():
            if offsets:
                with self._offsets[split].open("ab") as file:
                    offsets.tofile(file)
                del offsets[:]

    @staticmethod
    def _row(lines, offset: int) -> Row:
        lines.seek(offset)
        return Row(**json.loads(lines.readline()))
