"""The ten questions of a reader study: the same exercises for all readers, with other numbers for each, each time."""

from __future__ import annotations

import re
from random import Random

from calculator.errors import BadSetup
from calculator.exercises.catalogue import EXERCISES, MOST_VARIANTS, SUBJECTS, drawn
from calculator.exercises.exercise import Program
from calculator.exercises.shown import field_html, question_html

QUESTIONS = 10
PARTS = ("before", "after")
"""When a reader answers: before and after reading the site."""
LEFT_OUT = ("largest-micro-batch", "largest-part", "does-it-fit")
"""Exercises that cannot be solved without the calculator's page."""
NAME = re.compile(r"[a-z0-9-]{1,30}")


def exercises_of(study: str) -> tuple[str, ...]:
    """Names of a study's exercises: one of each subject, and one more; no programs.

    >>> len(set(exercises_of("spring")))
    10
    """
    random = Random(f"study {study}")
    offered = [
        [one.name for one in subject.exercises if one.name not in LEFT_OUT and not _is_program(one.name)]
        for subject in SUBJECTS
    ]
    chosen = [random.choice(names) for names in offered]
    rest = sorted(set().union(*offered) - set(chosen))
    return (*chosen, *random.sample(rest, QUESTIONS - len(chosen)))


def _is_program(name: str) -> bool:
    return isinstance(drawn(name, 1).answer, Program)


def variant_of(study: str, reader: str, part: str, name: str) -> int:
    """The variant of an exercise that a reader gets."""
    return Random(f"{study} {reader} {part} {name}").randint(1, MOST_VARIANTS)


def check_names(study: object, reader: object, part: object) -> tuple[str, str, str]:
    """The names of a study, a reader and a part.

    Raises:
        BadSetup: If one of them is not a name.
    """
    for what, said in (("study", study), ("reader", reader)):
        if not isinstance(said, str) or not NAME.fullmatch(said):
            raise BadSetup(f"The name of a {what} has up to 30 of a-z, 0-9 and -, such as spring-1, not {said!r:.60}.")
    if part not in PARTS:
        raise BadSetup(f"The part of a study is {' or '.join(PARTS)}, not {part!r:.60}.")
    return str(study), str(reader), str(part)


def quiz(request: dict) -> dict:
    """The questions for `{"study", "reader", "part"}`: a list of {`name`, `title`, `question`}, the last as HTML."""
    study, reader, part = check_names(*(request.get(key) for key in ("study", "reader", "part")))
    names = exercises_of(study)
    questions = [drawn(name, variant_of(study, reader, part, name)) for name in names]
    return {
        "questions": [
            {
                "name": name,
                "title": EXERCISES[name].title,
                "question": question_html(question) + field_html(question, name),
            }
            for name, question in zip(names, questions, strict=True)
        ]
    }
