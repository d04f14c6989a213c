"""The history keeps what was observed: totals, epochs, comings and goings, over restarts and kills."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import BadInput, TrainingError
from training.publish.history.history import History, HistoryReader
from training.publish.showcase import Shown
from training.swarm.node.metrics import PeerRecord, RecentEpoch
from training.tasks.held_out import HeldOut

ROOT = Path(__file__).parents[4]


FACTS = {
    "name": "ada", "peer_id": "A", "status": "training", "lineage": None, "epoch": 0, "loss": 2.0, "samples": 0,
    "samples_per_second": 5.0, "seconds": 2.0, "time": 0.0, "averaged_epochs": 0, "alone_epochs": 0,
}  # fmt: skip


def Report(**facts) -> PeerRecord:
    """A peer's record, with the fields that the history reads; its bounds are checked where it is read."""
    listed = [RecentEpoch(*one) for one in facts.pop("recent", ())]
    return PeerRecord.construct(**FACTS | facts, recent=listed)


ALAN = {"name": "alan", "peer_id": "B"}


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 1000.0):
        self.now = now

    def __call__(self) -> float:
        return self.now


def open_history(folder, clock=None, **changes):
    settings = {"run_id": "demo", "recipe_digest": "d1", "expiration_seconds": 30.0, **changes}
    return History(folder / "history.sqlite", clock=clock or Clock(), **settings)


@pytest.fixture
def history(tmp_path):
    with_clock = open_history(tmp_path)
    yield with_clock
    with_clock.close()


def begin(history):
    """Ada and Alan join."""
    history.observe([Report(status="joining", loss=None), Report(status="joining", loss=None, **ALAN)])


def test_epoch_is_the_mean_weighted_by_samples(history):
    begin(history)
    history._clock.now += 5
    alan = Report(epoch=1, samples=10, loss=4.0, samples_per_second=2.5, time=1, **ALAN)
    history.observe([Report(epoch=1, samples=30, loss=1.0, time=1), alan])
    assert history.epochs() == [
        {"epoch": 1, "time": 1005.0, "loss": 1.75, "active_peers": 2, "samples": 40, "samples_per_second": 7.5}
    ]


def test_samples_of_an_epoch_are_those_since_the_last_one(history):
    """Whether or not the peer renewed its record in between."""
    begin(history)
    history.observe([Report(epoch=1, samples=30, loss=1.0, time=1)])
    history.observe([Report(epoch=1, samples=45, loss=1.0, time=2)])
    history.observe([Report(epoch=2, samples=50, loss=0.5, time=3)])
    assert [(row["epoch"], row["samples"]) for row in history.epochs()] == [(1, 30), (2, 20)]
    assert history.total_samples() == 50


def test_late_report_joins_its_epoch_and_keeps_its_time(history):
    begin(history)
    ada, alan = Report(epoch=1, samples=10, loss=1.0, time=1), Report(epoch=1, samples=10, loss=2.0, time=1, **ALAN)
    history.observe([ada])
    history._clock.now += 3
    history.observe([ada, alan])
    (row,) = history.epochs()
    assert (row["time"], row["loss"], row["samples"]) == (1000.0, 1.5, 20)


def test_loss_that_is_no_number_counts_as_unknown(history):
    begin(history)
    ada = Report(epoch=1, samples=50, loss=float("nan"), time=1)
    history.observe([ada, Report(epoch=1, samples=10, loss=3.0, time=1, **ALAN)])
    assert history.epochs()[0]["loss"] == 3.0
    assert history.losses() == {"alan": [[1, 3.0]]}


def test_newcomer_takes_over_an_epoch_without_having_made_it(history):
    """It downloads the state of epoch 40; its samples count for epoch 41."""
    history.observe([Report(status="joining", loss=None)])
    history.observe([Report(epoch=40, samples=4, loss=None, time=1)])
    assert history.epochs() == []
    history.observe([Report(epoch=41, samples=24, loss=3.0, time=2)])
    assert [(row["epoch"], row["samples"]) for row in history.epochs()] == [(41, 24)]


def credit(history):
    return {volunteer["name"]: volunteer["samples"] for volunteer in history.leaderboard()}


def in_turn(folder, *turns, target_batch_size=100):
    """The credit of all after records that come one after the other; each epoch has 100 samples of all together."""
    with contextlib.closing(open_history(folder, target_batch_size=target_batch_size)) as history:
        for time, reports in enumerate(turns):
            history.observe([report.copy(update={"time": float(time)}) for report in reports])
        return credit(history), {row["epoch"]: row["samples"] for row in history.epochs()}


