"""The grammar of the demo's captions: which scenes exist, their captions, and how a caption is parsed.

A `Scene` holds everything that a caption says, so that one description serves the drawing (`draw.py`), the judge
(`training.generate.judge`) and the choice of what is held out of training. `caption_of` and `parse_caption` are each
other's inverse.

    a red circle                                    a small red circle on a black background
    a red circle at the top left                    three red circles
    a red circle above a blue square                a red circle to the left of a blue square on a grey background
"""

from __future__ import annotations

import random
import re
import zlib
from dataclasses import dataclass
from typing import Literal, get_args

from training.errors import BadInput

Split = Literal["train", "held-out", "new-pairs"]
SPLITS: tuple[Split, ...] = get_args(Split)
"""Splits: captions to train on; held-out captions of known things;
things whose pair of colour and shape never occurs in training."""

SHAPES: dict[str, str] = {
    "circle": "circles",
    "square": "squares",
    "triangle": "triangles",
    "star": "stars",
    "diamond": "diamonds",
    "cross": "crosses",
    "ring": "rings",
    "heart": "hearts",
}
"""Shape -> its plural."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (217, 37, 42),
    "orange": (244, 126, 28),
    "yellow": (250, 208, 44),
    "green": (46, 158, 72),
    "cyan": (56, 200, 214),
    "blue": (38, 78, 206),
    "purple": (124, 48, 168),
    "pink": (246, 140, 190),
}
"""Colour of a thing -> sRGB."""

BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 247),
    "grey": (142, 146, 150),
    "black": (24, 24, 28),
}
"""Colour of the background -> sRGB. The background is white if the caption does not name a colour."""
SAID_BACKGROUNDS = ("white", "grey", "grey", "black", "black")
"""Backgrounds, repeated by how often captions name them: white is also the default."""

SIZES = ("small", "large")
"""Sizes that a caption may name; a thing without one is of medium size."""

PLACES: dict[str, tuple[int, int]] = {
    "in the centre": (0, 0),
    "at the top": (0, -1),
    "at the bottom": (0, 1),
    "on the left": (-1, 0),
    "on the right": (1, 0),
    "at the top left": (-1, -1),
    "at the top right": (1, -1),
    "at the bottom left": (-1, 1),
    "at the bottom right": (1, 1),
}
"""Place -> direction from the middle of the picture: x to the right, y downwards."""

RELATIONS: dict[str, tuple[int, int]] = {
    "above": (0, -1),
    "below": (0, 1),
    "to the left of": (-1, 0),
    "to the right of": (1, 0),
}
"""Relation -> direction from the second thing to the first."""

COUNTS: dict[str, int] = {"two": 2, "three": 3}
"""Number words for more than one thing."""

NEW_PAIRS: frozenset[tuple[str, str]] = frozenset(
    {
        ("cyan", "circle"),
        ("purple", "square"),
        ("pink", "triangle"),
        ("orange", "star"),
        ("red", "diamond"),
        ("yellow", "cross"),
        ("green", "ring"),
        ("blue", "heart"),
    }
)
"""(colour, shape) pairs that never occur in training. Each colour and each shape is in one of them, and in seven pairs
that do occur."""
HELD_OUT_ONE_IN = 10
"""One in this many of the captions that say more than colour and shape is held out, chosen by its checksum."""

KIND_SHARES: dict[str, float] = {
    "plain": 0.16,
    "sized": 0.14,
    "placed": 0.24,
    "on background": 0.12,
    "sized on background": 0.08,
    "counted": 0.10,
    "related": 0.16,
}
"""Kind of caption -> its share. Captions of one thing are the most frequent, so that a small model learns shapes and
colours first. There are only 64 plain captions, so more of them would show the model nothing new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """One drawn thing."""

    shape: str
    colour: str
    size: str | None = None
    """One of `SIZES`, or None for medium."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Everything that a caption says.

    Raises:
        ValueError: If the parts cannot be combined, such as a place and two things.
    """

    things: tuple[Thing, ...]
    """One thing, or the two of a relation."""
    count: int = 1
    """Number of copies of a single thing."""
    relation: str | None = None
    """Key of `RELATIONS`: where the first thing is relative to the second."""
    place: str | None = None
    """Key of `PLACES`."""
    background: str | None = None
    """Key of `BACKGROUNDS`; None is white, which the caption does not name."""

    def __post_init__(self) -> None:
        related = self.relation is not None
        if len(self.things) != (2 if related else 1):
            raise ValueError(f"a scene has one thing, or two with a relation; got {len(self.things)}")
        if not 1 <= self.count <= 3 or (self.count > 1 and (related or self.place or self.things[0].size)):
            raise ValueError("two or three things are of one kind, with neither size, place nor relation")
        if related and (self.place or any(thing.size for thing in self.things)):
            raise ValueError("related things have neither size nor place")

    @property
    def total(self) -> int:
        """Things in the picture."""
        return self.count if self.relation is None else 2

    @property
    def split(self) -> Split:
        """One of `SPLITS`; it depends only on the caption."""
        if any((thing.colour, thing.shape) in NEW_PAIRS for thing in self.things):
            return "new-pairs"
        caption = caption_of(self)
        plain = caption == caption_of(Scene(things=self.things[:1]))
        # A checksum and not `hash`, which Python salts in each process: peers would disagree about what is held out.
        return "held-out" if not plain and zlib.crc32(caption.encode()) % HELD_OUT_ONE_IN == 0 else "train"


