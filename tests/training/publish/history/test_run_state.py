"""How a run stands, with cause and remedy, by what the history holds and what its monitor sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.training.publish.history.test_history import Report
from training.publish.history.run_state import (
    STATUSES,
    Facts,
    Sight,
    Watched,
    groups_of,
    most_apart,
    state_of_run,
)

NOON = 1_795_348_800.0  # 22 November 2026, 12:00 UTC


def rows(*, count=20, every=10.0, speed=60.0, ended_at=NOON):
    """Epochs of a run of 3 volunteers."""
    return [
        {"epoch": n, "time": ended_at - every * (count - n), "samples_per_second": speed, "active_peers": 3}
        for n in range(1, count + 1)
    ]


def volunteers(*epochs, status="training", lineage=None):
    return tuple(
        Report(name=f"v{place}", status=status, epoch=epoch, lineage=lineage) for place, epoch in enumerate(epochs)
    )


SIGHT = Sight(since=NOON - 500, volunteers=volunteers(20, 20, 20), answered_at=NOON)
RUNNING = Facts(
    now=NOON + 5,
    total_epochs=400,
    epochs=rows(),
    active_peers=3,
    samples_per_second=60.0,
    last_seen=NOON + 4,
    watched=Watched(state="watching", since=NOON - 500, at=NOON),
    sight=SIGHT,
)
EMPTY = replace(RUNNING, active_peers=0, samples_per_second=None, sight=replace(SIGHT, volunteers=()))
TWO_GROUPS = groups_of(volunteers(20, 20, 9), most_apart=5)
TWO_LINEAGES = groups_of(volunteers(20, lineage="a" * 16) + volunteers(20, lineage="b" * 16), most_apart=5)

CASES = {
    "trains": (RUNNING, "running", "", ""),
    "trains, its monitor unknown": (replace(RUNNING, sight=None, watched=None), "running", "", ""),
    "first epoch": (replace(RUNNING, epochs=()), "running", "", ""),
    "last epoch": (replace(RUNNING, total_epochs=20), "finished", "", ""),
    "nobody ever": (replace(EMPTY, epochs=(), last_seen=None), "waiting", "No volunteer has joined yet", "join page"),
    "nobody now": (
        EMPTY,
        "waiting",
        "No volunteer is there since 22 November 2026 at 12:00 UTC",
        "as soon as somebody",
    ),
    "nobody since the monitor is back": (
        replace(EMPTY, last_seen=NOON - 600),
        "waiting",
        "has seen no volunteer since. Those of before have left, or have not found the run's servers again",
        "call the servers again",
    ),
    "all look for weights": (
        replace(RUNNING, sight=replace(SIGHT, volunteers=volunteers(0, 0, status="joining"))),
        "waiting",
        "v0 and v1 have come and look for the weights of epoch 20",
        "on the disk of a volunteer who was there before",
    ),
    "the first volunteer comes": (
        replace(RUNNING, epochs=(), sight=replace(SIGHT, volunteers=volunteers(0, status="joining"))),
        "running",
        "",
        "",
    ),
    "the history was damaged": (
        replace(RUNNING, sight=replace(SIGHT, mended="The history is damaged: it is empty.")),
        "running",
        "The history is damaged: it is empty.",
        "Look at the disk",
    ),
    "one waits alone": (
        replace(RUNNING, active_peers=1, sight=replace(SIGHT, volunteers=volunteers(20, status="waiting"))),
        "waiting",
        "v0 waits for others",
        "A second volunteer is enough",
    ),
    "one waits, one pauses": (
        replace(
            RUNNING,
            active_peers=2,
            sight=replace(
                SIGHT, volunteers=(*volunteers(20, status="waiting"), Report(name="p", status="paused", epoch=20))
            ),
        ),
        "waiting",
        "v0 waits for others",
        "A second volunteer is enough",
    ),
    "all pause": (
        replace(RUNNING, active_peers=2, sight=replace(SIGHT, volunteers=volunteers(20, 19, status="paused"))),
        "waiting",
        "v0 and v1 pause: by choice, by the hours, or because",
        "They go on by themselves",
    ),
    "one waits, one trains": (
        replace(
            RUNNING,
            sight=replace(SIGHT, volunteers=(*volunteers(20), Report(name="w", status="waiting", epoch=20))),
        ),
        "running",
        "",
        "",
    ),
    "membership server away": (
        replace(RUNNING, sight=replace(SIGHT, members_server_away_since=NOON)),
        "running",
        "The membership server has not answered since 22 November 2026 at 12:00 UTC",
        "Start the membership server again",
    ),
    "loss too high": (
        replace(
            RUNNING, sight=replace(SIGHT, loss_fault="its loss is 40, and 4 before its last checkpoint", saved_epoch=9)
        ),
        "failed",
        "Something is wrong with the run: its loss is 40, and 4 before its last checkpoint. No checkpoint is taken",
        "go back to its last checkpoint (restore --to 9)",
    ),
    "loss too high without a checkpoint": (
        replace(RUNNING, sight=replace(SIGHT, loss_fault="its loss is 40, and 4 in the last 20 epochs")),
        "failed",
        "its loss is 40",
        "begin anew (restore --to 0)",
    ),
    "epoch overdue": (
        replace(RUNNING, now=NOON + 61, sight=replace(SIGHT, answered_at=NOON + 61)),
        "slow",
        "No epoch was finished for 61 s; usually one takes 10 s",
        "a volunteer's terminal says why",
    ),
    "epoch nearly overdue": (
        replace(RUNNING, now=NOON + 59, sight=replace(SIGHT, answered_at=NOON + 59)),
        "running",
        "",
        "",
    ),
    "far below its speed": (
        replace(
            RUNNING,
            epochs=rows()[:-3] + [{**row, "samples_per_second": 15.0} for row in rows()[-3:]],
            samples_per_second=12.0,
            active_peers=1,
        ),
        "slow",
        "12 samples per second, 20 % of its usual 60; 1 volunteer is there, usually 3",
        "More volunteers",
    ),
    "far below a speed of thousands": (
        replace(
            RUNNING,
            epochs=[{**row, "samples_per_second": 3200.0} for row in rows()[:-3]]
            + [{**row, "samples_per_second": 400.0} for row in rows()[-3:]],
            samples_per_second=400.0,
        ),
        "slow",
        "400 samples per second, 12 % of its usual 3\u202f200; 3 volunteers are there, usually 3",
        "More volunteers",
    ),
    "slow for a moment": (replace(RUNNING, samples_per_second=12.0), "running", "", ""),
    "two groups": (
        replace(RUNNING, sight=replace(SIGHT, groups=TWO_GROUPS, apart_since=NOON - 30)),
        "split",
        "in 2 groups that do not meet: v0 and v1 at epoch 20; v2 at epoch 9",
        "find each other within a minute",
    ),
    "two groups for a moment": (
        replace(RUNNING, sight=replace(SIGHT, groups=TWO_GROUPS, apart_since=NOON)),
        "running",
        "",
        "",
    ),
    "two lineages": (
        replace(RUNNING, sight=replace(SIGHT, groups=TWO_LINEAGES, apart_since=NOON - 30)),
        "split",
        "2 different runs of the same name",
        "join again",
    ),
    "nobody meets": (
        replace(RUNNING, sight=replace(SIGHT, volunteers=volunteers(20, 20), unmet=volunteers(20, 20))),
        "split",
        "v0 and v1 do not reach each other: each of them trains a model of its own",
        "python -m training doctor with the same recipe",
    ),
    "one meets nobody": (
        replace(RUNNING, sight=replace(SIGHT, volunteers=volunteers(20, 20, 20), unmet=volunteers(20))),
        "running",
        "v0 averages with nobody, because the others are out of reach; it trains a model of its own",
        "one needs an open port",
    ),
    "two meet nobody": (
        replace(RUNNING, sight=replace(SIGHT, volunteers=volunteers(20, 20, 20, 20), unmet=volunteers(20, 20))),
        "running",
        "v0 and v1 average with nobody, because the others are out of reach; they train on their own",
        "one needs an open port",
    ),
    "full disk": (
        replace(
            RUNNING, sight=replace(SIGHT, fault="The history cannot be written: disk full.", fault_cure="Make room.")
        ),
        "failed",
        "The history cannot be written",
        "Make room",
    ),
    "DHT silent": (
        replace(RUNNING, now=NOON + 31),
        "failed",
        "DHT node has not answered for 31 s",
        "start the monitor again",
    ),
    "DHT never answered": (
        replace(EMPTY, sight=Sight(since=NOON - 40), now=NOON, last_seen=None, epochs=()),
        "failed",
        "has not answered for 40 s",
        "start the monitor again",
    ),
    "servers silent": (
        replace(EMPTY, sight=replace(SIGHT, volunteers=(), servers=2, servers_silent_seconds=90)),
        "failed",
        "None of the run's 2 servers has answered the monitor for 90 s",
        "Start the bootstrap peer again",
    ),
    "servers silent, volunteers there": (
        replace(RUNNING, sight=replace(SIGHT, servers=2, servers_silent_seconds=90)),
        "running",
        "",
        "",
    ),
    "stopped, pages open": (
        replace(RUNNING, watched=Watched(state="stopped", since=NOON - 500, at=NOON, volunteers=2)),
        "stopped",
        "stopped the monitor on purpose on 22 November 2026 at 12:00 UTC; 2 volunteers were there and may train on",
        "start the monitor again with the same --run-dir",
    ),
}


@pytest.mark.parametrize("facts, status, cause, remedy", CASES.values(), ids=CASES)
def test_state_of_a_live_run(facts, status, cause, remedy):
    state = state_of_run(facts)
    assert state.status == status
    assert cause in state.cause and bool(cause) == bool(state.cause)
    assert remedy in state.remedy and bool(remedy) == bool(state.remedy)


COPIES = {
    "finished": (Watched(state="watching", since=0, at=0), 20, "finished", ""),
    "stopped": (
        Watched(state="stopped", since=0, at=NOON),
        400,
        "stopped",
        "on purpose on 22 November 2026 at 12:00 UTC; no",
    ),
    "failed": (Watched(state="failed", since=0, at=NOON, cause="No space."), 400, "failed", "12:00 UTC: No space."),
    "killed": (
        Watched(state="watching", since=0, at=NOON - 60),
        400,
        "failed",
        "after 22 November 2026 at 12:00 UTC without",
    ),
    "of an earlier release": (None, 400, "stopped", ""),
}


@pytest.mark.parametrize("watched, total, status, cause", COPIES.values(), ids=COPIES)
def test_state_of_a_run_that_nobody_watches(watched, total, status, cause):
    facts = replace(RUNNING, watched=watched, is_watched=False, sight=None, total_epochs=total)
    state = state_of_run(facts, live=False)
    assert state.status == status
    assert cause in state.cause and bool(cause) == bool(state.cause)


def test_a_copy_of_a_run_that_goes_on_says_so():
    state = state_of_run(replace(RUNNING, sight=None), live=False)
    assert state.status == "stopped"
    assert "copy of the run" in state.cause


def test_every_status_is_reached():
    assert {case[1] for case in CASES.values()} == set(STATUSES)


def test_groups_are_those_who_can_average():
    names = [[one.name for one in group] for group in groups_of(volunteers(20, 18, 9, 8), most_apart=2)]
    assert names == [["v0", "v1"], ["v2", "v3"]]
    joining = Report(name="new", status="joining", epoch=0)
    assert len(groups_of((*volunteers(20, 20), joining), most_apart=2)) == 1
    assert groups_of((), most_apart=2) == ()


def test_old_records_do_not_split_a_fast_run():
    """In a run of 2 s per epoch, a record that is 10 s old is 5 epochs behind."""
    assert most_apart(rows(every=2.0), stale_seconds=10.0) >= 2 + 5
    assert most_apart(rows(every=60.0), stale_seconds=10.0) == 2
    assert most_apart([], stale_seconds=10.0) == 2
