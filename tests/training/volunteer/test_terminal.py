"""What `join` shows its volunteer, fed with events; and the command itself on a terminal of 80 x 24 and without one."""

from __future__ import annotations

import os
import pty
import random
import re
import sys
import termios
from itertools import pairwise

import pytest
from rich.console import Console

from training.processes.events import EventLog
from training.processes.notices import Notices
from training.recipe import load_recipe
from training.volunteer.terminal.lines import MOST_LINES, WITHIN_SECONDS, Lines
from training.volunteer.terminal.screen import COLUMNS, FIGURES, LABEL_COLUMNS, ROWS, screen
from training.volunteer.terminal.view import LOADING, View

LINK = {
    "reach": "relay",
    "answer_seconds": [0.012],
    "download_bytes": 9_000_000,
    "download_seconds": 3.0,
    "told_mbits": None,
}
ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
LONG = (
    "Nobody sends the run's weights, because each of them is very busy with something else; wait, or come later. " * 9
)


class Volunteer:
    """A view with a clock of its own, and the event log that it follows."""

    def __init__(self, **settings):
        self.now = 0.0
        self.view = View(load_recipe("demo"), clock=lambda: self.now, **settings)
        self.events = EventLog(None, listener=self.view.note)
        self.notices = Notices(events=self.events, console=Console(quiet=True))

    def join(self, epoch=10):
        facts = {"name": "ada", "epoch": epoch, "state": "fresh weights", "link": LINK, "credit_samples": 1000}
        self.events.write("joined", **facts)

    def end_epoch(self, epoch, loss, *, seconds=5.0, senders=3):
        self.now += seconds
        facts = {"epoch": epoch, "loss": loss, "samples": 96, "own_share": 1 / 3, "senders": senders}
        self.events.write("epoch", step_seconds=seconds, **facts)

    def shown(self, width=COLUMNS):
        return [row.plain.rstrip() for row in screen(self.view, width)]

    def fact(self, label):
        (text,) = [row.removeprefix(label).strip() for row in self.shown() if row.startswith(label)]
        return text


@pytest.fixture
def ada():
    return Volunteer(site="https://run.example")


def test_the_screen_tells_what_a_volunteer_wants_to_know(ada):
    assert ada.fact("now") == LOADING and ada.fact("credit") == "counted once you take part"
    ada.join()
    for epoch in range(11, 31):
        ada.end_epoch(epoch, loss=4.0 - epoch / 10)
    ada.now += 2
    ada.notices.warn("The clock is wrong. Set it.")
    assert ada.shown()[0].startswith("Shapes, drawn together (demo)") and ada.shown()[0].endswith("102 s")
    assert ada.fact("now") == "training with 2 others"
    assert ada.fact("epoch") == "30 of 400"
    assert ada.fact("loss") == "1.000, falling (-1.000 in 10 epochs)"
    assert ada.fact("you") == "19.2 samples/s, 33% of the last update"
    assert ada.fact("credit") == "1,920 samples since you joined, 2,920 in all"
    assert ada.fact("link") == "relay; a peer answers in 12 ms, 24 Mbit/s down, up not measured"
    ada.events.write("reach", reach="direct")
    assert ada.fact("link").startswith("direct; a peer answers")
    assert ada.fact("exchange") == "in about 3 s"
    assert ada.fact("problem") == "(now) The clock is wrong. Set it."
    assert ada.fact("dashboard") == "https://run.example"
    assert "Ctrl-C" in ada.fact("stop")


def test_each_row_of_the_screen_is_explained(ada):
    ada.join()
    ada.end_epoch(11, 3.0)
    ada.notices.warn(LONG)
    shown = {row[:LABEL_COLUMNS].strip() for row in ada.shown()[1:]} - {""}
    ada.view.has_keys = True
    shown |= {row[:LABEL_COLUMNS].strip() for row in ada.shown()[1:]} - {""}
    assert shown == set(FIGURES)


def test_a_pause_is_shown_with_its_reason_until_it_ends(ada):
    ada.join()
    ada.events.write("paused", reason="on battery, until this machine is plugged in")
    ada.end_epoch(11, 3.0)  # with what it had computed
    assert ada.fact("now") == "paused: on battery, until this machine is plugged in"
    assert ada.fact("exchange") == "when this peer computes again"
    assert ada.view.summary().endswith("; paused: on battery, until this machine is plugged in.")
    assert "computes nothing now: on battery" in ada.view.news[-1]
    ada.events.write("resumed")
    assert ada.fact("now") == "training with 2 others" and ada.view.news[-1] == "This peer computes again."
    ada.view.manners.finish()
    assert ada.fact("now") == "computing until this epoch ends; then this peer leaves"
    ada.view.asked_to_leave = lambda: True
    assert ada.fact("now").startswith("leaving")


def test_the_keys_are_shown_where_they_are_read(ada):
    ada.view.has_keys = True
    assert ada.fact("keys") == "p pause, s snooze an hour, f finish this epoch and leave, q leave"
    assert len(ada.shown()) <= ROWS and all("stop" not in row[:4] for row in ada.shown())


@pytest.mark.parametrize("losses, word", [([3, 3, 2, 2], "falling"), ([2, 2, 3, 3], "rising"), ([2] * 4, "level")])
def test_the_trend_of_the_loss(ada, losses, word):
    ada.join()
    for epoch, loss in enumerate(losses):
        ada.end_epoch(11 + epoch, float(loss))
    assert word in ada.fact("loss")


