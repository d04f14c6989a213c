"""Judges a picture against its caption by fixed rules: which shapes, which colours, how many, where.

Nothing here is learned, so the figure that `evaluate` prints cannot drift with the model that it measures. The judge
reads a picture in three steps. The background is the median colour at the edge. The pixels that differ from it
form connected things. Each thing gets the nearest colour of the palette and the shape whose outline fits it best,
provided that it deviates from the outline by more than a pixel almost nowhere: an arch is not a square. Slight blur and
noise, as from an image codec, do not change the verdict.

Chance: a picture of one thing with a random shape and colour is right with probability 1/8 for each and 1/64 for both.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from PIL import Image

from training.data.demo.captions import BACKGROUNDS, COLOURS, PLACES, RELATIONS, Thing, parse_caption
from training.errors import BadInput
from training.generate.outlines import best_shape, stray_from

SIDE = 64
"""The side at which pictures are judged; others are resized to it."""

MIN_CONTRAST = 45.0
"""A pixel belongs to a thing if its sRGB distance from the background is at least this."""

FULL_CONTRAST = 0.72
"""A pixel has a thing's unmixed colour if its contrast is at least this share of the thing's strongest contrast."""

MIN_PIXELS, MIN_SHARE = 14, 0.12
"""Least size of a thing, in pixels and as a share of the largest thing; smaller specks are noise."""

MAX_COLOUR_DISTANCE, MIN_PURITY = 75.0, 0.7
"""Largest distance of a thing's median colour from the palette's, and smallest share of its inside that has this
colour."""
MIN_OVERLAP = 0.65
"""A thing has a shape if its intersection with the shape's outline is at least this share of their union."""
MAX_STRAY = 0.02
"""Largest area, as a share of the shape, that is missing or in excess more than a pixel from the outline.

It is 0 for true pictures, also blurred and noisy ones, and for nine in ten after the demo's codec. An arch deviates
from a square by 0.05, a square without a corner by 0.03.
"""

SMALL_BELOW, LARGE_ABOVE = 23.0, 35.0
"""Limits of the root of the box's area, in pixels: a thing below the first is small, above the second large."""

CENTRE_WITHIN, ASIDE_FROM, APART = 7.0, 4.5, 6.0
"""Distances in pixels: the farthest from the middle that counts as the centre; the nearest that counts as off-centre;
and the least distance of two things for one to be beside the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenThing:
    """One thing found in a picture. Lengths are in pixels of a picture of `SIDE`."""

    shape: str | None
    """Shape of the thing; None if it is not similar enough to any shape."""
    colour: str | None
    """Colour of the thing; None if it does not have a single colour of the palette."""
    overlap: float
    """Intersection over union with the best shape's outline, 0 to 1."""
    stray: float
    """The area missing or in excess more than a pixel from that outline, as a share of the shape's area."""
    x: float
    """Middle of the thing's box, from the left."""
    y: float
    """Middle of the thing's box, from the top."""
    extent: float
    """Root of the area of the thing's box."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Statements of the caption that are right in the picture.
    Qualities that the caption does not name count as right."""

    shape: bool
    """True if every named thing is present in its shape, and no other shape is."""
    colour: bool
    """True if the named things have their colours, and no other colour is present."""
    count: bool
    """True if the number of things is right."""
    relation: bool
    """True if the first thing is on the side of the second that the caption names."""
    place: bool
    """True if the thing lies at the place that the caption names."""
    size: bool
    """True if the thing is as small or as large as the caption says."""
    background: bool
    """True if the background has the colour that the caption names."""
    seen: tuple[SeenThing, ...]
    """Things that were found, largest first."""

    @property
    def matched(self) -> bool:
        """True if shape and colour are right; the run's quality figure counts these pictures."""
        return self.shape and self.colour

    @property
    def exact(self) -> bool:
        """True if everything that the caption says is right."""
        return all((self.matched, self.count, self.relation, self.place, self.size, self.background))


def judge(picture: np.ndarray, caption: str) -> Judgement:
    """Compares a picture with its caption.

    Args:
        picture: uint8, shape (height, width, 3), sRGB, square.
        caption: A sentence of the grammar in `training.data.demo.captions`.

    Raises:
        BadInput: If the caption is not in the grammar, or the picture has another type or shape.
    """
    scene = parse_caption(caption)
    background, seen = look(picture)
    named = scene.things * scene.count
    count = len(seen) == scene.total
    shapes_fit = {thing.shape for thing in seen} <= {thing.shape for thing in named}
    colours_fit = {thing.colour for thing in seen} <= {thing.colour for thing in named}
    # `assigned` may be shorter than `named`: a missing thing makes `count` wrong, not shape and colour.
    assigned = _assign(named, seen, scene.relation)
    first = assigned[0] if assigned else None
    return Judgement(
        shape=shapes_fit and bool(assigned) and all(s.shape == n.shape for n, s in zip(named, assigned, strict=False)),
        colour=colours_fit
        and bool(assigned)
        and all(s.colour == n.colour for n, s in zip(named, assigned, strict=False)),
        count=count,
        relation=scene.relation is None or (len(assigned) == 2 and _related(*assigned, scene.relation)),
        place=scene.place is None or (first is not None and _placed(first, scene.place)),
        size=scene.things[0].size is None or (first is not None and _size(first) == scene.things[0].size),
        background=scene.background is None or background == scene.background,
        seen=seen,
    )


