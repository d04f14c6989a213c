"""Progress of long work: how much is done, how fast it goes, and how long the rest takes."""

import io
import re

import pytest

from training.processes.progress import LINE_SECONDS, show_progress


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self):
        return True


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_line_says_the_pace_and_the_time_that_is_left(clock):
    stream = io.StringIO()
    with show_progress(stream, clock=clock) as show:
        for done in range(0, 2001, 20):
            show("Encoding", done, 2000)
            clock.now += 1
    lines = stream.getvalue().splitlines()
    assert lines[0] == "Encoding: 0 of 2,000"
    assert lines[1] == "Encoding: 100 of 2,000, 20/s, 95 s left"
    assert lines[-1] == "Encoding: 2,000 of 2,000, 20/s"
    assert len(lines) == 1 + 100 / LINE_SECONDS


def test_a_stream_of_unknown_length_has_a_pace(clock):
    stream = io.StringIO()
    with show_progress(stream, clock=clock) as show:
        for done in range(0, 12_000, 1000):
            show("Encoding", done, None)
            clock.now += 1
    assert stream.getvalue().splitlines()[-1] == "Encoding: 10,000, 1\u202f000/s"


def test_what_an_interrupted_call_finds_finished_counts_for_half_a_minute_only(clock):
    """It takes no time, so the rest would seem to take none either."""
    stream = io.StringIO()
    with show_progress(stream, clock=clock) as show:
        for done in range(0, 40_960, 4096):
            show("Encoding", done, 50_000)
        for done in range(36_864, 37_464, 10):
            clock.now += 1
            show("Encoding", done, 50_000)
    assert ", 10/s, 21 min left" in stream.getvalue().splitlines()[-1]


def test_an_end_that_is_told_again_takes_one_line(clock):
    """Text is counted in megabytes, and a small file is at its end from the beginning."""
    stream = io.StringIO()
    with show_progress(stream, clock=clock) as show:
        for _ in range(20):
            show("Packing text", 1, 1)
    assert stream.getvalue() == "Packing text: 1 of 1\n"


def test_a_terminal_of_80_columns_shows_all_of_it(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with show_progress(stream, clock=clock) as show:
        for done in range(1, 4097):
            clock.now += 1 / 40
            show("Opening pictures for the codec", done, 8192)
    shown = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
    assert "4096/8192 40/s, 102 s left 0:0" in shown
