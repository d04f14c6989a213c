"""All exercises by name, and the answers that the page gets: a drawn question as HTML, and the verdict on an answer."""

from __future__ import annotations

from random import Random

from calculator.errors import BadSetup
from calculator.exercises.exercise import Exercise, Question
from calculator.exercises.grade import graded, tells_mistakes
from calculator.exercises.shown import field_html, help_html, question_html
from calculator.exercises.subjects import (
    communication,
    error_feedback,
    estimates,
    local_updates,
    memory,
    security,
    sharding,
    streaming,
    uneven,
)

SUBJECTS = tuple(
    module.SUBJECT
    for module in (
        communication,
        uneven,
        memory,
        streaming,
        security,
        local_updates,
        error_feedback,
        sharding,
        estimates,
    )
)
EXERCISES: dict[str, Exercise] = {one.name: one for subject in SUBJECTS for one in subject.exercises}
FIRST = 1
"""The variant in the page's HTML."""
MOST_VARIANTS = 1_000_000


def exercise_named(name: object) -> Exercise:
    """The exercise of this name.

    Raises:
        BadSetup: If no exercise has this name.
    """
    exercise = EXERCISES.get(name) if isinstance(name, str) else None
    if exercise is None:
        raise BadSetup(f"There is no exercise {name!r:.60}.")
    return exercise


def drawn(name: object, variant: object) -> Question:
    """A variant of an exercise; the same variant always has the same numbers.

    Raises:
        BadSetup: If there is no such exercise or variant.
    """
    exercise = exercise_named(name)
    if isinstance(variant, bool) or not isinstance(variant, int) or not 1 <= variant <= MOST_VARIANTS:
        raise BadSetup(f"A variant is a whole number from 1 to {MOST_VARIANTS}, not {variant!r:.60}.")
    random = Random(f"{exercise.name} {variant}")
    question = exercise.draw(random)
    while not tells_mistakes(question):  # with these numbers, the result of a known mistake would count as right
        question = exercise.draw(random)
    return question


def asked(request: dict) -> dict:
    """The question `{"name", "variant"}` as HTML: {`question`, `field`, `help`}."""
    question = drawn(request.get("name"), request.get("variant"))
    return {
        "question": question_html(question),
        "field": field_html(question, request["name"]),
        "help": help_html(question),
    }


def answered(request: dict) -> dict:
    """The verdict on the answer `{"name", "variant", "answer"}`: {`right`, `sentence`}."""
    question = drawn(request.get("name"), request.get("variant"))
    answer = request.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        raise BadSetup("Give an answer first.")
    verdict = graded(question, answer)
    return {"right": verdict.right, "sentence": verdict.sentence}
