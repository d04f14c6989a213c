"""Answers as readers give them: quantities with units, programs that fail in all ways, and requests of the page."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from calculator import browser
from calculator.errors import BadSetup
from calculator.exercises.exercise import Number, Program, Question
from calculator.exercises.grade import graded
from calculator.exercises.program import judged
from calculator.exercises.quantities import read

READ = [
    ("12", "MB", 12e6),
    (" 12MB ", "MB", 12e6),
    ("12 mb", "GB", 12e6),
    ("96 Mbit", "MB", 12e6),
    ("1.5 GiB", "MB", 1.5 * 2**30),
    ("1 234.5", "", 1234.5),
    ("1,234,567", "", 1_234_567),
    ("1,234.5", "", 1234.5),
    ("0,25", "%", 0.0025),
    ("0,125", "", 0.125),
    ("40 %", "%", 0.4),
    ("40", "%", 0.4),
    ("2 h 5 min", "s", 7500),
    ("1.5 days", "h", 129_600),
    ("20 Mbit/s", "MB/s", 2.5e6),
    ("20 Mbps", "Mbit/s", 2.5e6),
    ("\u22123.5", "", -3.5),
    ("1.2e3 kB", "MB", 1.2e6),
    ("126 million", "million", 126e6),
    ("0.126 billion", "million", 126e6),
    ("7 steps", "steps", 7),
    ("1 step", "steps", 1),
    (".5", "", 0.5),
]

REFUSED = [
    ("", "MB"),
    ("a lot", "MB"),
    ("12 MB or so", "MB"),
    ("12 s", "MB"),
    ("12 MB", "s"),
    ("12 Mb", "MB"),
    ("1,500", ""),
    ("3 4x", ""),
    ("1.2.3", ""),
    ("5 furlongs", ""),
    ("9" * 100, ""),
    ("nan", ""),
    ("inf", ""),
    ("1e400", ""),
    ("1e308 GB", "MB"),
    ("-1e99", "%"),
]


@pytest.mark.parametrize("text, unit, value", READ)
def test_quantities_are_read(text, unit, value):
    assert read(text, unit) == pytest.approx(value)


@pytest.mark.parametrize("text, unit", REFUSED)
def test_what_is_no_quantity_is_refused(text, unit):
    with pytest.raises(BadSetup):
        read(text, unit)


def asking(answer) -> Question:
    return Question(text="?", answer=answer, hints=("",), solution=("",), remember="")


def test_common_slips_are_named():
    size = asking(Number(value=2e9, unit="GB"))
    sentences = {text: graded(size, text).sentence for text in ("16 GB", "0.25 GB", "2 TB", "2 MB", "2 GiB", "4", "5")}
    assert len(set(map(lambda one: one.split(" is ")[1], sentences.values()))) == 5  # twice 8, twice 1000
    share = asking(Number(value=0.2, unit="%"))
    assert "100" in graded(share, "0.2").sentence and "100 %" in graded(share, "80").sentence


DOUBLED = Program(
    name="doubled",
    start="def doubled(x):\n    ",
    solution="def doubled(x):\n    return 2 * x",
    reference=lambda x: 2 * x,
    cases=((1,), (2.5,), ([1, 2],)),
)


@pytest.mark.parametrize(
    "text, right",
    [
        ("def doubled(x):\n    return x * 2", True),
        ("doubled = lambda x: x + x", True),
        ("import math\nprint('hello')\ndef doubled(x):\n    return 2 * x", True),
        ("def doubled(x):\n    return x", False),
        ("def other(x):\n    return 2 * x", False),
        ("doubled = 3", False),
        ("def doubled(x)\n    return 2 * x", False),
        ("def doubled(x):\n    return str(2 * x)", False),
        ("def doubled(x):\n    return doubled(x)", False),
        ("def doubled(x):\n    raise KeyboardInterrupt", False),
        ("import no_such_module", False),
        ("def doubled(x):\n    return 10**400", False),
        ("def doubled(x):\n    return 10**9000", False),
        ("def doubled(x):\n    x = []\n    x.append(x)\n    return x", False),
        ("class Mute:\n    def __repr__(self):\n        raise ValueError\ndef doubled(x):\n    return Mute()", False),
        ("class Same:\n    def __eq__(self, other):\n        return True\ndef doubled(x):\n    return Same()", False),
    ],
)
def test_programs_are_judged(text, right):
    outcome = judged(DOUBLED, text)
    assert outcome.right is right and outcome.sentence


def test_a_program_cannot_change_the_cases():
    sorted_cases = replace(DOUBLED, cases=(([3, 1],),), reference=lambda values: 2 * values)
    assert not judged(sorted_cases, "def doubled(x):\n    x.sort()\n    return 2 * x").right
    assert sorted_cases.cases == (([3, 1],),)


def test_a_failing_program_is_told_the_line_and_what_it_printed():
    outcome = judged(DOUBLED, "def doubled(x):\n    print('so far')\n    return x / 0")
    assert "Line 3" in outcome.sentence and "ZeroDivisionError" in outcome.sentence and "so far" in outcome.sentence


@pytest.mark.parametrize("text", ["", "  \n", DOUBLED.start, "#" * 6000])
def test_no_program_is_refused(text):
    with pytest.raises(BadSetup):
        judged(DOUBLED, text)


def ask(function, **request) -> dict:
    return json.loads(function(json.dumps(request)))


def test_the_page_gets_questions_and_verdicts():
    question = ask(browser.exercise, name="ring-steps", variant=3)
    assert "<input" in question["field"] and "Worked solution" in question["help"]
    assert "<textarea" in ask(browser.exercise, name="sent-bytes", variant=3)["field"]
    peers = int(question["question"].split("<dd>")[1].split("<")[0])
    verdict = ask(browser.grade, name="ring-steps", variant=3, answer=f"{2 * peers - 2} steps")
    assert verdict["right"] is True
    assert ask(browser.grade, name="ring-steps", variant=3, answer="1")["right"] is False


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"name": "none-such", "variant": 1},
        {"name": ["ring-steps"], "variant": 1},
        {"name": "ring-steps", "variant": 0},
        {"name": "ring-steps", "variant": 1.5},
        {"name": "ring-steps", "variant": True},
        {"name": "ring-steps", "variant": 10**9},
    ],
)
def test_bad_requests_are_refused_in_a_sentence(request_):
    for function in (browser.exercise, browser.grade):
        assert set(ask(function, **request_)) == {"error"}


@pytest.mark.parametrize("answer", [None, 3, "", " ", "several", "-1", "9", "9" * 5000])
def test_bad_answers_are_refused(answer):
    assert set(ask(browser.grade, name="late-samples", variant=1, answer=answer)) == {"error"}
