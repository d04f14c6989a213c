"""The home page: what is recorded of a run, what the replay makes of it, and the page in a browser."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from benchmarks.swarm.recorded_run import COLUMNS, condensed, seconds_to_the_next_update
from builder.home.course import course_of, epochs_of, moments_of
from tests.support.programs import ROOT

RECORD = json.loads((ROOT / "benchmarks" / "results" / "recorded_run.json").read_text(encoding="utf-8"))
START = 1_000_000.0
SLIDER_STEP_SECONDS = 0.5


def epoch(number: int, at: float, samples: int, senders: int, *, waiting: float = 0.5, averaging: float = 0.25) -> dict:
    """An event of a volunteer's log, with fields that the record leaves out."""
    costs = {"waiting_seconds": waiting, "averaging_seconds": averaging, "bytes_sent": 1000, "loss": 5 - number / 2}
    facts = {"epoch": number, "samples": samples, "senders": senders, "group_size": senders, **costs}
    return {"time": START + at, "event": "epoch", **facts}


def event(kind: str, at: float, **fields: object) -> dict:
    return {"time": START + at, "event": kind, **fields}


REPEATED = "Epoch 2: a peer was lost in the middle of the average, so 2 of 3 have averaged again."
LOGS = {
    "ada": [
        event("ready", 0),
        event("joined", 1),
        epoch(1, 5, 60, 3),
        epoch(2, 12, 90, 2, averaging=3.0),
        event("warning", 12.1, text=REPEATED),
        epoch(3, 15, 80, 3),
        event("stopped", 16),
    ],
    "ben": [
        event("ready", 0.5),
        event("joined", 2),
        epoch(1, 5.1, 30, 3),
        epoch(2, 12.2, 40, 2),
        epoch(3, 15, 20, 3),
        event("stopped", 17),
    ],
    "cy": [
        event("ready", 1),
        event("joined", 3),
        epoch(1, 5, 10, 3),
        event("ready", 12),
        event("joined", 13),
        epoch(3, 15, 5, 3),
        event("stopped", 17.5),
    ],
}
"""A run in which cy is killed after 8 s and comes back; as read off these lines by hand below."""


@pytest.fixture
def facts() -> dict:
    history = [[1, 5.2, 4.5, 100], [2, 12.3, 4.0, 130], [3, 15.2, 3.5, 105]]
    more = {"snapshots": [[6.0, 1, 0], [16.0, 3, 2]], "history": history, "target_batch_size": 100}
    return condensed(LOGS, killed={"cy": START + 8}) | more


def test_logs_become_lives_and_rows(facts):
    ada, _, cy = facts["volunteers"]
    assert facts["began"] == START
    assert cy["lives"] == [[3, 8, "killed"], [13, 17.5, "left"]] and ada["lives"] == [[1, 16, "left"]]
    assert ada["epochs"][1] == [2, 12, 90, 2, 0.5, 3.0, 1000, 4.0]
    assert ada["warnings"] == [[12.1, REPEATED]]
    assert seconds_to_the_next_update(facts, "cy") == (pytest.approx(4.2), True)


def test_without_a_repetition_the_death_was_not_in_an_average(facts):
    facts["volunteers"][0]["warnings"] = []
    assert seconds_to_the_next_update(facts, "cy")[1] is False
    with pytest.raises(ValueError, match="killed"):
        moments_of(facts)


def test_an_epoch_is_computing_then_looking_for_a_group_then_averaging(facts):
    ada, _, cy = (epochs_of(row, facts["columns"]) for row in facts["volunteers"])
    times = [(one.began, one.ready, one.found, one.ended) for one in ada]
    assert times == [(1, 4.25, 4.75, 5), (5, 8.5, 9, 12), (12, 14.25, 14.75, 15)]
    assert cy[1].began == 13, "it has computed nothing while it was away"


def test_the_moments_are_told_in_their_order(facts):
    told = [(one.key, one.seconds) for one in moments_of(facts)]
    assert told == [
        ("joined", 2),
        ("newcomer", 3),
        ("first", 4.75),
        ("killed", 8),
        ("again", 12.1),
        ("back", 13),
        ("end", 15.2),
    ]


def test_the_course_has_each_updates_samples(facts):
    course = course_of(facts)
    assert [(one["at"], one["samples"], one["together"]) for one in course["epochs"]] == [
        (5, [60, 30, 10], 3),
        (12, [90, 40, None], 2),
        (15, [80, 20, 5], 3),
    ]
    assert course["snapshots"] == [6.0, 16.0] and course["seconds"] == pytest.approx(16.2)


def test_the_recorded_logs_and_the_monitors_history_agree():
    """Two witnesses of the recorded run: what the volunteers' logs say, and what the monitor has heard of them."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for one in RECORD["volunteers"] for row in one["epochs"]]
    assert RECORD["columns"] == list(COLUMNS)
    told = sum(samples for *_, samples in RECORD["history"])
    assert sum(row["samples"] for row in rows) == pytest.approx(told, rel=0.02)
    for number, _, loss, _ in RECORD["history"]:
        own = [row for row in rows if row["epoch"] == number and row["samples"]]
        mean = sum(row["loss"] * row["samples"] for row in own) / sum(row["samples"] for row in own)
        assert loss == pytest.approx(mean, rel=0.1), f"epoch {number}"
    assert seconds_to_the_next_update(RECORD, "barbara")[1], "the page says that the others have averaged again"


@pytest.mark.browser
def test_the_reader_moves_through_the_run(open_page):
    page = open_page()
    figure = page.get_by_role("figure", name="One run, replayed")
    slider, state = figure.get_by_role("slider", name="Time"), figure.locator("[data-slot=state]")
    figure.scroll_into_view_if_needed()
    expect(state).not_to_be_empty()
    slider.press("Home")
    expect(state).to_have_text("No epoch is done yet")
    slider.press("End")
    last = RECORD["history"][-1][0]
    expect(state).to_have_text(re.compile(rf"^Epoch {last}, loss"))
    frames = figure.locator("[data-slot=film] > li")
    expect(figure.locator("[data-slot=film] > li:visible")).to_have_count(1)
    expect(frames.last).to_be_visible()
    figure.locator("[data-at]").nth(2).click()
    third = sorted(one.seconds for one in moments_of(RECORD))[2]
    assert float(slider.input_value()) == pytest.approx(third, abs=SLIDER_STEP_SECONDS)
    window = figure.locator("[data-slot=window]")
    at = window.evaluate("one => one.scrollLeft / (one.scrollWidth - one.clientWidth)")
    assert at == pytest.approx(float(slider.input_value()) / course_of(RECORD)["seconds"], abs=0.01)
    window.evaluate("one => (one.scrollLeft = one.scrollWidth)")
    expect(state).to_have_text(re.compile(rf"^Epoch {last}, loss"))


@pytest.mark.browser
def test_the_whole_run_stands_without_scripts(open_page):
    page = open_page(scripts=False)
    figure = page.get_by_role("figure", name="One run, replayed")
    expect(figure.locator("[data-slot=film] > li:visible")).to_have_count(len(RECORD["snapshots"]))
    expect(figure.get_by_role("slider")).to_be_hidden()
    figure.locator("[data-at]").last.click()
    assert figure.locator("[data-slot=window]").evaluate("one => one.scrollLeft") > 0, (
        "a moment is a link into the lanes"
    )
