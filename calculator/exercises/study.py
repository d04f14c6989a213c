"""`python -m calculator study`: compares readers' answers before and after they have read, from their files.

The command judges each answer itself. Differences are tested by a permutation test, which flips their signs: if reading
changed nothing, each reader's difference could as well have had the other sign. All flips are counted, so the
probability is exact.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from calculator.errors import BadSetup
from calculator.exercises.catalogue import EXERCISES, drawn
from calculator.exercises.grade import graded
from calculator.exercises.quiz import PARTS, QUESTIONS, check_names, exercises_of, variant_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """One reader's answers, judged."""

    study: str
    reader: str
    part: str
    right: dict[str, bool]
    """Exercise -> whether the answer is right; an empty or unreadable answer is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a study has found."""

    study: str
    readers: int
    """Readers who answered both times."""
    left_out: tuple[str, ...]
    """Readers who answered only once."""
    before: float
    """Mean number of right answers of ten."""
    after: float
    difference: float
    standard_error: float | None
    """Standard error of the mean difference; None with one reader."""
    permutation_p: float
    """Probability of a mean difference at least as far from 0, if reading changed nothing (permutation test)."""
    sign_p: float
    """The same by the sign test, which knows only who became better and who worse."""
    questions: dict[str, tuple[int, int]]
    """Exercise -> readers who had it right before, and after."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command `study`."""
    parser.add_argument("folder", metavar="FOLDER", help="the files that the readers of one study have sent you")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(flags: dict, read: Callable[[str], object]) -> str:
    """Runs the command `study`; returns the text that it prints.

    Args:
        flags: Values of the flags by name.
        read: Reads a JSON file.

    Raises:
        BadSetup: If the folder holds no study, or more than one.
    """
    folder = Path(flags["folder"])
    if not folder.is_dir():
        raise BadSetup(f"{folder} is not a folder; give the one with the readers' files.")
    sheets = [sheet_of(read(str(file)), file.name) for file in sorted(folder.glob("*.json"))]
    result = compared(sheets)
    return json.dumps(asdict(result)) if flags["json"] else report(result)


def sheet_of(content: object, name: str) -> Sheet:
    """Judges the answers in a reader's file.

    Raises:
        BadSetup: If the page has not made this file.
    """
    if not isinstance(content, dict) or content.get("kind") != "reader-study" or content.get("version") != 1:
        raise BadSetup(f"{name} is not a file of a reader study; remove it from the folder.")
    answers = content.get("answers")
    if not isinstance(answers, dict):
        raise BadSetup(f"{name} has no answers; ask its reader for the file again.")
    study, reader, part = check_names(content.get("study"), content.get("reader"), content.get("part"))
    right = {one: _is_right(one, variant_of(study, reader, part, one), answers.get(one)) for one in exercises_of(study)}
    return Sheet(study=study, reader=reader, part=part, right=right)


def _is_right(name: str, variant: int, answer: object) -> bool:
    try:
        return isinstance(answer, str) and graded(drawn(name, variant), answer).right
    except BadSetup:
        return False


def compared(sheets: Sequence[Sheet]) -> Result:
    """Compares each reader's two sheets.

    Raises:
        BadSetup: If no reader has two sheets, or the sheets are of several studies.
    """
    studies = sorted({sheet.study for sheet in sheets})
    if len(studies) != 1:
        named = f"files of the studies {', '.join(studies)}" if studies else "no files of a study"
        raise BadSetup(f"The folder has {named}; give one with the files of one study.")
    twice = [who for who, count in Counter((sheet.reader, sheet.part) for sheet in sheets).items() if count > 1]
    if twice:
        raise BadSetup(f"There are two files of {' '.join(twice[0])}; keep the first that this reader has sent.")
    found = {(sheet.reader, sheet.part): sheet.right for sheet in sheets}
    readers = sorted({sheet.reader for sheet in sheets})
    both = [reader for reader in readers if all((reader, part) in found for part in PARTS)]
    if not both:
        raise BadSetup("No reader has answered both before and after; wait for more files.")
    before, after = ([sum(found[reader, part].values()) for reader in both] for part in PARTS)
    differences = [later - earlier for earlier, later in zip(before, after, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(both)) if len(both) > 1 else None
    return Result(
        study=studies[0],
        readers=len(both),
        left_out=tuple(reader for reader in readers if reader not in both),
        before=statistics.mean(before),
        after=statistics.mean(after),
        difference=statistics.mean(differences),
        standard_error=error,
        permutation_p=permutation_p(differences),
        sign_p=sign_p(differences),
        questions={
            name: tuple(sum(found[reader, part][name] for reader in both) for part in PARTS)
            for name in exercises_of(studies[0])
        },
    )


def permutation_p(differences: Sequence[int]) -> float:
    """Two-sided probability of a sum at least as far from 0, if each difference has either sign equally often.

    >>> permutation_p([1, 2, 3])
    0.25
    """
    sums: Counter[int] = Counter({0: 1})
    for difference in differences:
        flipped: Counter[int] = Counter()
        for total, ways in sums.items():
            flipped[total + difference] += ways
            flipped[total - difference] += ways
        sums = flipped
    far = sum(ways for total, ways in sums.items() if abs(total) >= abs(sum(differences)))
    return far / 2 ** len(differences)


def sign_p(differences: Sequence[int]) -> float:
    """Two-sided probability of at least as many differences of one sign; differences of 0 do not count.

    >>> sign_p([1, 2, 0, 3])
    0.25
    """
    better, worse = (sum(sign * difference > 0 for difference in differences) for sign in (1, -1))
    count = better + worse
    tail = sum(math.comb(count, one) for one in range(max(better, worse), count + 1))
    return min(1.0, 2 * tail / 2**count)


def report(result: Result) -> str:
    """Formats a result for people."""
    count = result.readers
    error = "" if result.standard_error is None else f" ± {result.standard_error:.2f} (standard error)"
    lines = [
        f"Study {result.study}: {count} reader{'s' * (count > 1)} who answered before and after.",
        *([f"Left out, with one file only: {', '.join(result.left_out)}."] if result.left_out else []),
        "",
        f"Right of {QUESTIONS} before: {result.before:.2f}, after: {result.after:.2f}.",
        f"Difference: {result.difference:+.2f}{error}.",
        f"If reading changed nothing, a difference like this has the probability {result.permutation_p:.3g}",
        f"(permutation test; by the sign test {result.sign_p:.3g}).",
        "A reader who answers twice may do better the second time without reading. A second study, whose readers",
        "read something else in between, shows how much of the difference that is.",
        "",
        f"{'Question':<36}{'before':>8}{'after':>8}",
    ]
    for name, (before, after) in result.questions.items():
        lines.append(f"{EXERCISES[name].title:<36}{f'{before}/{count}':>8}{f'{after}/{count}':>8}")
    return "\n".join(lines)
