"""Draws a scene: flat shapes in clear colours with smooth edges.

Coordinates are in units of the picture's side, from the top left corner; every picture is drawn several times larger
and averaged down. A thing without a place in the caption is drawn in the centre, where a reader would expect it; only
the layout of several things varies. Centres lie on a grid of eighths of the picture, the tokens of the demo's codec, so
that a thing has the same codes wherever it is.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

from training.data.demo.captions import BACKGROUNDS, COLOURS, PLACES, RELATIONS, SPLITS, Scene, caption_of, draw_scene
from training.errors import BadInput
from training.storage.whole import whole_folder

Point = tuple[float, float]

CAPTIONS_FILE = "captions.jsonl"
_NAME = re.compile(r"\d{5,}\.png")

SUPERSAMPLING = 8
"""Drawn points along a pixel's side; a pixel is the mean of their square."""

RADII: dict[str | None, float] = {"small": 9 / 64, None: 14 / 64, "large": 23 / 64}
"""Size -> half the extent of a single thing."""

RADIUS_OF_SEVERAL = 11 / 64
"""Half the extent of each of two or three things."""

LAYOUTS: dict[int, tuple[tuple[Point, ...], ...]] = {
    2: (
        ((0.25, 0.5), (0.75, 0.5)),
        ((0.5, 0.25), (0.5, 0.75)),
    ),
    3: (
        ((0.5, 0.25), (0.25, 0.75), (0.75, 0.75)),
        ((0.25, 0.25), (0.75, 0.25), (0.5, 0.75)),
    ),
}
"""Number of things -> possible positions of their centres."""


def _regular(points: int, *, inner: float = 1.0) -> list[Point]:
    """Corners of a polygon in the unit circle, the first at the top; `inner` is the radius of every second corner."""
    corners = range(points)
    radii = [inner if inner < 1 and corner % 2 else 1.0 for corner in corners]
    angles = [2 * math.pi * corner / points - math.pi / 2 for corner in corners]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in zip(radii, angles, strict=True)]