def look(picture: np.ndarray) -> tuple[str, tuple[SeenThing, ...]]:
    """Finds the background's colour and the things in front of it, largest first. Argument and errors as in `judge`."""
    picture = np.asarray(picture)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.shape[0] != picture.shape[1]:
        raise BadInput(
            f"A picture to judge has dtype {picture.dtype} and shape {picture.shape}; give uint8 and (side, side, 3)."
        )
    if picture.shape[0] != SIDE:
        picture = np.asarray(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BOX))
    pixels = picture.astype(np.float32)
    frame = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    # The median ignores things that touch the edge.
    backdrop = np.median(frame, axis=0)
    background = _nearest(backdrop, BACKGROUNDS)[0]
    foreground = np.linalg.norm(pixels - backdrop, axis=-1) >= MIN_CONTRAST
    regions = sorted(_connected(foreground), key=np.sum, reverse=True)
    least = max(MIN_PIXELS, MIN_SHARE * regions[0].sum()) if regions else 0
    return background, tuple(_see(pixels, region, backdrop) for region in regions if region.sum() >= least)


def _connected(mask: np.ndarray) -> list[np.ndarray]:
    """The 4-connected regions of a boolean picture, each as a boolean picture."""
    # With a border of background, no pixel needs a check for the picture's edge.
    width = mask.shape[1] + 2
    flat = np.pad(mask, 1)
    todo = set(np.flatnonzero(flat).tolist())
    regions = []
    while todo:
        edge = [todo.pop()]
        found = edge.copy()
        while edge:
            at = edge.pop()
            for beside in (at - 1, at + 1, at - width, at + width):
                if beside in todo:
                    todo.remove(beside)
                    edge.append(beside)
                    found.append(beside)
        region = np.zeros(flat.size, dtype=bool)
        region[found] = True
        regions.append(region.reshape(flat.shape)[1:-1, 1:-1])
    return regions


def _see(pixels: np.ndarray, region: np.ndarray, backdrop: np.ndarray) -> SeenThing:
    contrast = np.linalg.norm(pixels - backdrop, axis=-1)
    # Leaves out the blurred edge, where colours mix. The quantile is not set by a single bright pixel, as the maximum
    # would be.
    inside = region & (contrast >= FULL_CONTRAST * np.quantile(contrast[region], 0.9))
    middle = np.median(pixels[inside], axis=0)
    colour, distance = _nearest(middle, COLOURS)
    palette = np.array(list(COLOURS.values()), dtype=np.float32)
    nearest = np.linalg.norm(pixels[inside][:, None] - palette, axis=-1).argmin(axis=1)
    pure = (nearest == list(COLOURS).index(colour)).mean() >= MIN_PURITY

    towards = middle - backdrop
    # How far each pixel's colour lies on the way from the background's to the thing's. The region is grown by a pixel,
    # since it leaves out the faint rim.
    coverage = np.clip((pixels - backdrop) @ towards / max(towards @ towards, 1.0), 0, 1) * _grown(region)
    # The median of a thing with many colours may be a colour that no pixel has: then no pixel has a coverage of 0.5.
    rows, columns = np.nonzero(coverage >= 0.5 if (coverage >= 0.5).any() else region)
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    shape, overlap = best_shape(coverage[top:bottom, left:right])
    stray = stray_from(shape, coverage, (top, bottom, left, right))
    return SeenThing(
        shape=shape if overlap >= MIN_OVERLAP and stray <= MAX_STRAY else None,
        colour=colour if distance <= MAX_COLOUR_DISTANCE and pure else None,
        overlap=overlap,
        stray=stray,
        x=float(left + right) / 2,
        y=float(top + bottom) / 2,
        extent=float(np.sqrt((bottom - top) * (right - left))),
    )


def _grown(mask: np.ndarray) -> np.ndarray:
    """The mask and the pixels that touch it."""
    padded = np.pad(mask, 1)
    return mask | padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]


def _nearest(colour: np.ndarray, palette: dict[str, tuple[int, int, int]]) -> tuple[str, float]:
    distances = {name: float(np.linalg.norm(colour - np.array(value))) for name, value in palette.items()}
    name = min(distances, key=distances.__getitem__)
    return name, distances[name]


def _assign(named: tuple[Thing, ...], seen: tuple[SeenThing, ...], relation: str | None) -> tuple[SeenThing, ...]:
    """The seen things that match the named ones, in their order; as many as the shorter of the two has."""
    if relation is None:
        return seen[: len(named)] if len(named) > 1 else seen[:1]

    def fit(pair: tuple[SeenThing, ...]) -> tuple[int, int, bool]:
        shapes = sum(thing.shape == name.shape for name, thing in zip(named, pair, strict=True))
        colours = sum(thing.colour == name.colour for name, thing in zip(named, pair, strict=True))
        return shapes + colours, shapes, _related(*pair, relation)

    # Of the four largest: the number of pairs grows with the square of the number of things.
    return max(itertools.permutations(seen[:4], 2), key=fit, default=())


def _related(first: SeenThing, second: SeenThing, relation: str) -> bool:
    dx, dy = RELATIONS[relation]
    along = (first.x - second.x) * dx + (first.y - second.y) * dy
    across = abs((first.x - second.x) * dy) + abs((first.y - second.y) * dx)
    return along >= APART and along > across


def _placed(thing: SeenThing, place: str) -> bool:
    def fits(offset: float, direction: int) -> bool:
        return offset * direction >= ASIDE_FROM if direction else abs(offset) <= CENTRE_WITHIN

    return all(fits(at - SIDE / 2, to) for at, to in zip((thing.x, thing.y), PLACES[place], strict=True))


def _size(thing: SeenThing) -> str | None:
    return "small" if thing.extent < SMALL_BELOW else "large" if thing.extent > LARGE_ABOVE else None
