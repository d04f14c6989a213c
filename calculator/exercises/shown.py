"""A question, its hints and its worked solution as HTML, for the page's text and for the browser."""

from __future__ import annotations

import re
from html import escape

from calculator.exercises.exercise import Choice, Number, Program, Question


def question_html(question: Question) -> str:
    """The question with its numbers, as one line of HTML."""
    given = "".join(f"<div><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>" for key, value in question.given)
    listed = f'<dl class="exercise__given">{given}</dl>' if given else ""
    return f"<p>{_text(question.text)}</p>{listed}"


def field_html(question: Question, name: str) -> str:
    """The field for an answer, as one line of HTML.

    Args:
        question: The question.
        name: The exercise's name, which makes the names of its fields unique on a page.
    """
    answer = question.answer
    if isinstance(answer, Choice):
        options = "".join(
            f'<label><input type="radio" name="{name}" value="{number}" autocomplete="off"> '
            f"<span>{_text(option.text)}</span></label>"
            for number, option in enumerate(answer.options)
        )
        return f'<fieldset class="exercise__options"><legend>Your answer</legend>{options}</fieldset>'
    if isinstance(answer, Program):
        return (
            f'<label class="exercise__answer"><span>Your program, in Python</span><textarea name="{name}" rows="7" '
            f'spellcheck="false" autocomplete="off" autocapitalize="off">{_lines(answer.start)}</textarea></label>'
        )
    assert isinstance(answer, Number)
    exact = "exactly" if not answer.tolerance else f"within {100 * answer.tolerance:g} %"
    unit = f" in {_text(answer.unit)}" if answer.unit else ""
    return (
        f'<label class="exercise__answer with-script"><span>Your answer{unit}, {exact}</span>'
        f'<input type="text" name="{name}" inputmode="text" autocomplete="off" size="14"></label>'
    )


def help_html(question: Question) -> str:
    """Hints and the worked solution, each folded, as one line of HTML."""
    hints = "".join(
        f'<details class="twin"><summary>{_numbered("Hint", number, len(question.hints))}</summary>'
        f"<p>{_text(hint)}</p></details>"
        for number, hint in enumerate(question.hints, start=1)
    )
    lines = "".join(f"<p>{_text(line)}</p>" for line in question.solution)
    right = _solved(question.answer)
    return (
        f'{hints}<details class="twin"><summary>Worked solution</summary>{right}{lines}'
        f"<p><strong>{_text(question.remember)}</strong></p></details>"
    )


def _solved(answer: object) -> str:
    """The right option or program, which the lines of the solution explain."""
    if isinstance(answer, Choice):
        return "".join(f"<p>{_text(one.text)}: {_text(one.why)}</p>" for one in answer.options if one.right)
    if isinstance(answer, Program):
        return f'<pre tabindex="0"><code>{_lines(answer.solution)}</code></pre>'
    return ""


def _numbered(word: str, number: int, count: int) -> str:
    return f"{word} {number}" if count > 1 else word


def _text(text: str) -> str:
    """Plain text as HTML; what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _lines(text: str) -> str:
    # Markdown would end the HTML, which is one line, at a real line break.
    return escape(text).replace("\n", "&#10;")
