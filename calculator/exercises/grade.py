"""Judges an answer: whether it is right, and if not, which mistake it shows."""

from __future__ import annotations

from calculator.errors import BadSetup
from calculator.exercises.exercise import Choice, Number, Question, Verdict
from calculator.exercises.program import judged
from calculator.exercises.quantities import UNITS, read, shown

_BITS = "off by a factor of 8: check where there are bits and where bytes."
_PREFIX = "off by a power of 1000: check the prefix of the unit."
_BINARY = "off by what distinguishes GB from GiB: 1 GB is 10**9 bytes, 1 GiB is 2**30."
_HALF = "off by a factor of 2: check what goes in both directions, or twice."
_PERCENT = "off by a factor of 100: the answer is in percent."
NEAR = 0.001
"""Largest relative distance at which an answer shows a known mistake, where the question asks for more exactness."""


def tells_mistakes(question: Question) -> bool:
    """True if no known mistake leads to a number that counts as right."""
    answer = question.answer
    mistakes = answer.mistakes if isinstance(answer, Number) else ()
    return not any(_near(mistaken, answer.value, answer.tolerance) for mistaken, _ in mistakes)


def graded(question: Question, answer: str) -> Verdict:
    """Judges an answer: a typed number, the index of an option, or the text of a program.

    Raises:
        BadSetup: If the answer cannot be read; it then counts as none.
    """
    expected = question.answer
    if isinstance(expected, Number):
        return _number(question, expected, answer)
    if isinstance(expected, Choice):
        return _choice(question, expected, answer)
    verdict = judged(expected, answer)
    return Verdict(verdict.right, _right(verdict.sentence, question) if verdict.right else verdict.sentence)


def _number(question: Question, expected: Number, answer: str) -> Verdict:
    value = read(answer, expected.unit)
    if _near(value, expected.value, expected.tolerance):
        return Verdict(True, _right(f"It is {shown(expected.value, expected.unit)}.", question))
    near = max(expected.tolerance, NEAR)
    for mistaken, sentence in expected.mistakes:
        if _near(value, mistaken, near):
            return Verdict(False, sentence)
    slip = _slip(value, expected, near)
    told = shown(value, expected.unit)
    if slip:
        return Verdict(False, f"{told} is {slip}")
    if abs(value - expected.value) < 0.1 * abs(expected.value):
        return Verdict(False, f"{told} is near, but not within {_percent(expected.tolerance)}.")
    if abs(value) > 10 * abs(expected.value):
        return Verdict(False, f"{told} is far off: more than ten times the answer.")
    if abs(value) < 0.1 * abs(expected.value):
        return Verdict(False, f"{told} is far off: less than a tenth of the answer.")
    return Verdict(False, f"{told} is too {'large' if value > expected.value else 'small'}.")


def _choice(question: Question, expected: Choice, answer: str) -> Verdict:
    if answer not in map(str, range(len(expected.options))):
        raise BadSetup("Choose one of the answers first.")
    chosen = expected.options[int(answer)]
    return Verdict(chosen.right, _right(chosen.why, question) if chosen.right else chosen.why)


def _right(sentence: str, question: Question) -> str:
    return f"{sentence} {question.remember}"


def _slip(value: float, expected: Number, near: float) -> str:
    """The common mistake that explains the distance of a number from the answer; empty if none does."""
    dimension = UNITS.get(expected.unit, UNITS[""]).dimension
    slips: list[tuple[float, str]] = []
    if dimension in ("size", "rate", "time"):
        slips += [(8, _BITS), (1 / 8, _BITS)]
        slips += [(1000.0**power, _PREFIX) for power in (-3, -2, -1, 1, 2, 3)]
    if dimension == "size":
        slips += [(1.024**power, _BINARY) for power in (-4, -3, -2, -1, 1, 2, 3, 4)]
    if dimension == "share":
        slips += [(100, _PERCENT), (0.01, _PERCENT)]
        if _near(value, 1 - expected.value, near):
            return "the other part: both add up to 100 %."
    slips += [(2, _HALF), (0.5, _HALF), (-1, "right but for its sign.")]
    return next((sentence for factor, sentence in slips if _near(value, factor * expected.value, near)), "")


def _near(one: float, other: float, tolerance: float) -> bool:
    # Some answers are exact; rounding of the reader's own arithmetic is forgiven.
    return abs(one - other) <= max(tolerance * abs(other), 1e-9)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
