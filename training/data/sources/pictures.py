"""Opens the pictures of rows, wherever they are, several at a time, and cuts them to squares."""

from __future__ import annotations

import io
import math
import os
import stat
import threading
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn import functional

from training.data.sources.fetch import CONNECTIONS, LARGEST_PICTURE_BYTES, Fetcher, LeftOutError
from training.data.sources.near import mark_of
from training.data.sources.records import inflated
from training.data.sources.rows import Row
from training.data.store.layouts import LARGEST_ASPECT_RATIO
from training.recipe import RunConfig

# `square_picture` looks at the size of each picture itself, and the report counts those that are too large.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

OPENED_TOGETHER = 256
"""Pictures of a batch; two batches are in memory at a time."""
LARGEST_PIXELS = 24_000_000
"""Most pixels of a decoded picture, 6000 x 4000: a small file can claim to be a picture of gigabytes."""
LARGEST_DRAFT_PIXELS = 120_000_000
"""Most pixels of a JPEG, whose decoder can skip detail: phones take pictures of 108 million pixels."""
UNREADABLE, NEEDS_HEIF = "unreadable file", "HEIC, which `pip install pillow-heif` makes readable"
HEIF_MARKS = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypmif1", b"ftypmsf1")
"""Bytes 4 to 12 of the files that phones write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture that can be encoded."""

    pixels: np.ndarray
    """uint8 (3, S, S)."""
    file_bytes: int
    """Size of the file that it was read from."""
    mark: bytes
    """Mark by which near-duplicates are found; see `training.data.sources.near.mark_of`."""


class Pictures:
    """Opens rows' pictures.

    Args:
        images: Folder of the pictures, tars or zips, or a tar or zip; None if all pictures are fetched.
        run: Recipe with the size and the filters.
        workers: Pictures that are decoded at the same time; None: as many as there are cores.
        fetcher: Fetches pictures that have addresses; None: one that reaches public addresses only.
    """

    def __init__(
        self, images: Path | None, run: RunConfig, *, workers: int | None = None, fetcher: Fetcher | None = None
    ):
        self._images, self._run, self._fetcher = images, run, fetcher or Fetcher()
        self._is_archive = images is not None and not images.is_dir()
        _learn_heif()
        self._workers = workers or os.cpu_count() or 1
        self._decoding = threading.Semaphore(self._workers)

    def batches(self, rows: Sequence[Row]) -> Iterator[list[Picture | str]]:
        """The rows' pictures in order, or the reasons for leaving them out, `OPENED_TOGETHER` at a time.

        The next batch is opened while the caller works on one.
        """
        is_fetched = any(row.url for row in rows)
        # Threads are enough: Pillow decodes without holding Python's lock.
        pool = ThreadPoolExecutor(max(self._workers, CONNECTIONS if is_fetched else 1))
        coming: list[Future] = []
        try:
            for start in range(0, len(rows) + OPENED_TOGETHER, OPENED_TOGETHER):
                begun = [pool.submit(self.open, row) for row in rows[start : start + OPENED_TOGETHER]]
                if coming:
                    yield [one.result() for one in coming]
                coming = begun
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for slow hosts

    def open(self, row: Row) -> Picture | str:
        """Opens a row's picture; returns the picture, or the reason for leaving it out."""
        try:
            content = self._content(row)
        except LeftOutError as reason:
            return str(reason)
        with self._decoding:
            pixels = square_picture(
                io.BytesIO(content),
                image_size=self._run.codec.image_size,
            )
            if isinstance(pixels, str):
                return NEEDS_HEIF if pixels == UNREADABLE and _is_unknown_heif(content) else pixels
            return Picture(pixels=pixels, file_bytes=len(content), mark=mark_of(pixels))

    def _content(self, row: Row) -> bytes:
        if row.url is not None:
            return self._fetcher.fetch(row.url)
        path, size = self.path(row), row.size
        try:
            if row.archive is None:
                facts = path.stat()
                if not stat.S_ISREG(facts.st_mode):  # reading a pipe would wait for ever
                    raise LeftOutError(UNREADABLE)
                size = facts.st_size
            if size > LARGEST_PICTURE_BYTES:
                raise LeftOutError("huge file")
            with path.open("rb") as file:
                file.seek(row.offset)
                content = file.read(size)
                return inflated(content, LARGEST_PICTURE_BYTES) if row.deflated else content
        except FileNotFoundError:
            raise LeftOutError("missing file") from None
        except (OSError, zlib.error):
            raise LeftOutError(UNREADABLE) from None

    def path(self, row: Row) -> Path:
        """The file that holds a picture; for a name that leads out of the folder, a path that does not exist."""
        if row.archive is not None:
            return self._images if self._is_archive else self._images / row.archive
        name = PurePath(row.file)
        return self._images / (".outside" if name.is_absolute() or ".." in name.parts else name)


def _learn_heif() -> None:
    """Lets Pillow read HEIC if the library for it, which the project does not require, is installed."""
    try:
        import pillow_heif
    except ImportError:
        return
    pillow_heif.register_heif_opener()


def _is_unknown_heif(content: bytes) -> bool:
    return content[4:12] in HEIF_MARKS and ".heic" not in Image.registered_extensions()


def square_picture(file: Path | BinaryIO, *, image_size: int) -> np.ndarray | str:
    """Opens a picture, crops it to its central square and resizes it.

    Returns:
        uint8 (3, image_size, image_size), or the reason for leaving it out.
    """
    try:
        with Image.open(file) as opened:
            if opened.format == "EPS":  # a program, which Pillow would have Ghostscript run, for as long as it likes
                return UNREADABLE
            width, height = opened.size
            if width * height > LARGEST_DRAFT_PIXELS:
                return "huge picture"
            if max(width, height) > LARGEST_ASPECT_RATIO * min(width, height):
                return "extreme aspect ratio"
            if opened.format == "JPEG":
                # The JPEG decoder then skips detail by a factor of 2, 4 or 8, and still gives at least twice the final
                # size.
                opened.draft("RGB", (2 * image_size, 2 * image_size))
            if math.prod(opened.size) > LARGEST_PIXELS:
                return "huge picture"
            # Phones store a turned picture with a note about how it is turned.
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I;16"):  # Pillow's own conversion clips everything above 255
                picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
            elif picture.mode in ("I", "F"):
                return UNREADABLE  # such files do not say which value is white
            if picture.has_transparency_data:
                # Transparent pixels may have any colour; on a page, readers see white behind them.
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            picture = picture.convert("RGB")
    except FileNotFoundError:
        return "missing file"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return "huge picture"
    except Exception:  # Pillow raises many kinds of errors for broken files; each means that the file is unreadable
        return UNREADABLE
    return _central_square(picture, image_size)


def _central_square(picture: Image.Image, image_size: int) -> np.ndarray:
    """The central square of an RGB picture, resized: uint8 (3, image_size, image_size).

    PyTorch's kernels for 8 bits take a fifth of the time of Pillow's Lanczos filter, which reads half as many pixels
    again. Their bicubic filter is Pillow's; it differs from Lanczos by a third of a step of 256 in the mean.
    """
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    square = np.array(picture.crop((left, top, left + side, top + side))).transpose(2, 0, 1)
    if side == image_size:
        return square
    size = (image_size, image_size)
    return functional.interpolate(torch.from_numpy(square)[None], size, mode="bicubic", antialias=True)[0].numpy()
