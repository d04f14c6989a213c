"""The page on the calculator's errors shows what the benchmark has recorded, the worst cases too."""

from __future__ import annotations

import json

import pytest

from tests.programs import ROOT

pytestmark = pytest.mark.browser

RECORD = json.loads((ROOT / "benchmarks" / "results" / "memory_accuracy.json").read_text())


def test_errors_are_those_recorded(open_page):
    page = open_page("accuracy/", scripts=False)
    row = page.get_by_role("row", name="peak on the GPU")
    shown = [[float(part) for part in cell.split(" / ")] for cell in row.get_by_role("cell").all_inner_texts()]
    peaks = [result for result in RECORD["results"] if result["metric"].startswith("peak on the GPU")]
    expected = [[result["ours"] for result in peaks[::2]]] + [[r["peer"] for r in peaks[peer::2]] for peer in (0, 1)]
    assert [len(row) for row in expected] == [3, 3, 3]
    for cell, errors in zip(shown, expected, strict=True):
        assert cell == pytest.approx(errors, rel=0.05)


def test_the_worst_cases_are_named(open_page):
    text = open_page("accuracy/", scripts=False).get_by_role("main").inner_text()
    for cases in RECORD["worst_cases"].values():
        assert all(case["step"] in text for case in cases if case["error_percent"])
    assert f"{len(RECORD['cases'])} training steps" in text.replace("\n", " ")