def honest(epochs, **who):
    """Alan's record after so many epochs of 60 samples."""
    recents = tuple((epoch, 3.0, 60, 0.0) for epoch in range(max(1, epochs - 63), epochs + 1))
    return Report(epoch=epochs, samples=60 * epochs, recent=recents, **{**ALAN, **who})


def test_no_epoch_counts_for_more_than_it_can_have_even_if_nobody_has_averaged(tmp_path):
    """Twice the samples of an epoch, with and without a list of epochs."""
    liar = [Report(epoch=e, samples=10**11 * e, recent=((e, 0.01, 10**10, 0.0),)) for e in range(4)]
    counted, epochs = in_turn(tmp_path / "lists", *([honest(e), liar[e]] for e in range(4)))
    assert counted == {"alan": 180, "ada": 200 * 3} and epochs == {1: 260, 2: 260, 3: 260}
    liar = [Report(epoch=e, samples=10**11 * e) for e in range(4)]
    counted, epochs = in_turn(tmp_path / "no list", *([honest(e), liar[e]] for e in range(4)))
    assert counted == {"alan": 180, "ada": 200 * 3} and epochs == {1: 260, 2: 260, 3: 260}


def test_a_total_without_epochs_counts_for_nothing(tmp_path):
    whole = [[honest(epoch)] for epoch in range(1, 31)]
    counted, _ = in_turn(tmp_path / "joins", *whole, [honest(30), Report(status="joining", loss=None, samples=10**9)])
    assert counted == {"alan": 1800, "ada": 0}
    counted, _ = in_turn(tmp_path / "trains", *whole, [honest(30), Report(epoch=30, samples=10**9)])
    assert counted == {"alan": 1800, "ada": 0}


def test_epochs_that_records_repeat_count_also_after_the_monitor_was_away(tmp_path):
    """The second comes while nobody watches."""
    ada = {"name": "ada", "peer_id": "A"}
    turns = [[honest(10)], [honest(74), honest(74, **ada)], [honest(75), honest(75, **ada)]]
    counted, _ = in_turn(tmp_path, *turns)
    assert counted == {"alan": 60 * 75, "ada": 60 * 65}


def test_epochs_missed_by_the_monitor_share_the_samples(history):
    history.observe([Report(epoch=3)])
    history.observe([Report(epoch=13, samples=200, time=1)])
    assert [(row["epoch"], row["samples"]) for row in history.epochs()] == [(13, 20)]
    assert history.total_samples() == 20


def recent(*epochs, samples=10, until=0.0):
    """Recent epochs of a record, a second apart."""
    return [RecentEpoch(epoch, float(epoch), samples, until - (epochs[-1] - epoch)) for epoch in epochs]


