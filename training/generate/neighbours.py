"""Finds the training samples nearest to a picture by CLIP embedding (paper, appendix B): was it in the training set?

There are two lists: the training pictures that look like it, and the captions that describe it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from training.errors import BadInput, reason_of
from training.generate.clip import Clip
from training.generate.gallery import PICTURES_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """One training sample near a picture."""

    index: int
    """Index among the searched samples."""
    caption: str
    similarity: float
    """Cosine of the embeddings, -1 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """The training samples nearest to one picture, nearest first; each caption appears once per list."""

    pictures: tuple[Neighbour, ...]
    """The nearest samples by their pictures."""
    captions: tuple[Neighbour, ...]
    """The nearest samples by their captions."""


def find_neighbours(
    clip: Clip, queries: Sequence[np.ndarray], pictures: Sequence[np.ndarray], captions: Sequence[str], *, count: int
) -> list[Neighbours]:
    """Finds the nearest training samples of each query.

    Args:
        clip: The model that embeds them.
        queries: uint8 (side, side, 3).
        pictures: Pictures of the training samples, in the same form.
        captions: Captions of the training samples.
        count: Length of each list.
    """
    wanted = clip.embed_pictures(queries)
    by_picture = wanted @ clip.embed_pictures(pictures).t()
    different = list(dict.fromkeys(captions))
    place = {caption: at for at, caption in enumerate(different)}
    by_caption = (wanted @ clip.embed_texts(different).t())[:, [place[caption] for caption in captions]]
    return [
        Neighbours(pictures=_nearest(one, captions, count), captions=_nearest(other, captions, count))
        for one, other in zip(by_picture, by_caption, strict=True)
    ]


def _nearest(similarities: Tensor, captions: Sequence[str], count: int) -> tuple[Neighbour, ...]:
    found: dict[str, Neighbour] = {}
    for index in torch.argsort(similarities, descending=True, stable=True).tolist():
        caption = captions[index]
        if caption not in found:
            found[caption] = Neighbour(index=index, caption=caption, similarity=float(similarities[index]))
        if len(found) == count:
            break
    return tuple(found.values())


def read_queries(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """Pictures by their path: files, and those that a folder's `pictures.json` names.

    Raises:
        BadInput: If a picture cannot be read or is not square.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            try:
                entries = json.loads((path / PICTURES_FILE).read_text(encoding="utf-8"))["pictures"]
                files += [path / entry["file"] for entry in entries]
            except (OSError, ValueError, LookupError, TypeError) as error:
                raise BadInput(
                    f"{path} has no {PICTURES_FILE} that names pictures: {reason_of(error)}.",
                    cure="Give the folder that `generate` has written, or pictures.",
                ) from None
        else:
            files.append(path)
    pictures = {}
    for file in files:
        try:
            with Image.open(file) as opened:
                pictures[str(file)] = np.asarray(opened.convert("RGB"))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's for broken and huge files
            raise BadInput(
                f"{file} is no picture that can be read: {reason_of(error).rstrip('.')}.", cure="Give a PNG or JPEG."
            ) from None
        height, width, _ = pictures[str(file)].shape
        if height != width:
            raise BadInput(f"{file} is {width} x {height} pixels; a run's pictures are square. Crop it first.")
    if not pictures:
        raise BadInput(f"There is no picture in {', '.join(map(str, paths))}; draw some with `generate`.")
    return pictures
