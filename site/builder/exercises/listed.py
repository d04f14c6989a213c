"""The exercises as HTML with the numbers of the first variant, readable without JavaScript.

With JavaScript, `calculator.browser` draws other numbers and judges answers (site/javascripts/exercises/). Everything
but the questions stands in `<noscript>`, which a browser with JavaScript keeps as text until the reader opens the
exercise. Otherwise, when the page opens, Chromium's autofill would lay out all folded fields and the theme all folded
blocks of code, and for 130 ms the page would not react to its reader.
"""

from __future__ import annotations

from html import escape

from calculator.exercises.catalogue import EXERCISES, FIRST, SUBJECTS, drawn
from calculator.exercises.exercise import Choice, Exercise, Number, Subject
from calculator.exercises.shown import field_html, help_html, question_html

subjects = SUBJECTS
KINDS = {Number: "number", Choice: "choice"}
"""Words for the kinds of answers; all others are programs."""


def exercise_count() -> int:
    """Number of all exercises."""
    return len(EXERCISES)


def subject_html(subject: Subject) -> str:
    """A subject's exercises, each folded, as one line of HTML for a page's text."""
    listed = "".join(map(_exercise, subject.exercises))
    return (
        f'<div class="exercises" data-subject="{subject.name}">'
        f'<p class="exercises__count with-script" data-slot="count">{len(subject.exercises)} exercises</p>'
        f"{listed}</div>"
    )


def _exercise(exercise: Exercise) -> str:
    name = exercise.name
    question = drawn(name, FIRST)
    kind = KINDS.get(type(question.answer), "program")
    return (
        f'<details class="exercise" id="exercise-{name}" data-exercise="{name}" data-kind="{kind}">'
        f'<summary><span>{escape(exercise.title)}</span> <span class="exercise__kind">{kind}</span> '
        '<span class="exercise__state" data-slot="state"></span></summary>'
        f'<div data-slot="question">{question_html(question)}</div>'
        f'<noscript><form data-slot="form" aria-label="{escape(exercise.title)}" novalidate>'
        f'<div data-slot="field">{field_html(question, name)}</div>'
        '<p class="exercise__buttons with-script"><button class="md-button md-button--primary">Check</button> '
        '<button type="button" class="small" data-slot="again">Other numbers</button></p></form>'
        '<p class="exercise__verdict" role="status" data-slot="verdict"></p>'
        f'<div data-slot="help" data-search-exclude>{help_html(question)}</div>'
        "</noscript></details>"
    )
