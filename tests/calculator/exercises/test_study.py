"""A study's files are judged, paired and compared; its probabilities are those of scipy and of counting all flips."""

from __future__ import annotations

import itertools
import json
from random import Random

import pytest

from calculator import browser
from calculator.__main__ import main
from calculator.errors import BadSetup
from calculator.exercises.catalogue import SUBJECTS, drawn
from calculator.exercises.exercise import Program
from calculator.exercises.quiz import exercises_of, quiz
from calculator.exercises.study import compared, permutation_p, sheet_of, sign_p
from tests.support.readers import STUDY, file_of, written


@pytest.mark.parametrize("study", ["spring", "a", "2026-12"])
def test_a_study_has_ten_exercises_of_all_subjects_without_programs(study):
    names = exercises_of(study)
    assert len(set(names)) == 10
    assert all(set(names) & {one.name for one in subject.exercises} for subject in SUBJECTS)
    assert not any(isinstance(drawn(name, 1).answer, Program) for name in names)


def test_readers_get_other_numbers_each_time():
    asked = [
        quiz({"study": STUDY, "reader": reader, "part": part})
        for reader in ("r1", "r2")
        for part in ("before", "after")
    ]
    assert len({json.dumps(one) for one in asked}) == 4
    assert [[one["name"] for one in each["questions"]] for each in asked] == [list(exercises_of(STUDY))] * 4
    assert json.loads(browser.ask_reader(json.dumps({"study": STUDY, "reader": "r1", "part": "before"}))) == asked[0]


def test_the_command_compares_the_files_of_a_folder(tmp_path, capsys):
    written(tmp_path, {"r1": (3, 6), "r2": (5, 5), "r3": (2, 9), "r4": (4, 7), "r5": (4,)})
    assert main(["study", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["study"], found["readers"], found["left_out"]) == (STUDY, 4, ["r5"])
    assert (found["before"], found["after"], found["difference"]) == (3.5, 6.75, 3.25)
    assert found["standard_error"] == pytest.approx((((3 - 3.25) ** 2 * 2 + 3.25**2 + 3.75**2) / 3 / 4) ** 0.5)
    assert list(found["questions"].values())[:3] == [[4, 4], [4, 4], [3, 4]]
    assert main(["study", str(tmp_path)]) == 0
    assert "4 readers" in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    [
        lambda folder: None,
        lambda folder: written(folder, {"r1": (3,)}),
        lambda folder: (folder / "a.json").write_text("[]"),
        lambda folder: (folder / "a.json").write_text("{"),
        lambda folder: (folder / "a.json").write_text(json.dumps(file_of("r1", "before", 3) | {"study": "A b"})),
        lambda folder: (folder / "a.json").write_text(json.dumps(file_of("r1", "between", 3))),
        lambda folder: (folder / "a.json").write_text(json.dumps(file_of("r1", "before", 3) | {"answers": []})),
        lambda folder: [(folder / f"{n}.json").write_text(json.dumps(file_of("r1", "before", 3))) for n in "ab"],
        lambda folder: [
            (folder / f"{n}.json").write_text(json.dumps(file_of("r1", "before", 3) | {"study": n})) for n in "ab"
        ],
    ],
)
def test_a_folder_that_is_no_study_is_refused_in_a_sentence(tmp_path, capsys, broken):
    broken(tmp_path)
    assert main(["study", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.strip().splitlines()) == 1


def test_no_folder_is_refused(tmp_path, capsys):
    assert main(["study", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_answers_are_judged_whatever_they_are():
    content = file_of("r1", "before", 10)
    for odd in (None, 3, [], "x" * 10_000, "\u0000"):
        content["answers"][exercises_of(STUDY)[0]] = odd
        assert sum(sheet_of(content, "r1.json").right.values()) == 9


def test_probabilities_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    random = Random(3)
    for count in (1, 2, 5, 8):
        differences = [random.randint(-3, 6) for _ in range(count)]
        total = abs(sum(differences))
        flips = itertools.product((1, -1), repeat=count)
        far = sum(abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= total for signs in flips)
        assert permutation_p(differences) == far / 2**count
        better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
        expected = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
        assert sign_p(differences) == pytest.approx(expected)


def test_nobody_learned_anything():
    sheets = [sheet_of(file_of(reader, part, 5), "x") for reader in ("r1", "r2") for part in ("before", "after")]
    found = compared(sheets)
    assert (found.difference, found.permutation_p, found.sign_p) == (0, 1, 1)
    assert compared(sheets[:2]).standard_error is None
    with pytest.raises(BadSetup):
        compared([])
