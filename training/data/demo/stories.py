"""Short stories made by a grammar, which the second demo's language model learns to continue.

A story has one of six plots. Its first two sentences, the opening, fix the facts. The model continues the opening, and
`training.generate.story_judge` judges whether the continuation follows from it:

    Anna has a red ball. She goes to the garden with Tom.
        It rains, so they open an umbrella. Anna gives the red ball to Tom. Now Tom has the red ball.
    Leo is in the barn with a blue kite. Ruby is in the park with a green drum.
        Kate wants the blue kite, so she goes to the barn. Leo gives her the blue kite. Now Kate has the blue kite.

All words and sentences stand in the tables below, from which the judge makes its patterns.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from training.data.demo.captions import SPLITS, Split
from training.errors import BadInput
from training.storage.whole import whole_folder

STORIES_FILE = "stories.jsonl"

GIRLS = ("Anna", "Mia", "Sara", "Lily", "Emma", "Nora", "Ella", "Ruby", "Kate", "Lucy", "Zoe", "Rosa")
BOYS = ("Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Paul", "Finn", "Hugo", "Adam", "Noah", "Oscar")
NAMES = (*GIRLS, *BOYS)
PAINTS = ("red", "blue", "green", "yellow", "white", "black", "pink", "brown")
"""Colours of things; each begins with a consonant, so that "a" fits before it."""
THINGS = (
    *("ball", "hat", "kite", "book", "cup", "car", "doll", "drum"),
    *("boat", "bell", "ring", "flag", "pen", "key", "coin", "fork"),
)
OUTDOORS = ("garden", "park", "forest", "field", "yard", "market")
INDOORS = ("kitchen", "school", "barn", "library", "castle", "shop")
HIDING_PLACES = ("box", "bag", "basket", "chest", "drawer", "bucket", "cupboard", "cart")
MOVES = ("goes", "walks", "runs")
WEATHER = {
    "It rains": "open an umbrella",
    "It snows": "make a snowman",
    "It is hot": "drink cold water",
    "It is dark": "light a fire",
    "It is windy": "hold hands",
}
"""Weather -> actions of people outdoors."""
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hungry": ("eats", ("bread", "soup", "cake")),
    "thirsty": ("drinks", ("milk", "juice", "tea")),
    "cold": ("wears", ("gloves", "boots", "socks")),
}
"""Need of a person -> verb for the use of the help, and the things that help."""

NEW_COMBINATIONS = frozenset((PAINTS[at % len(PAINTS)], thing) for at, thing in enumerate(THINGS))
"""(colour, thing) pairs that never occur in training: each thing in one of its eight colours."""
HELD_OUT_ONE_IN = 8
"""One in this many of all other openings is never trained on, chosen by its checksum."""

SENTENCES: dict[str, str] = {
    "has": "{name} has a {colour} {thing}.",
    "goes": "{She} {moves} to the {place} with {friend}.",
    "weather": "{weather}, so they {effect}.",
    "gives": "{name} gives the {colour} {thing} to {friend}.",
    "loses": "{She} loses it in the {place}.",
    "finds": "{name} finds the {colour} {thing} in the {place}.",
    "gives back": "{She} gives it to {friend}.",
    "keeps": "{She} keeps it.",
    "meet": "They meet in the {place}.",
    "swap": "They swap the {thing} and the {other_thing}.",
    "hides": "{She} puts it in the {hiding_place}.",
    "looks": "{name} looks in the {hiding_place}.",
    "takes": "{She} takes the {colour} {thing}.",
    "is with": "{name} is in the {place} with a {colour} {thing}.",
    "wants": "{name} wants the {colour} {thing}, so {she} goes to the {place}.",
    "hands": "{name} gives {her} the {colour} {thing}.",
    "needs": "{name} is {need}.",
    "helps": "{name} gives {her} some {help}.",
    "uses": "{name} {uses} the {help}.",
    "now has": "Now {name} has the {colour} {thing}.",
    "now both have": "Now {name} has the {colour} {thing} and {friend} has the {other_colour} {other_thing}.",
    "now well": "Now {name} is no longer {need}.",
}
"""Kind of sentence -> the sentence, with gaps that `WORDS` fills."""
ENDINGS = ("now has", "now both have", "now well")
"""Kinds of sentences that end a story."""
OPENING_SENTENCES = 2
"""Sentences of a prompt."""

WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("name", "friend"), NAMES),
    **dict.fromkeys(("colour", "other_colour"), PAINTS),
    **dict.fromkeys(("thing", "other_thing"), THINGS),
    "place": (*OUTDOORS, *INDOORS),
    "hiding_place": HIDING_PLACES,
    "moves": MOVES,
    "weather": tuple(WEATHER),
    "effect": tuple(WEATHER.values()),
    "need": tuple(NEEDS),
    "uses": tuple(verb for verb, _ in NEEDS.values()),
    "help": tuple(one for _, helps in NEEDS.values() for one in helps),
    "She": ("She", "He"),
    "she": ("she", "he"),
    "her": ("her", "him"),
}
"""Gap of a sentence -> the words that may fill it."""

Kind = Literal["seen", "unseen", "never combined"]
SPLIT_OF_KIND: dict[Kind, Split] = dict(zip(get_args(Kind), SPLITS, strict=True))
"""Kind of prompts -> the split whose stories begin with such prompts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A story, sentence by sentence."""

    sentences: tuple[str, ...]
    """Three to six sentences."""
    things: frozenset[tuple[str, str]]
    """(colour, thing) of all things in it."""

    @property
    def text(self) -> str:
        """The whole story."""
        return " ".join(self.sentences)

    @property
    def opening(self) -> str:
        """The sentences that fix the facts."""
        return " ".join(self.sentences[:OPENING_SENTENCES])

    @property
    def split(self) -> Split:
        """Train, held-out or new-pairs; it depends only on the opening, so an opening is in one split only."""
        if self.things & NEW_COMBINATIONS:
            return SPLIT_OF_KIND["never combined"]
        held_out = zlib.crc32(self.opening.encode()) % HELD_OUT_ONE_IN == 0
        return SPLIT_OF_KIND["unseen" if held_out else "seen"]


def pronouns(name: str) -> dict[str, str]:
    """The pronouns of a person, by gap.

    >>> pronouns("Tom")
    {'She': 'He', 'she': 'he', 'her': 'him'}
    """
    return {gap: WORDS[gap][name in BOYS] for gap in ("She", "she", "her")}


def make_story(random_numbers: random.Random) -> Story:
    """A story of a plot drawn at random."""
    return random_numbers.choice(PLOTS)(_Teller(random_numbers))


def story_at(seed: int, index: int) -> Story:
    """Story number `index` of a seed's stories, which depends on nothing else."""
    return make_story(random.Random(f"{seed}/{index}"))


