"""Files of a reader study, as the site's page saves them, with known numbers of right answers."""

from __future__ import annotations

import json
from pathlib import Path

from calculator.exercises.catalogue import drawn
from calculator.exercises.exercise import Choice
from calculator.exercises.quantities import UNITS
from calculator.exercises.quiz import exercises_of, variant_of

STUDY = "spring"
"""Name of the study."""


def solution(name: str, variant: int) -> str:
    """The right answer to a variant, as a reader gives it."""
    answer = drawn(name, variant).answer
    if isinstance(answer, Choice):
        return str([option.right for option in answer.options].index(True))
    return f"{answer.value / UNITS.get(answer.unit, UNITS['']).size:.9g}"


def file_of(reader: str, part: str, right: int) -> dict:
    """A reader's file with this many right answers; of the others, some are wrong and some are empty."""
    answers = {}
    for number, name in enumerate(exercises_of(STUDY)):
        said = solution(name, variant_of(STUDY, reader, part, name))
        answers[name] = said if number < right else ("99999999" if number % 2 else "")
    return {"kind": "reader-study", "version": 1, "study": STUDY, "reader": reader, "part": part, "answers": answers}


def written(folder: Path, scores: dict[str, tuple[int, ...]]) -> None:
    """Writes the files of readers: before, and after if there is a second score."""
    for reader, rights in scores.items():
        for part, right in zip(("before", "after"), rights, strict=False):
            (folder / f"{reader}-{part}.json").write_text(json.dumps(file_of(reader, part, right)))