def test_epochs_that_ended_while_no_monitor_watched_are_told_afterwards(tmp_path):
    """Also those of a volunteer that came and of one that left meanwhile; nothing counts twice."""
    clock = Clock()
    with contextlib.closing(open_history(tmp_path, clock)) as history:
        begin(history)
        history.observe([Report(epoch=2, samples=20, time=1, recent=recent(1, 2, until=1)), Report(**ALAN)])
    clock.now = 2000.0
    with contextlib.closing(open_history(tmp_path, clock)) as history:
        ada = Report(epoch=6, samples=60, loss=6.0, time=900, recent=recent(1, 2, 3, 4, 5, 6, until=890))
        cy = Report(
            name="cy", peer_id="C", epoch=5, samples=900, time=800, recent=recent(1, 2, 4, 5, samples=30, until=791)
        )
        for _ in range(2):
            history.observe([ada, cy])
        rows = history.epochs()
        assert {row["epoch"]: row["samples"] for row in rows} == {1: 10, 2: 10, 3: 10, 4: 40, 5: 40, 6: 10}
        assert [row["time"] for row in rows[2:]] == [1987.0, 1988.0, 1989.0, 1990.0]
        assert [row["loss"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert history.total_samples() == 60 + 60
        history.observe(
            [ada.copy(update=dict(epoch=7, samples=75, time=901, recent=recent(4, 5, 6, 7, samples=15, until=901)))]
        )
        assert history.last_epoch()["samples"] == 15 and len(history.branches()) == 1


@settings(deadline=None, max_examples=30)
@given(
    given_in_epochs=st.lists(st.lists(st.integers(1, 50), min_size=2, max_size=2), min_size=1, max_size=40),
    read_every=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_each_epoch_has_exactly_the_samples_that_were_given_however_rarely_it_is_read(
    tmp_path_factory, given_in_epochs, read_every
):
    history = open_history(tmp_path_factory.mktemp("history"))
    begin(history)
    epoch, reads = 0, itertools.cycle(read_every)
    while epoch < len(given_in_epochs):
        epoch = min(len(given_in_epochs), epoch + next(reads))
        history.observe(
            [
                Report(
                    **peer,
                    epoch=epoch,
                    samples=sum(row[number] for row in given_in_epochs[:epoch]),
                    time=epoch,
                    recent=tuple((at + 1, 2.0, given_in_epochs[at][number], at + 1.0) for at in range(epoch))[-10:],
                )
                for number, peer in enumerate(({}, ALAN))
            ]
        )
    assert [row["samples"] for row in history.epochs()] == [sum(row) for row in given_in_epochs]
    history.close()


def test_since_gives_only_later_epochs(history):
    for epoch in range(6):
        history.observe([Report(epoch=epoch, samples=epoch, time=epoch)])
    assert [row["epoch"] for row in history.epochs(since=3)] == [4, 5]


def test_unrenewed_record_means_gone_though_it_still_lies_there(history):
    report = Report()
    history.observe([report])
    history._clock.now += 29
    history.observe([report])
    assert history.active_peers() == 1
    history._clock.now += 2
    history.observe([report])
    assert history.active_peers() == 0
    assert [(event["kind"], event["name"]) for event in history.events()] == [("joined", "ada"), ("left", "ada")]
    assert history.leaderboard()[0]["active"] is False
    assert history.leaderboard()[0]["samples_per_second"] is None


def test_a_monitor_that_comes_back_does_not_claim_to_have_listened(tmp_path):
    """Alan left while it was off; Ada is heard again before her silence means anything."""
    clock = Clock()
    first = open_history(tmp_path, clock)
    begin(first)
    first.close()
    clock.now += 500
    second = open_history(tmp_path, clock)
    second.observe([])
    assert [event["kind"] for event in second.events()] == ["joined", "joined"]
    clock.now += 31
    second.observe([Report(epoch=1, samples=30, time=531)])
    assert [event["text"] for event in second.events()][2:] == ["was not seen again since the monitor was away"]
    assert second.events()[-1]["name"] == "alan"
    second.close()


def test_renewed_record_means_present_even_without_progress(history):
    for step in range(10):
        history._clock.now += 20
        history.observe([Report(time=float(step))])
    assert history.active_peers() == 1


def test_farewell_counts_at_once_and_only_once(history):
    history.observe([Report()])
    for _ in range(2):
        history.observe([Report(status="leaving", time=1.0)])
    history._clock.now += 100
    history.observe([])
    assert history.active_peers() == 0
    assert [event["kind"] for event in history.events()] == ["joined", "left"]


def test_volunteer_who_comes_back_continues_the_total(history):
    """Another machine of the same account takes part."""
    accounts = {"A": "invited:ada", "A2": "invited:ada"}
    history._clock.now += 20
    history.observe([Report(epoch=1, samples=100, time=1.0, recent=((1, 2.0, 100, 1.0, 20.0),))], accounts=accounts)
    history._clock.now += 60
    history.observe([])
    second = {"peer_id": "A2", "samples": 7, "recent": ((2, 2.0, 7, 2.0, 1.0),)}
    history.observe([Report(peer_id="A2", status="joining", loss=None, time=1.0)], accounts=accounts)
    history.observe([Report(epoch=2, time=2.0, **second)], accounts=accounts)
    (volunteer,) = history.leaderboard()
    assert len(volunteer.pop("page")) == 16
    assert volunteer == {
        "name": "ada",
        "peer_id": "A2",
        "samples": 107,
        "seconds": 21.0,
        "active": True,
        "last_seen": 1080.0,
        "samples_per_second": 5.0,
        "epochs": 2,
        "share": 1.0,
    }
    assert [event["kind"] for event in history.events()] == ["joined", "left", "joined"]


class Machine:
    """A volunteer's program on one machine: what its record says of the epochs since its start."""

    def __init__(self, name, number):
        self.name, self.peer_id = name, f"{name}{number}"
        self.start()

    def start(self):
        self.samples, self.ended = 0, []

    def end_epoch(self, epoch, samples):
        self.samples += samples
        self.ended.append(RecentEpoch(epoch, 2.0, samples, float(epoch)))

    def report(self, epoch, number):
        facts = {"name": self.name, "peer_id": self.peer_id, "epoch": epoch, "samples": self.samples}
        return Report(**facts, time=float(number), recent=self.ended[-64:])


steps = st.lists(
    st.tuples(
        st.sampled_from(["ada", "grace", "alan"]),
        st.sampled_from(["end epoch", "end epoch", "start again", "other machine"]),
        st.integers(1, 1000),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=50)
@given(steps=steps, reopen_every=st.integers(1, 10))
def test_totals_count_each_sample_once_over_restarts_of_all(tmp_path_factory, steps, reopen_every):
    """A sample counts on whichever machine its volunteer computed it; programs keep nothing over a restart."""
    folder = tmp_path_factory.mktemp("history")
    machines = {name: [Machine(name, 0)] for name in ("ada", "grace", "alan")}
    given_by, epoch = dict.fromkeys(machines, 0), 0
    history = open_history(folder)
    for number, (name, step, samples) in enumerate(steps):
        if step == "end epoch":
            epoch += 1
            machines[name][-1].end_epoch(epoch, samples)
            given_by[name] += samples
        elif step == "start again":
            machines[name][-1].start()
        else:
            machines[name].append(Machine(name, len(machines[name])))
        all_machines = [machine for own in machines.values() for machine in own]
        accounts = {machine.peer_id: f"invited:{machine.name}" for machine in all_machines}
        history._clock.now += 60
        history.observe([machine.report(epoch, number) for machine in all_machines], accounts=accounts)
        if number % reopen_every == 0:
            history.close()
            history = open_history(folder, Clock(history._clock.now))
    totals = {volunteer["name"]: volunteer["samples"] for volunteer in history.leaderboard()}
    assert totals == (given_by if steps else {})
    assert history.total_samples() == sum(totals.values())
    order = [volunteer["samples"] for volunteer in history.leaderboard()]
    assert order == sorted(order, reverse=True)
    history.close()


def test_long_run_is_thinned_to_weighted_means(history):
    samples = 0
    for epoch in range(101):
        history.observe([Report(epoch=epoch, loss=float(epoch), samples=samples, time=epoch)])
        samples += 1 + epoch % 2
    points = history.losses(max_points=50)["ada"]
    assert len(points) <= 51
    assert points[1] == [2, pytest.approx((2 * 2 + 3 * 1) / 3)]
    assert points[10] == [20, pytest.approx((20 * 2 + 21 * 1) / 3)]
    assert len(history.losses()["ada"]) == 100


def test_snapshot_of_an_epoch_replaces_the_earlier_one(history):
    circle = Shown(prompt="a red circle", file="000010/0.png", shape=True, colour=None)
    history.add_snapshot(10, [circle, replace(circle, prompt="a blue square")])
    history.add_snapshot(10, [replace(circle, shape=False)])
    history.add_snapshot(5, [])
    assert history.snapshots() == [
        {"epoch": 5, "time": 1000.0, "pictures": []},
        {
            "epoch": 10,
            "time": 1000.0,
            "pictures": [{"prompt": "a red circle", "file": "000010/0.png", "shape": False, "colour": None}],
        },
    ]


def test_a_loss_on_held_out_samples_comes_after_its_epoch(tmp_path):
    """Readers who know the run up to some epoch ask for what came since; a measurement takes its time."""
    clock = Clock()
    with contextlib.closing(open_history(tmp_path, clock)) as history:
        for epoch in range(1, 9):
            clock.now += 10
            history.observe([Report(epoch=epoch, samples=10 * epoch, time=epoch)])
            if epoch in (5, 8):
                history.add_held_out(epoch - 3, HeldOut(loss=epoch / 2, samples=3, tokens=30))
        history.add_held_out(5, HeldOut(loss=3.5, samples=4, tokens=40))
        history.add_clip_score(5, 0.25)
        both = history.held_out()
        assert both == [
            {"epoch": 2, "time": 1050.0, "loss": 2.5, "samples": 3, "tokens": 30, "clip_score": None},
            {"epoch": 5, "time": 1080.0, "loss": 3.5, "samples": 4, "tokens": 40, "clip_score": 0.25},
        ]
        since = {epoch: [one["epoch"] for one in history.held_out(epoch)] for epoch in (-1, 4, 5, 7, 8)}
        assert since == {-1: [2, 5], 4: [2, 5], 5: [5], 7: [5], 8: []}
        assert HistoryReader(tmp_path / "history.sqlite").held_out() == both


def test_one_writer_many_readers(tmp_path, history):
    history.observe([Report(epoch=1, samples=10, recent=recent(1))])
    assert HistoryReader(tmp_path / "history.sqlite").total_samples() == 10
    with pytest.raises(TrainingError, match="Another monitor"):
        open_history(tmp_path)


def test_history_of_another_recipe_is_refused(tmp_path):
    open_history(tmp_path).close()
    with pytest.raises(BadInput, match="recipe d1"):
        open_history(tmp_path, recipe_digest="d2")
    open_history(tmp_path).close()


def test_newer_version_and_foreign_files_are_refused(tmp_path):
    open_history(tmp_path).close()
    with sqlite3.connect(tmp_path / "history.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(BadInput, match="version 99"):
        HistoryReader(tmp_path / "history.sqlite")
    with pytest.raises(BadInput, match="version 99"):
        open_history(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "history.sqlite").write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(BadInput, match="no history"):
        open_history(tmp_path / "other")
    with pytest.raises(BadInput, match="no history"):
        HistoryReader(tmp_path / "missing.sqlite")


WRITER = """
import pathlib, sys
from tests.training.publish.history.test_history import Report, open_history
history = open_history(pathlib.Path(sys.argv[1]))
for number in range(10**9):
    said = {"epoch": number, "samples": number, "time": float(number)}
    history.observe([Report(**said), Report(name="alan", peer_id="B", **said)])
    print(number, flush=True)
"""


@pytest.mark.programs
def test_kill_loses_no_finished_observation_and_leaves_none_half_written(tmp_path, programs):
    writer = programs.start([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True)
    for line in writer.stdout:
        if int(line) >= 20:
            break
    writer.send_signal(signal.SIGKILL)
    said = [int(line) for line in writer.stdout]
    writer.wait()
    last_said = said[-1] if said else 20
    history = open_history(tmp_path)
    assert history.epochs()[-1]["epoch"] in (last_said, last_said + 1)
    assert len(history.epochs()) == history.epochs()[-1]["epoch"]
    assert all(row["samples"] == 2 for row in history.epochs())
    assert len({volunteer["samples"] for volunteer in history.leaderboard()}) == 1
    with sqlite3.connect(tmp_path / "history.sqlite") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    history.close()


def test_a_full_disk_loses_one_observation_and_no_more(history):
    """SQLite's own limit of pages stands for the disk; the writing thread and the monitor know the error."""
    connection = history._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(TrainingError, match="full"):
        history.set_run_value("long", "x" * 100_000)
    connection.execute("PRAGMA max_page_count = 100000")
    history.set_run_value("long", "y")
    assert history.run_value("long") == "y"


def test_epochs_that_a_volunteer_ended_before_it_was_started_again_fill_the_gaps(history):
    """All left while no monitor watched, and came back with the weights that they had; epoch 4 is told by both."""
    begin(history)
    before = Report(epoch=2, samples=20, time=100, recent=recent(1, 2, until=99))
    history.observe([before, before.copy(update=ALAN)])
    history.observe(
        [Report(status="joining", samples=40, time=200), Report(status="joining", samples=40, time=200, **ALAN)]
    )
    assert [row["epoch"] for row in history.epochs()] == [1, 2]
    back = Report(epoch=4, samples=40, loss=None, time=210, recent=recent(1, 2, 3, 4, until=195))
    history.observe([back, back.copy(update={**ALAN, "recent": recent(1, 2, 4, until=195)})])
    told = {row["epoch"]: (row["samples"], row["time"]) for row in history.epochs()}
    assert told == {1: (20, 998.0), 2: (20, 999.0), 3: (10, 984.0), 4: (20, 985.0)}
    history.observe([Report(epoch=5, samples=50, time=220, recent=recent(5, until=219))])
    assert [(row["epoch"], row["samples"]) for row in history.epochs()][-2:] == [(4, 20), (5, 10)]
    assert history.total_samples() == 80 and len(history.branches()) == 1
