"""The rows of a data set of the hub: pictures and captions in the set's order, a shard's worth at a time.

A table of all rows, as for other sets, would need a download of the whole set before the first picture is encoded.
Instead, the pictures of one shard are kept in a file, `spool`, from which they are opened as from a tar. Beside each
shard, a file has the place of its last row in the set: after an interruption, the next start continues from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from training.data.demo.captions import Split
from training.data.sources.fetch import LARGEST_PICTURE_BYTES
from training.data.sources.hub import HubPart, HubSet, broken_off
from training.data.sources.rows import MORE_CAPTIONS, Row, reason_to_leave_out
from training.data.sources.unused import Unusable, Unused
from training.data.sources.work import (
    HELD_OUT_ONE_IN,
    MOST_HELD_OUT,
    NOTE_SUFFIX,
    PLACE_SUFFIX,
    held_out_places,
)
from training.data.stream.order import permuted
from training.storage.whole import write_whole

IMAGE_COLUMNS, CAPTION_COLUMNS = ("image", "jpg", "png", "webp", "picture"), ("caption", "text", "txt", "captions")
"""Usual names of the columns of pictures and captions, for which no flag is needed."""
SPOOL_BYTES = 1 << 30
"""A shard is written when its pictures' files reach this size, even if it has room for more rows."""
READ_TOGETHER = 64
"""Rows whose pictures are fetched at the same time, where the set has them as files of their own."""
HELD_OUT_AMONG = held_out_places(HELD_OUT_ONE_IN * MOST_HELD_OUT)
"""Places of rows that are held out, in a part whose number of rows is not known."""
MOST_SAMPLED_PARTS = 64
"""Most files of a set whose first pictures train a codec."""


@dataclass(kw_only=True)
class _Read:
    """Place and counts after the rows of one shard were read."""

    part: int = 0
    place: int = 0
    """Number of the next row in this part."""
    read: int = 0
    unused: dict = field(default_factory=lambda: asdict(Unused()))
    """The rows that were left out; see `Unused`."""
    is_last: bool = False