class _Teller:
    """Chooses the people, places and things of a story, and makes its sentences."""

    def __init__(self, random_numbers: random.Random):
        self.random = random_numbers
        self.hero, self.friend, self.third = random_numbers.sample(NAMES, 3)
        self.things = list(
            zip(random_numbers.sample(PAINTS, 2), random_numbers.sample(THINGS, 2), strict=True)
        )  # (colour, thing)
        self.place, self.other_place = random_numbers.sample(WORDS["place"], 2)
        self.sentences: list[str] = []

    def say(self, kind: str, **words: str) -> None:
        self.sentences.append(SENTENCES[kind].format(**words))

    def thing(self, at: int = 0) -> dict[str, str]:
        """The gaps that name a thing."""
        return dict(zip(("colour", "thing"), self.things[at], strict=True))

    def told(self, *, things: int) -> Story:
        return Story(sentences=tuple(self.sentences), things=frozenset(self.things[:things]))


def _gift(teller: _Teller) -> Story:
    """Makes a story in which a person takes a friend along and gives the friend a thing."""
    hero, friend = teller.hero, teller.friend
    teller.say("has", name=hero, **teller.thing())
    moves = teller.random.choice(MOVES)
    teller.say("goes", moves=moves, place=teller.place, friend=friend, **pronouns(hero))
    if teller.place in OUTDOORS:
        weather = teller.random.choice(list(WEATHER))
        teller.say("weather", weather=weather, effect=WEATHER[weather])
    teller.say("gives", name=hero, friend=friend, **teller.thing())
    teller.say("now has", name=friend, **teller.thing())
    return teller.told(things=1)


def _loss(teller: _Teller) -> Story:
    """Makes a story in which one person loses a thing and another finds it, and keeps or returns it."""
    hero, finder = teller.hero, teller.friend
    teller.say("has", name=hero, **teller.thing())
    teller.say("loses", place=teller.place, **pronouns(hero))
    teller.say("finds", name=finder, place=teller.place, **teller.thing())
    keeps = teller.random.random() < 0.5
    teller.say("keeps" if keeps else "gives back", friend=hero, **pronouns(finder))
    teller.say("now has", name=finder if keeps else hero, **teller.thing())
    return teller.told(things=1)