def test_it_leaves_at_the_epoch_that_was_asked_for():
    ada = Volunteer(epochs=12)
    ada.join()
    assert ada.fact("epoch") == "10 of 12"


def test_a_problem_goes_and_what_the_peer_says_stays_until_the_next_epoch(ada):
    ada.join()
    ada.notices.warn("It is slow.")
    ada.notices.tell("Another volunteer is there: training goes on.")
    assert ada.fact("now") == "Another volunteer is there: training goes on."
    ada.now += 300
    assert ada.fact("problem") == "(5 min ago) It is slow." and ada.fact("exchange").startswith("as soon as")
    ada.end_epoch(11, 3.0, seconds=400, senders=1)
    assert ada.fact("problem") == "none" and ada.fact("now") == "training"
    ada.view.asked_to_leave = lambda: True
    assert ada.fact("now").startswith("leaving")


@pytest.mark.parametrize("width", [32, 60, COLUMNS, 200])
def test_the_screen_never_outgrows_a_small_terminal(ada, width):
    assert len(ada.shown(width)) <= ROWS
    ada.join()
    ada.end_epoch(11, 3.0)
    ada.notices.tell(LONG)
    ada.notices.warn(LONG)
    rows = ada.shown(width)
    assert len(rows) <= ROWS and max(map(len, rows)) <= min(width, COLUMNS)
    assert rows[-1].startswith("stop")


def lines_of(volunteer, seconds, happens=lambda second: None):
    """The lines that are written in so many seconds, with their times."""
    written = []
    lines = Lines(volunteer.view, lambda line: written.append((volunteer.now, line)), lambda: volunteer.now)
    for second in range(seconds):
        volunteer.now = float(second)
        happens(second)
        lines.look()
    return written


def test_a_busy_peer_writes_at_most_two_lines_a_minute(ada):
    """It warns in every second epoch, as in a run that goes badly."""

    def happens(second):
        if second == 5:
            ada.join()
        elif second > 5:
            ada.end_epoch(10 + second, 3.0, seconds=0)
            if second % 2:
                ada.notices.warn(f"Epoch {10 + second} was missed: the others were faster.")

    written = lines_of(ada, 600, happens)
    times = [at for at, _ in written]
    assert len(written) <= 20 and written[0][1].startswith("Joining demo (Shapes, drawn together)")
    assert all(later - at >= WITHIN_SECONDS for at, later in zip(times, times[MOST_LINES:], strict=False))
    assert written[1] == (5, "ada takes part in demo from epoch 10 on, with fresh weights.")
    assert re.search(r"^Epoch \d+ was missed: .* earlier lines are left out; --verbose prints all", written[2][1])


def test_a_quiet_peer_says_now_and_then_how_things_stand(ada):

    def happens(second):
        if second == 5:
            ada.join()
        elif second > 5 and second % 10 == 0:
            ada.end_epoch(10 + second // 10, 3.0, seconds=0)

    written = lines_of(ada, 600, happens)
    assert 4 <= len(written) <= 8
    assert "of 400, loss 3.000" in written[-1][1] and "samples since you joined" in written[-1][1]


def test_the_farewell_has_the_sum(ada):
    assert "before an epoch ended" in ada.view.farewell()
    ada.join()
    for epoch in (11, 12):
        ada.end_epoch(epoch, 3.0, seconds=1800)
    assert ada.view.farewell() == (
        "You took part for 1 h: 2 epochs, 192 samples. Your credit in demo is now 1,192 samples. Thank you!"
    )
    ada.join(epoch=12)  # in another lineage of the run
    assert "Your credit in demo is now 1,000 samples" in ada.view.farewell()


def test_any_order_of_events_can_be_shown(ada):
    numbers = random.Random(0)
    happenings = [
        ada.join,
        lambda: ada.end_epoch(numbers.randrange(400), numbers.random(), senders=numbers.choice([1, 2])),
        lambda: ada.notices.warn("A warning."),
        lambda: ada.notices.tell("A notice."),
        lambda: ada.events.write("paused", reason="on battery"),
        lambda: ada.events.write("resumed"),
        lambda: ada.events.write("ready", addresses=[]),
        lambda: ada.events.write("chosen", choices=[]),
        lambda: ada.events.write("stopped", epoch=0),
    ]
    for _ in range(300):
        numbers.choice(happenings)()
        assert ada.shown() and ada.view.farewell()
        assert ada.view.summary()[0].isupper() and not {".;", ".."} & set(map("".join, pairwise(ada.view.summary())))


@pytest.mark.programs
def test_join_on_a_terminal_of_80_by_24(programs):
    """It draws its screen while it loads and looks for the run; then it erases it, and the error is what stays."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [sys.executable, "-m", "training", "join", "--recipe", "demo", "--initial-peers", ADDRESS]
    environment = os.environ | {"TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    join = programs.start(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = everything_from(ours)
    assert join.wait() == 1
    assert "Shapes, drawn together (demo)" in written and LOADING in written and "looking for the run" in written
    ups = [int(rows) for rows in re.findall(r"\x1b\[(\d*)A", written)]
    drawn = written.count("dashboard")
    assert drawn >= 3 and len(ups) >= drawn, "the screen stands still"
    last = re.split(r"\x1b\[2K", written)[-1]
    assert "Error: No initial peer answers" in last and "dashboard" not in last and "Traceback" not in written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l"), "the cursor is hidden"


def everything_from(terminal):
    """What a program writes to a terminal, until it has ended."""
    written = bytearray()
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # Linux: nobody has the terminal open any more
            part = b""
        if not part:
            os.close(terminal)
            return written.decode()
        written += part