def caption_of(scene: Scene) -> str:
    """Describes a scene by its caption."""
    if scene.count > 1:
        number = next(word for word, count in COUNTS.items() if count == scene.count)
        words = f"{number} {scene.things[0].colour} {SHAPES[scene.things[0].shape]}"
    else:
        words = f" {scene.relation} ".join(_words_of(thing) for thing in scene.things)
    if scene.place:
        words += f" {scene.place}"
    if scene.background:
        words += f" on a {scene.background} background"
    return words


def _words_of(thing: Thing) -> str:
    words = [*([thing.size] if thing.size else []), thing.colour, thing.shape]
    return f"{'an' if words[0][0] in 'aeiou' else 'a'} {' '.join(words)}"


def _either(words: object) -> str:
    # Longest first: the pattern would otherwise match "at the top" and have to go back for "at the top left".
    return "|".join(sorted(words, key=len, reverse=True))


_THING = rf"an? (?:({_either(SIZES)}) )?({_either(COLOURS)}) ({_either(SHAPES)})"
_CAPTION = re.compile(
    rf"(?:{_THING}(?: ({_either(RELATIONS)}) {_THING}| ({_either(PLACES)}))?"
    rf"|({_either(COUNTS)}) ({_either(COLOURS)}) ({_either(SHAPES.values())}))"
    rf"(?: on a ({_either(BACKGROUNDS)}) background)?"
)


def parse_caption(caption: str) -> Scene:
    """Parses a caption of the grammar; capitals, extra spaces and a full stop do not matter.

    Raises:
        BadInput: If the grammar has no such caption.
    """
    match = _CAPTION.fullmatch(" ".join(caption.lower().rstrip(" .").split()))
    try:
        if match is None:
            raise ValueError("it is not a sentence of the demo's grammar")
        size, colour, shape, relation, size2, colour2, shape2, place, number, colours, shapes, background = (
            match.groups()
        )
        if number:
            only = next(shape for shape, plural in SHAPES.items() if plural == shapes)
            return Scene(things=(Thing(shape=only, colour=colours),), count=COUNTS[number], background=background)
        things = [Thing(shape=shape, colour=colour, size=size)]
        if relation:
            things.append(Thing(shape=shape2, colour=colour2, size=size2))
        return Scene(things=tuple(things), relation=relation, place=place, background=background)
    except ValueError as error:
        raise BadInput(
            f"The caption {caption!r:.120} cannot be drawn or judged: {error}. It should read like 'a red circle', "
            "'a small red circle at the top left', 'two red circles' or 'a red circle above a blue square on a grey "
            f"background', with the shapes {', '.join(SHAPES)} and the colours {', '.join(COLOURS)}.",
            cure="Write captions in the demo's own grammar, as the message shows.",
        ) from None


def draw_scene(random_numbers: random.Random) -> Scene:
    """Draws a random scene: its kind by `KIND_SHARES`, everything else uniformly; related things differ in colour."""
    choose = random_numbers.choice
    kind = random_numbers.choices(list(KIND_SHARES), weights=list(KIND_SHARES.values()))[0]
    # The order of these draws is part of the data set: in another order, a seed gives other pictures.
    shape, colour = choose(list(SHAPES)), choose(list(COLOURS))
    size = choose(SIZES) if kind.startswith("sized") else None
    things = [Thing(shape=shape, colour=colour, size=size)]
    if kind == "related":
        things.append(Thing(shape=choose(list(SHAPES)), colour=choose([other for other in COLOURS if other != colour])))
    return Scene(
        things=tuple(things),
        count=choose(list(COUNTS.values())) if kind == "counted" else 1,
        relation=choose(list(RELATIONS)) if kind == "related" else None,
        place=choose(list(PLACES)) if kind == "placed" else None,
        background=choose(SAID_BACKGROUNDS) if "background" in kind else None,
    )
