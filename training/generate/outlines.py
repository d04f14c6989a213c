"""Finds the shape whose outline fits a thing, and how far the thing deviates from it.

A thing is given by its coverage: the share of each pixel that belongs to it, 0 to 1, shape (height, width).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image

from training.data.demo.captions import SHAPES
from training.data.demo.draw import shape_mask

Box = tuple[int, int, int, int]
"""Top, bottom, left and right, in pixels; bottom and right are exclusive."""

MOVES: tuple[Box, ...] = (
    (1, 0, 0, 0), (-1, 0, 0, 0), (0, 1, 0, 0), (0, -1, 0, 0), (0, 0, 1, 0), (0, 0, -1, 0), (0, 0, 0, 1), (0, 0, 0, -1),
    (1, 1, 0, 0), (-1, -1, 0, 0), (0, 0, 1, 1), (0, 0, -1, -1),
)  # fmt: skip
"""Steps of one pixel by which a box is fitted: moving one side, or the whole box."""


def best_shape(coverage: np.ndarray) -> tuple[str, float]:
    """Finds the shape that fits the box's contents best, and its overlap (intersection over union, 0 to 1)."""
    height, width = coverage.shape
    overlaps = {shape: _overlap(shape, coverage, (0, height, 0, width)) for shape in SHAPES}
    best = max(overlaps, key=overlaps.__getitem__)
    return best, overlaps[best]


def stray_from(shape: str, coverage: np.ndarray, box: Box) -> float:
    """Share of the shape by which a thing differs from its outline, ignoring deviations of up to a pixel.

    The outline is first moved to where it fits best: a codec's smear at one side widens the thing's box, but should not
    move the outline.
    """
    overlap = _overlap(shape, coverage, box)
    while True:
        moved = [tuple(map(sum, zip(box, move, strict=True))) for move in MOVES]
        found, place = max((_overlap(shape, coverage, near), near) for near in moved)
        if found <= overlap:
            break
        overlap, box = found, place
    placed = _placed_outline(shape, coverage.shape, box)
    padded = np.pad(placed, 1)
    height, width = coverage.shape
    # The outline moved by a pixel in all directions. Missing is what the thing lacks even of the outline shrunk by a
    # pixel; too much is what lies outside even of the outline grown by one.
    around = np.stack([padded[y : y + height, x : x + width] for y in range(3) for x in range(3)])
    missing = (around.min(axis=0) >= 0.5) & (coverage < 0.5)
    too_much = (around.max(axis=0) < 0.5) & (coverage >= 0.5)
    return float((missing | too_much).sum() / placed.sum())


def _overlap(shape: str, coverage: np.ndarray, box: Box) -> float:
    """Intersection over union with the shape's outline in that box; 0 for a box that is not within the picture."""
    top, bottom, left, right = box
    height, width = coverage.shape
    if min(top, left) < 0 or bottom > height or right > width or min(bottom - top, right - left) < 3:
        return 0.0
    # A circle squeezed into a wide box would fit an ellipse well; the factor favours shapes in their own proportions.
    outline, unsqueezed = _outline(shape, bottom - top, right - left)
    both = np.minimum(outline, coverage[top:bottom, left:right]).sum()
    return float(both / (outline.sum() + coverage.sum() - both)) * unsqueezed


def _placed_outline(shape: str, size: tuple[int, int], box: Box) -> np.ndarray:
    top, bottom, left, right = box
    placed = np.zeros(size, dtype=np.float32)
    placed[top:bottom, left:right] = _outline(shape, bottom - top, right - left)[0]
    return placed


@cache
def _outlines(shape: str) -> tuple[np.ndarray, ...]:
    """Coverage of the shape in its box, float32 in [0, 1], for radii from 5 to 32 pixels."""
    outlines = []
    for radius in range(5, 33):
        mask = np.asarray(shape_mask(shape, size=72, radius=radius / 72), dtype=np.float32) / 255
        rows, columns = np.nonzero(mask >= 0.5)
        outlines.append(mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1])
    return tuple(outlines)


def _outline(shape: str, height: int, width: int) -> tuple[np.ndarray, float]:
    """Computes the shape's coverage in a box of these sides, and the fit of its proportions to the box, 0 to 1."""
    # The nearest in size, so that resizing hardly blurs it.
    outline = min(_outlines(shape), key=lambda outline: abs(outline.size - height * width))
    squeeze = (outline.shape[1] / outline.shape[0]) / (width / height)
    if outline.shape != (height, width):
        outline = np.asarray(Image.fromarray(outline).resize((width, height), Image.Resampling.BILINEAR))
    return outline, min(squeeze, 1 / squeeze) ** 0.5
