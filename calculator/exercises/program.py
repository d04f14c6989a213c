"""Runs a reader's function and compares what it returns with what the library's function returns."""

from __future__ import annotations

import contextlib
import copy
import io
import math
from collections.abc import Callable

from calculator.errors import BadSetup
from calculator.exercises.exercise import Program, Verdict

LONGEST = 5000
"""Most characters of a reader's program."""
TOLERANCE = 1e-6
"""Largest accepted error of a number, relative to it."""
FILE = "<your program>"
MOST_SHOWN = 200
"""Most characters of a value or of printed text in a sentence."""


def judged(program: Program, text: str) -> Verdict:
    """Runs a reader's program on all cases. It may run for ever: the browser limits its time.

    Raises:
        BadSetup: If the text is empty or too long.
    """
    if not text.strip() or text.strip() == program.start.strip():
        raise BadSetup(f"Write the body of {program.name} first.")
    if len(text) > LONGEST:
        raise BadSetup(f"A program has at most {LONGEST} characters; yours has {len(text)}.")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        verdict = _verdict(program, text)
    said = printed.getvalue().strip()
    if said and not verdict.right:
        return Verdict(False, f"{verdict.sentence} It printed: {said[:MOST_SHOWN]}")
    return verdict


def _verdict(program: Program, text: str) -> Verdict:
    names: dict = {"__name__": "exercise"}
    try:
        exec(compile(text, FILE, "exec", dont_inherit=True), names)  # the reader's own program, in their own browser
    except SyntaxError as error:
        return Verdict(False, f"Line {error.lineno} is not Python: {error.msg}.")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return Verdict(False, f"{_where(error)}{_named(error)}.")
    function = names.get(program.name)
    if not callable(function):
        return Verdict(False, f"The program defines no function {program.name}.")
    returned = []
    for case in program.cases:
        call = f"{program.name}({', '.join(map(_text, case))})"
        try:
            returned.append(function(*copy.deepcopy(case)))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return Verdict(False, f"{_where(error)}{_named(error)}, in {call}.")
        if returned[-1] is None:
            return Verdict(False, f"{call} returns None: a `return` is missing.")
    expected = [program.reference(*copy.deepcopy(case)) for case in program.cases]
    wrong = [number for number, pair in enumerate(zip(returned, expected, strict=True)) if not alike(*pair)]
    if not wrong:
        return Verdict(True, f"{program.name} returns what the library's function returns, in {len(expected)} cases.")
    for mistake, sentence in program.mistakes:
        if _all_alike(returned, mistake, program.cases):
            return Verdict(False, sentence)
    case, own, theirs = (values[wrong[0]] for values in (program.cases, returned, expected))
    call = f"{program.name}({', '.join(map(_text, case))})"
    try:
        shown = _text(own)
    except Exception:  # such as a list that contains itself, or a number of many thousand digits
        shown = f"a value of the type {type(own).__name__} that cannot be written here"
    return Verdict(False, f"{call} returns {shown}; the library's function returns {_text(theirs)}.")


def _all_alike(returned: list, mistake: Callable, cases: tuple[tuple, ...]) -> bool:
    return all(alike(own, mistake(*copy.deepcopy(case))) for own, case in zip(returned, cases, strict=True))


def alike(one: object, other: object) -> bool:
    """True if two results are equal apart from rounding; a list equals a tuple of the same values.

    >>> alike([1, 2.0], (1.0, 2)), alike(1, True), alike([1], [1, 2])
    (True, False, False)
    """
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)]
    if all(numbers):
        try:
            return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-9)
        except OverflowError:  # a whole number beyond all floating-point numbers
            return one == other
    return type(one) is type(other) and one == other


def _where(error: BaseException) -> str:
    """The line of the reader's program in which an error arose, as the beginning of a sentence."""
    line, trace = None, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"Line {line}: " if line else ""


def _named(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return f"{str(error)[:MOST_SHOWN]}; this page's Python has only a small library, such as math and itertools"
    return f"{type(error).__name__}: {str(error)[:MOST_SHOWN]}".rstrip(": ")


def _text(value: object) -> str:
    """A value as Python writes it, numbers with six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        text = ", ".join(map(_text, value))
        return f"[{text}]"[:MOST_SHOWN]
    return repr(value)[:MOST_SHOWN]