def _exchange(teller: _Teller) -> Story:
    """Makes a story in which two people swap their things."""
    (colour, thing), (_, other_thing) = teller.things
    teller.say("has", name=teller.hero, **teller.thing(0))
    teller.say("has", name=teller.friend, **teller.thing(1))
    teller.say("meet", place=teller.place)
    teller.say("swap", thing=thing, other_thing=other_thing)
    others = {"other_colour": colour, "other_thing": thing}
    teller.say("now both have", name=teller.hero, friend=teller.friend, **teller.thing(1), **others)
    return teller.told(things=2)


def _hiding(teller: _Teller) -> Story:
    """Makes a story in which one person hides a thing and another takes it."""
    hero, finder = teller.hero, teller.friend
    hiding_place = teller.random.choice(HIDING_PLACES)
    teller.say("has", name=hero, **teller.thing())
    teller.say("hides", hiding_place=hiding_place, **pronouns(hero))
    teller.say("looks", name=finder, hiding_place=hiding_place)
    teller.say("takes", **teller.thing(), **pronouns(finder))
    teller.say("now has", name=finder, **teller.thing())
    return teller.told(things=1)


def _wish(teller: _Teller) -> Story:
    """Makes a story in which a person wants a thing, goes to its place and gets it from its owner."""
    owners, places = (teller.hero, teller.friend), (teller.place, teller.other_place)
    for at, (owner, place) in enumerate(zip(owners, places, strict=True)):
        teller.say("is with", name=owner, place=place, **teller.thing(at))
    wanted = teller.random.randrange(2)
    seeker = teller.third
    teller.say("wants", name=seeker, place=places[wanted], **teller.thing(wanted), **pronouns(seeker))
    teller.say("hands", name=owners[wanted], **teller.thing(wanted), **pronouns(seeker))
    teller.say("now has", name=seeker, **teller.thing(wanted))
    return teller.told(things=2)


def _help(teller: _Teller) -> Story:
    """Makes a story in which a person has a need and a friend helps."""
    hero, friend = teller.hero, teller.friend
    need = teller.random.choice(list(NEEDS))
    verb, helps = NEEDS[need]
    helping = teller.random.choice(helps)
    moves = teller.random.choice(MOVES)
    teller.say("needs", name=hero, need=need)
    teller.say("goes", moves=moves, place=teller.place, friend=friend, **pronouns(hero))
    teller.say("helps", name=friend, help=helping, **pronouns(hero))
    teller.say("uses", name=hero, uses=verb, help=helping)
    teller.say("now well", name=hero, need=need)
    return teller.told(things=0)


PLOTS: tuple[Callable[[_Teller], Story], ...] = (_gift, _loss, _exchange, _hiding, _wish, _help)


def prompts(kind: Kind, count: int, seed: int) -> list[str]:
    """Openings of stories, all different, for a model to continue.

    Args:
        kind: "seen": openings of the stories that `write_stories` makes with this seed. "unseen": openings that are in
            no training set, whatever its seed. "never combined":
            openings with a thing in a colour that it never has in training.
        count: Number of prompts.
        seed: Any integer.

    Raises:
        BadInput: If `kind` is none of these.
    """
    if kind not in SPLIT_OF_KIND:
        raise BadInput(f"There are no prompts of kind {kind!r}. Give one of: {', '.join(SPLIT_OF_KIND)}.")
    found: dict[str, None] = {}
    for story in _stories(seed):
        if len(found) >= count:
            break
        if story.split == SPLIT_OF_KIND[kind]:
            found[story.opening] = None
    return list(found)


def _stories(seed: int) -> Iterator[Story]:
    """All stories of a seed, without end."""
    index = 0
    while True:
        yield story_at(seed, index)
        index += 1


def write_stories(
    folder: Path,
    *,
    count: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, int]:
    """Writes stories into a new folder, whole or not at all: `stories.jsonl`, which `prepare --text` reads.

    Args:
        folder: Created; older stories in it (`stories.jsonl`, nothing else) are replaced.
        count: Number of stories; story i depends only on `seed` and i.
        seed: Any integer.
        progress: Called with (stories done, count).

    Returns:
        The number of stories of each split.

    Raises:
        BadInput: If the folder contains anything else.
    """
    folder = folder.absolute()
    others = sorted(path.name for path in folder.iterdir() if path.name != STORIES_FILE) if folder.exists() else []
    if others:
        raise BadInput(f"{folder} holds other files than a set of stories, such as {others[0]}. Give another --out.")
    splits = dict.fromkeys(SPLITS, 0)
    with whole_folder(folder) as made, (made / STORIES_FILE).open("w", encoding="utf-8") as lines:
        for index in range(count):
            story = story_at(seed, index)
            lines.write(json.dumps({"text": story.text, "split": story.split}) + "\n")
            splits[story.split] += 1
            progress(index + 1, count)
    return splits