def _heart() -> list[Point]:
    """The curve x = 16 sin^3 t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t, within [-1, 1]."""
    angles = [2 * math.pi * step / 96 for step in range(96)]
    xs = [math.sin(angle) ** 3 for angle in angles]
    ys = [(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16 for t in angles]
    # The curve spans y from -1.06 to 0.75; adding 0.16 centres it.
    return [(x, -(y + 0.16)) for x, y in zip(xs, ys, strict=True)]


_ARM, _SIDE, _HOLE = 0.36, 0.86, 0.52
POLYGONS: dict[str, list[Point]] = {
    "square": [(-_SIDE, -_SIDE), (_SIDE, -_SIDE), (_SIDE, _SIDE), (-_SIDE, _SIDE)],
    "triangle": [(0.0, -0.95), (1.0, 0.8), (-1.0, 0.8)],
    "star": _regular(10, inner=0.44),
    "diamond": [(0.0, -1.0), (0.8, 0.0), (0.0, 1.0), (-0.8, 0.0)],
    "cross": [
        (-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM),
        (_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM),
    ],
    "heart": _heart(),
}  # fmt: skip
"""Shape -> its corners, in [-1, 1] with y downwards. Circle and ring are round and not among them."""


def shape_mask(shape: str, *, size: int, centre: Point = (0.5, 0.5), radius: float = 0.5) -> Image.Image:
    """The coverage of each pixel, 0 to 255, as an image of mode `L`.

    Args:
        shape: One of `captions.SHAPES`.
        size: Side of the mask, pixels.
        centre: Centre of the shape, in units of the side.
        radius: Half its extent, in units of the side.
    """
    large = size * SUPERSAMPLING
    mask = Image.new("L", (large, large))
    pen = ImageDraw.Draw(mask)
    x, y, r = centre[0] * large, centre[1] * large, radius * large
    if shape in POLYGONS:
        # Pillow's coordinates are those of pixel centres; ours are those of pixel edges, half a pixel away.
        pen.polygon([(x + r * dx - 0.5, y + r * dy - 0.5) for dx, dy in POLYGONS[shape]], fill=255)
    else:
        # Pillow's ellipse includes the last row and column.
        pen.ellipse((x - r, y - r, x + r - 1, y + r - 1), fill=255)
        if shape == "ring":
            hole = r * _HOLE
            pen.ellipse((x - hole, y - hole, x + hole - 1, y + hole - 1), fill=0)
    return mask.reduce(SUPERSAMPLING)


def draw_picture(scene: Scene, random_numbers: random.Random, *, size: int = 64) -> Image.Image:
    """The scene as an RGB picture.

    Args:
        scene: Scene to draw.
        random_numbers: Chooses the layout of several things, which the scene does not fix.
        size: Side of the picture, pixels.
    """
    picture = Image.new("RGB", (size, size), BACKGROUNDS[scene.background or "white"])
    for thing, centre, radius in _arrange(scene, random_numbers):
        picture.paste(COLOURS[thing.colour], mask=shape_mask(thing.shape, size=size, centre=centre, radius=radius))
    return picture


def _arrange(scene: Scene, random_numbers: random.Random) -> list[tuple]:
    """(thing, centre, radius) for each thing of the picture."""
    if scene.relation:
        dx, dy = RELATIONS[scene.relation]
        middles = [(0.5 + side * 0.25 * dx, 0.5 + side * 0.25 * dy) for side in (1, -1)]
        return [(thing, middle, RADIUS_OF_SEVERAL) for thing, middle in zip(scene.things, middles, strict=True)]
    thing = scene.things[0]
    if scene.count > 1:
        return [(thing, middle, RADIUS_OF_SEVERAL) for middle in random_numbers.choice(LAYOUTS[scene.count])]
    radius = RADII[thing.size]
    dx, dy = PLACES[scene.place or "in the centre"]
    # A quarter of the picture, or less for a large thing, so that a pixel of background (1/64) remains beside it.
    reach = min(0.25, 0.5 - radius - 1 / 64)
    return [(thing, (0.5 + dx * reach, 0.5 + dy * reach), radius)]


def draw_set(
    folder: Path,
    *,
    count: int,
    seed: int,
    size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Draws captioned pictures into a new folder: `00000.png`, ... and `captions.jsonl`, whole or not at all.

    Args:
        folder: Created; an older set in it (`captions.jsonl` and numbered pictures, nothing else) is replaced.
        count: Number of pictures; picture i depends only on `seed` and i.
        seed: Any integer.
        size: Side of a picture, pixels.
        progress: Called with (pictures done, count).

    Returns:
        The number of pictures of each split.

    Raises:
        BadInput: If the folder contains anything else.
    """
    folder = folder.absolute()
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    others = sorted(name for name in there - {CAPTIONS_FILE} if not _NAME.fullmatch(name))
    if there and (others or CAPTIONS_FILE not in there):
        what = f"such as {others[0]}" if others else f"and no {CAPTIONS_FILE}"
        raise BadInput(f"{folder} holds other files than a set of drawn pictures, {what}. Give another --out.")
    splits = dict.fromkeys(SPLITS, 0)
    # thousands of small files, drawn anew in seconds: nothing is lost that would be worth a flush of each
    with (
        whole_folder(folder, flushed=False) as made,
        (made / CAPTIONS_FILE).open("w", encoding="utf-8") as captions,
    ):
        for index in range(count):
            # Each picture has its own generator, so that picture i stays the same if the number of pictures changes.
            random_numbers = random.Random(f"{seed}/{index}")
            scene = draw_scene(random_numbers)
            name = f"{index:05d}.png"
            draw_picture(scene, random_numbers, size=size).save(made / name, compress_level=1)
            row = {"file": name, "caption": caption_of(scene), "split": scene.split}
            captions.write(json.dumps(row) + "\n")
            splits[scene.split] += 1
            progress(index + 1, count)
    return splits
