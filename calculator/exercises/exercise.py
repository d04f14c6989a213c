"""What an exercise is: a rule that draws a question, and a question's answer, hints and worked solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """An answer that is a quantity."""

    value: float
    """Value in base units of `quantities`: bytes, seconds, bytes per second, or 1."""
    unit: str
    """The unit in which the question asks; see `quantities.read`."""
    tolerance: float = 0.02
    """Largest accepted error, relative to the value."""
    mistakes: tuple[tuple[float, str], ...] = ()
    """Results of known mistakes, each with a sentence for the reader who makes it."""


@dataclass(frozen=True, slots=True)
class Option:
    """One of the answers among which a reader chooses."""

    text: str
    why: str
    """Why it is right or wrong, in a sentence."""
    right: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """An answer that is one of a few."""

    options: tuple[Option, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """An answer that is a function in Python. It is right if it returns what the library's function returns."""

    name: str
    """The function's name."""
    start: str
    """The text with which the reader begins."""
    solution: str
    reference: Callable
    """The library's function, with the same arguments."""
    cases: tuple[tuple, ...]
    """Arguments with which both are called."""
    mistakes: tuple[tuple[Callable, str], ...] = ()
    """Functions that make known mistakes, each with a sentence for the reader whose function returns the same."""


Answer = Number | Choice | Program


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of an answer: right or not, and what to tell the reader."""

    right: bool
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question with drawn numbers. Texts are plain, with code between backticks."""

    text: str
    answer: Answer
    hints: tuple[str, ...]
    solution: tuple[str, ...]
    """The worked solution, line by line."""
    remember: str
    """What is worth remembering, in a sentence."""
    given: tuple[tuple[str, str], ...] = ()
    """The drawn numbers: name and value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    """A rule that draws questions of one kind."""

    name: str
    title: str
    draw: Callable[[Random], Question]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Exercises on one subject, and the page that teaches it."""

    name: str
    title: str
    page: str
    """Address of the page that teaches it, relative to the site's root."""
    exercises: tuple[Exercise, ...] = field(default=())


def choice(random: Random, right: tuple[str, str], wrong: Sequence[tuple[str, str]]) -> Choice:
    """A choice among one right and some wrong answers, in a drawn order; each is a text and its reason."""
    options = [Option(*right, right=True), *(Option(*one) for one in wrong)]
    random.shuffle(options)
    return Choice(options=tuple(options))