class HubRows:
    """Rows of a set of the hub, with the methods of `training.data.sources.rows.RowTable`.

    Args:
        found: The opened set.
        folder: Folder for the pictures of one shard.
        image_column: Name of the column of pictures; None: a usual one.
        caption_column: Name of the column of captions; None: a usual one. Of several captions, the first is taken.
        holds_out: True to hold some rows of the first part out if the set has no other split than `train`.

    Raises:
        BadInput: If the set has no such columns.
    """

    kept = None
    """Number of rows of all splits, which is not known."""

    def __init__(
        self,
        found: HubSet,
        folder: Path,
        *,
        image_column: str | None,
        caption_column: str | None,
        holds_out: bool = False,
    ):
        self._set, self._folder = found, folder
        divided = found.parts[0] if holds_out and all(part.split == "train" for part in found.parts) else None
        self._divided = divided
        """Part of which some rows are held out; None if there is none."""
        pictures = [name for name, kind in (found.features or {}).items() if type(kind).__name__ == "Image"]
        usual = (*pictures, *IMAGE_COLUMNS) if len(pictures) < 2 else IMAGE_COLUMNS
        self._image = found.column(image_column, usual, what="pictures", flag="--image-column")
        self._caption = found.column(caption_column, CAPTION_COLUMNS, what="captions", flag="--text-column")
        self.unused = Unused()
        self.read = 0
        self._sampled: list[Row] | None = None

    def unusable(self) -> Iterator[dict[str, str]]:
        """The first rows of each reason that are left out, by `file`, each with its `reason`."""
        return iter(self.unused.listed())

    @property
    def identity(self) -> str:
        """Text that identifies the rows: equal texts mean equal rows."""
        return f"{self._set.identity} {self._image} {self._caption}"

    def batches(self, split: Split, size: int, *, seed: str, folder: Path) -> Iterator[tuple[int, list[Row]]]:
        """Yields the rows of a split in numbered batches of at most `size`, each in a random order.

        A batch whose shard is finished has no rows, and is not read again. The pictures of a batch are gone when the
        next one is asked for.
        """
        (self._folder / "sample").unlink(missing_ok=True)  # tokenizer and codec are trained by now
        parts = self._parts(split)
        last, number = _Read(is_last=not parts), 0
        rows: Iterator[tuple[int, int, dict | str]] | None = None
        while not last.is_last:
            place = folder / f"{split}-{number:05d}{PLACE_SUFFIX}"
            batch: list[Row] = []
            if place.with_name(f"{split}-{number:05d}{NOTE_SUFFIX}").exists():
                last = _Read(**json.loads(place.read_text()))
            else:
                rows = rows or self._placed(parts, last, split)
                batch, last = self._spooled(rows, parts, size, "spool", last)
                write_whole(place, json.dumps(asdict(last)))
            self.read += last.read
            self.unused.update(Unused(**last.unused))
            order = permuted(np.arange(len(batch)), len(batch), f"{seed}/{split}/{number}")
            yield number, [batch[at] for at in order]
            number += 1

    def sample(self, most: int, *, seed: str) -> list[Row]:
        """Returns at most `most` rows to train on, from the beginnings of files all over the set."""
        if self._sampled is None:
            parts = self._parts("train")
            parts = parts[:: -(-len(parts) // MOST_SAMPLED_PARTS)]
            share = -(-most // len(parts))
            firsts = (one for part in parts for one in islice(self._placed([part], _Read(), "train"), share))
            self._sampled, _ = self._spooled(firsts, parts, most, "sample", _Read())
        return self._sampled

    def captions(self, most: int, *, seed: str) -> Iterator[str]:
        """Yields the captions of the sample."""
        return (row.caption for row in self.sample(most, seed=seed))

    def _parts(self, split: Split) -> list[HubPart]:
        """Lists the parts with rows of a split."""
        if split == "held-out" and self._divided is not None:
            return [self._divided]
        return [part for part in self._set.parts if part.split == split]

    def _placed(self, parts: list[HubPart], last: _Read, split: Split) -> Iterator[tuple[int, int, dict | str]]:
        """Yields the rows of a split after a place: number of the part, number of the row, and the row."""
        wanted = split == "held-out" and self._divided is not None
        for number in range(last.part, len(parts)):
            skipped = last.place if number == last.part else 0
            for at, row in enumerate(parts[number].rows(skipped), start=skipped):
                if wanted and at >= HELD_OUT_AMONG.stop:
                    break
                if (parts[number] is self._divided and at in HELD_OUT_AMONG) == wanted:
                    yield number, at, row

    def _spooled(
        self,
        rows: Iterator[tuple[int, int, dict | str]],
        parts: list[HubPart],
        size: int,
        name: str,
        last: _Read,
    ) -> tuple[list[Row], _Read]:
        """Takes at most `size` rows and writes their pictures to the file `name`. Returns the rows, and the place
        behind them."""
        found, batch, unused = _Read(part=last.part, place=last.place), [], Unused()
        # Threads, since each picture of a folder on the hub is a request.
        with (self._folder / name).open("wb") as spool, ThreadPoolExecutor(READ_TOGETHER // 4) as pool:
            while len(batch) < size and spool.tell() < SPOOL_BYTES and not found.is_last:
                together = list(islice(rows, min(READ_TOGETHER, size - len(batch))))
                found.is_last = not together
                for (part, at, row), content in zip(together, pool.map(self._content, together), strict=True):
                    found.part, found.place, found.read = part, at + 1, found.read + 1
                    captions = [] if isinstance(row, str) else self._texts(row)
                    made = Row(
                        file=f"{parts[part].name}/{at}",
                        caption=captions[0] if captions else "",
                        more_captions=len(captions[1:]),
                        split=parts[part].split,
                        unsafe=not isinstance(row, str) and row.get("nsfw", row.get("NSFW")) in (True, "NSFW"),
                        archive=name,
                        offset=spool.tell(),
                        size=len(content),
                    )
                    reason = row if isinstance(row, str) else reason_to_leave_out(made)
                    if reason is None:
                        spool.write(content)
                        batch.append(made)
                    else:
                        unused.add(Unusable(reason=reason, file=made.file))
                    if made.more_captions:
                        unused.name(MORE_CAPTIONS, made.file)
        found.unused = asdict(unused)
        return batch, found

    def _texts(self, row: dict) -> list[str]:
        captions = row.get(self._caption)
        captions = captions if isinstance(captions, list) else [captions]
        texts = [caption.strip() for caption in captions if isinstance(caption, str)]
        # Half of a surrogate pair, or a null character, is no text that a shard can hold.
        return [text.encode(errors="replace").decode().replace("\0", "") for text in texts if text]

    def _content(self, placed: tuple[int, int, dict | str]) -> bytes:
        """Returns the bytes of a row's picture; no bytes if it cannot be read, or is too large."""
        row = placed[2]
        value = None if isinstance(row, str) else row.get(self._image)
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if content is None and path is not None:
            content = self._fetched(path)
        return content if isinstance(content, bytes) and len(content) <= LARGEST_PICTURE_BYTES else b""

    def _fetched(self, path: str) -> bytes:
        import fsspec  # slow to load

        try:
            with closing(fsspec.open(path).open()) as file:
                return file.read(LARGEST_PICTURE_BYTES + 1)
        except (FileNotFoundError, ValueError):
            return b""
        except Exception as error:  # of the libraries below: there are many kinds
            raise broken_off(self._set.address, error) from None
