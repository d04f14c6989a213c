"""Judges continued stories by rules: each sentence must be of the grammar,
and must follow from the sentences before it.

The judge reads a story sentence by sentence, as `training.data.demo.stories` could have made it, and keeps account of
who has what, who is where and who is with whom. The first sentence that contradicts the account gives the reason. It
does not know the plots: any order of sentences is right in which each one fits the facts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from training.data.demo.stories import BOYS, ENDINGS, NEEDS, OPENING_SENTENCES, OUTDOORS, SENTENCES, WEATHER, WORDS
from training.errors import BadInput
from training.generate.evaluate import wilson_interval

MOST_SENTENCES = 6
"""Most sentences of a story; no plot has more."""
OPENING_KINDS = frozenset({"has", "goes", "loses", "hides", "is with", "needs"})
"""Kinds of sentences that state a fact which nothing before explains; they stand in the opening only."""
EXAMPLE = "Anna has a red ball. She goes to the garden with Tom."


@dataclass(frozen=True, kw_only=True, slots=True)
class StoryVerdict:
    """Verdict on a story."""

    grammatical: bool
    """True if the grammar can make every sentence."""
    consistent: bool
    """True if the story is grammatical and no sentence contradicts the sentences before it."""
    ends: bool
    """True if the last sentence is an ending, and nothing follows."""
    reason: str = ""
    """The first fault; empty if the story is good."""

    @property
    def good(self) -> bool:
        """True if the story has no fault."""
        return self.grammatical and self.consistent and self.ends


@dataclass(frozen=True, kw_only=True, slots=True)
class StoryShare:
    """Share of good continuations of one kind of prompts."""

    count: int
    """Continuations judged."""
    share: float
    """Share that is good, between 0 and 1."""
    interval: tuple[float, float]
    """95 % interval of the share."""
    reasons: dict[str, int]
    """Fault -> continuations that have it, the most frequent first."""
    verdicts: tuple[StoryVerdict, ...]
    """Verdict on the continuation of each prompt, in order."""


class _Contradiction(Exception):
    """Error for a sentence that does not fit the sentences before it; the text says why."""


def judge_story(prompt: str, continuation: str) -> StoryVerdict:
    """Judges a prompt and its continuation as one story.

    Args:
        prompt: Beginning of the story in whole sentences of the grammar; may be empty.
        continuation: The rest, without the token that ends a text.

    Raises:
        BadInput: If the grammar cannot make the prompt.
    """
    beginning = _read(prompt)
    if not beginning.grammatical or not beginning.consistent:
        raise BadInput(
            f"The prompt {prompt!r:.160} cannot be judged: {beginning.reason}. Give one such as {EXAMPLE!r}."
        )
    return _read(f"{prompt.strip()} {continuation.strip()}")


def evaluate_stories(
    prompts_by_kind: Mapping[str, Sequence[str]], continue_: Callable[[Sequence[str]], Sequence[str]]
) -> dict[str, StoryShare]:
    """Lets a model continue prompts, and judges the continuations.

    Args:
        prompts_by_kind: Kind -> prompts, as `training.data.demo.stories.prompts` makes them.
        continue_: Returns the continuations of prompts, each up to the end of its text.

    Raises:
        BadInput: If a kind has no prompt, a prompt is not of the grammar, or `continue_` gives another number of texts.
    """
    return {kind: _share(kind, prompts, continue_(prompts)) for kind, prompts in prompts_by_kind.items()}


def _share(kind: str, prompts: Sequence[str], continuations: Sequence[str]) -> StoryShare:
    if not prompts or len(continuations) != len(prompts):
        raise BadInput(
            f"{len(prompts)} prompts of the kind {kind!r} have {len(continuations)} continuations. Give at least one "
            "prompt, and one continuation for each."
        )
    verdicts = tuple(judge_story(prompt, more) for prompt, more in zip(prompts, continuations, strict=True))
    good = sum(verdict.good for verdict in verdicts)
    reasons = Counter(verdict.reason for verdict in verdicts if not verdict.good)
    return StoryShare(
        count=len(verdicts),
        share=good / len(verdicts),
        interval=wilson_interval(good, len(verdicts)),
        reasons=dict(reasons.most_common()),
        verdicts=verdicts,
    )


def _pattern(sentence: str) -> re.Pattern[str]:
    """Returns a pattern that matches a sentence of this kind, with a group for each gap."""
    parts = re.split(r"\{(\w+)\}", sentence)
    gaps = {gap: f"(?P<{gap}>{'|'.join(map(re.escape, WORDS[gap]))})" for gap in parts[1::2]}
    return re.compile("".join(gaps[part] if at % 2 else re.escape(part) for at, part in enumerate(parts)))


_PATTERNS = {kind: _pattern(sentence) for kind, sentence in SENTENCES.items()}


def parse_sentence(sentence: str) -> tuple[str, dict[str, str]] | None:
    """Finds the kind of a sentence, and the words in its gaps; None if the grammar has no such sentence.

    >>> parse_sentence("Anna has a red ball.")
    ('has', {'name': 'Anna', 'colour': 'red', 'thing': 'ball'})
    """
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(sentence):
            return kind, match.groupdict()
    return None


def _read(text: str) -> StoryVerdict:
    """Judges a text, sentence by sentence from its beginning."""
    sentences = [sentence.strip() for sentence in re.findall(r"[^.]*\.|[^.]+$", text.strip())]
    if len(sentences) > MOST_SENTENCES:
        return StoryVerdict(grammatical=False, consistent=False, ends=False, reason="the story is too long")
    parsed = []
    for sentence in sentences:
        if (found := parse_sentence(sentence)) is None:
            reason = "no such sentence" if sentence.endswith(".") else "the last sentence is unfinished"
            return StoryVerdict(grammatical=False, consistent=False, ends=False, reason=reason)
        parsed.append(found)
    account = _Account()
    ends = bool(parsed) and parsed[-1][0] in ENDINGS
    for kind, words in parsed:
        try:
            account.follow(kind, words)
        except _Contradiction as contradiction:
            return StoryVerdict(grammatical=True, consistent=False, ends=ends, reason=str(contradiction))
    return StoryVerdict(grammatical=True, consistent=True, ends=ends, reason="" if ends else "the story has no end")


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Contradiction(otherwise)


@dataclass(kw_only=True)
class _Account:
    """The facts of a story as far as it was read. A method for each kind of sentence checks and updates them."""

    told: int = 0
    """Sentences read."""
    ended: bool = False
    subject: str = ""
    """The person whom "she" or "he" means."""
    it: str = ""
    """The thing that "it" means."""
    colours: dict[str, str] = field(default_factory=dict)
    """Thing -> its colour."""
    owners: dict[str, str] = field(default_factory=dict)
    """Thing -> its owner; a thing that is lost or hidden is not in it."""
    former: dict[str, str] = field(default_factory=dict)
    """Thing -> its previous owner."""
    lies: dict[str, str] = field(default_factory=dict)
    """Lost or hidden thing -> its place."""
    places: dict[str, str] = field(default_factory=dict)
    """Person -> place."""
    company: frozenset[str] = frozenset()
    """People who are together, to whom "they" refers."""
    weather: str = ""
    changed: set[str] = field(default_factory=set)
    """Things that were given, found, taken or kept: the end must tell who has them."""
    found: str = ""
    """Thing that was found, before the story tells whether the finder keeps it."""
    searched: str = ""
    """Place that the subject searches."""
    wanted: str = ""
    needs: dict[str, str] = field(default_factory=dict)
    """Person -> need."""
    helps: dict[str, str] = field(default_factory=dict)
    """Person -> help that was given against the need."""
    well: set[str] = field(default_factory=set)
    """People whose need is over."""

    def follow(self, kind: str, words: dict[str, str]) -> None:
        """Updates the account by the next sentence; raises `_Contradiction` if the sentence does not fit."""
        opening = self.told < OPENING_SENTENCES
        _must(not self.ended, "the story goes on after its end")
        _must(opening or kind not in OPENING_KINDS, "a new beginning within the story")
        _must(not opening or kind in OPENING_KINDS, "the story begins without its facts")
        if "She" in words:
            _must(bool(self.subject), "a pronoun before any person")
            _must(_is_he(self.subject) == (words["She"] == "He"), "a pronoun does not fit its person")
        getattr(self, f"_{kind.replace(' ', '_')}")(**{gap: word for gap, word in words.items() if gap != "She"})
        self.told += 1

    def _own(self, name: str, colour: str, thing: str) -> None:
        _must(thing not in self.colours, "a thing is introduced twice")
        _must(name not in self.owners.values(), "a person is introduced twice")
        self.colours[thing], self.owners[thing], self.subject, self.it = colour, name, name, thing

    def _is_known(self, colour: str, thing: str) -> None:
        _must(thing in self.colours, "a thing that is not in the story")
        _must(self.colours[thing] == colour, "a thing has another colour")

    def _move(self, thing: str, to: str) -> None:
        if thing in self.owners:
            self.former[thing] = self.owners[thing]
        self.owners[thing] = to
        self.lies.pop(thing, None)

    def _has(self, name: str, colour: str, thing: str) -> None:
        _must(not self.places and not self.needs, "the beginnings of two stories are mixed")
        self._own(name, colour, thing)

    def _is_with(self, name: str, place: str, colour: str, thing: str) -> None:
        _must(len(self.places) == len(self.colours) and not self.needs, "the beginnings of two stories are mixed")
        self._own(name, colour, thing)
        self.places[name] = place

    def _needs(self, name: str, need: str) -> None:
        _must(not self.told, "the beginnings of two stories are mixed")
        self.needs[name], self.subject = need, name

    def _goes(self, moves: str, place: str, friend: str) -> None:
        _must(friend != self.subject, "somebody goes with herself or himself")
        _must(self.subject not in self.places, "somebody is elsewhere already")
        self.company = frozenset({self.subject, friend})
        self.places |= dict.fromkeys(self.company, place)

    def _loses(self, place: str) -> None:
        self._lay(place)

    def _hides(self, hiding_place: str) -> None:
        self._lay(hiding_place)

    def _lay(self, where: str) -> None:
        _must(bool(self.it) and self.owners.get(self.it) == self.subject, "somebody loses or hides what is not there")
        _must(not self.places, "the beginnings of two stories are mixed")
        self.former[self.it], self.lies[self.it] = self.owners.pop(self.it), where

    def _weather(self, weather: str, effect: str) -> None:
        _must(bool(self.company), '"they" means nobody')
        _must(WEATHER[weather] == effect, "an effect that does not follow from the weather")
        _must(all(self.places[one] in OUTDOORS for one in self.company), "weather within a house")
        _must(not self.weather, "weather twice")
        _must(not self.needs and not self.changed, "weather at the wrong time")
        self.weather = weather

    def _gives(self, name: str, colour: str, thing: str, friend: str) -> None:
        self._is_known(colour, thing)
        _must(self.owners.get(thing) == name, "somebody gives what another one has")
        _must(friend in self.company and name in self.company, "somebody gives to one who is not there")
        _must(friend != name, "somebody gives to herself or himself")
        _must(not self.changed, "somebody gives twice")
        self._move(thing, friend)
        self.subject, self.it = name, thing
        self.changed.add(thing)

    def _finds(self, name: str, colour: str, thing: str, place: str) -> None:
        self._is_known(colour, thing)
        _must(self.lies.get(thing) == place and place in WORDS["place"], "a thing is found where it is not")
        _must(self.former[thing] != name, "the one who lost or hid a thing also finds it")
        self._move(thing, name)
        self.subject, self.it, self.found = name, thing, thing

    def _gives_back(self, friend: str) -> None:
        self._decide()
        _must(self.former[self.it] == friend, "a thing goes back to one who did not have it")
        self._move(self.it, friend)

    def _keeps(self) -> None:
        self._decide()

    def _decide(self) -> None:
        """Notes that the thing that was found is kept or given back."""
        _must(bool(self.found) and self.found == self.it, "nothing was found")
        _must(not self.changed, "what was found is kept or given back twice")
        self.changed.add(self.it)

    def _meet(self, place: str) -> None:
        owners = frozenset(self.owners.values())
        _must(len(owners) == 2 and not self.company and not self.places, '"they" does not mean two who can meet')
        self.company = owners
        self.places |= dict.fromkeys(owners, place)

    def _swap(self, thing: str, other_thing: str) -> None:
        _must(self.owners.keys() == {thing, other_thing}, "a swap of things that are not there")
        _must(frozenset(self.owners.values()) == self.company, "a swap by those who are not together")
        _must(not self.changed, "a swap twice")
        mine, theirs = self.owners[thing], self.owners[other_thing]
        self._move(thing, theirs)
        self._move(other_thing, mine)
        self.changed |= {thing, other_thing}

    def _looks(self, name: str, hiding_place: str) -> None:
        _must(hiding_place in self.lies.values(), "somebody looks where nothing is hidden")
        _must(name not in self.former.values(), "the one who lost or hid a thing also finds it")
        _must(not self.searched, "somebody looks twice")
        self.subject, self.searched = name, hiding_place

    def _takes(self, colour: str, thing: str) -> None:
        self._is_known(colour, thing)
        _must(bool(self.searched) and self.lies.get(thing) == self.searched, "a thing is taken from where it is not")
        self._move(thing, self.subject)
        self.it = thing
        self.changed.add(thing)

    def _wants(self, name: str, colour: str, thing: str, she: str, place: str) -> None:
        self._is_known(colour, thing)
        _must(_is_he(name) == (she == "he"), "a pronoun does not fit its person")
        _must(thing in self.owners and name not in self.places, "somebody wants what cannot be had")
        _must(self.places.get(self.owners[thing]) == place, "somebody looks for a thing where it is not")
        _must(not self.wanted, "somebody wants twice")
        self.places[name], self.subject, self.it, self.wanted = place, name, thing, thing

    def _hands(self, name: str, her: str, colour: str, thing: str) -> None:
        self._is_known(colour, thing)
        _must(self.wanted == thing, "a thing that nobody wants is given")
        _must(self.owners.get(thing) == name, "somebody gives what another one has")
        _must(_is_he(self.subject) == (her == "him"), "a pronoun does not fit its person")
        _must(not self.changed, "somebody gives twice")
        self._move(thing, self.subject)
        self.changed.add(thing)

    def _helps(self, name: str, her: str, help: str) -> None:
        _must(self.subject in self.needs and not self.helps, "help that nobody needs")
        _must(name in self.company and name != self.subject, "somebody helps who is not there")
        _must(_is_he(self.subject) == (her == "him"), "a pronoun does not fit its person")
        _must(help in NEEDS[self.needs[self.subject]][1], "help that does not help against the need")
        self.helps[self.subject] = help

    def _uses(self, name: str, uses: str, help: str) -> None:
        _must(self.helps.get(name) == help, "somebody uses what was not given")
        _must(NEEDS[self.needs[name]][0] == uses, "a thing is used in a wrong way")
        _must(name not in self.well, "help is used twice")
        self.well.add(name)

    def _now_has(self, name: str, colour: str, thing: str) -> None:
        self._end({thing})
        self._is_known(colour, thing)
        _must(self.owners.get(thing) == name, "the end names a wrong owner")

    def _now_both_have(self, name: str, friend: str, **things: str) -> None:
        self._end({things["thing"], things["other_thing"]})
        for one, colour, thing in ((name, "colour", "thing"), (friend, "other_colour", "other_thing")):
            self._is_known(things[colour], things[thing])
            _must(self.owners.get(things[thing]) == one, "the end names a wrong owner")

    def _end(self, things: set[str]) -> None:
        _must(bool(self.changed), "the end comes before anything has happened")
        _must(things == self.changed, "the end is about other things")
        self.ended = True

    def _now_well(self, name: str, need: str) -> None:
        _must(name in self.well, "the end says that a need is over which is not")
        _must(self.needs[name] == need, "the end names another need")
        self.ended = True


def _is_he(name: str) -> bool:
    return name in BOYS
