"""A run that is more than those who train it now: all volunteers leave and others come; a maintainer goes back."""

from __future__ import annotations

import signal
import sys
from collections import Counter

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.programs import run_program, until
from tests.training.roles import test_peer
from training.checkpoints.checkpoint import checkpoint_epoch, list_checkpoints, load_checkpoint
from training.publish.history.history import HistoryReader
from training.swarm.run.lineage import read_kept

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]
shards = test_peer.shards

EVERY = 4
"""Epochs between two checkpoints."""


class StoredRun(test_peer.Run):
    """A run with a monitor."""

    def __init__(self, folder, shards, programs):
        super().__init__(folder, shards, programs)
        self.recipe.write_text(
            test_peer.tiny_recipe(
                **{
                    "metrics_every_seconds = 3.0": "metrics_every_seconds = 0.5",
                    "max_epochs_alone = 10": "max_epochs_alone = 0",
                    "checkpoint_every_epochs = 10": f"checkpoint_every_epochs = {EVERY}\nkeep_last = 100",
                    "prompts = [": "other_prompts = [",
                }
            ).partition("other_prompts")[0]
        )
        self.run_dir = folder / "run"
        self.port = free_port()
        self.site = f"http://127.0.0.1:{self.port}"

    def monitor(self, name="monitor"):
        where = ("--run-dir", str(self.run_dir), "--port", str(self.port))
        monitor = self.start(name, "monitor", "--recipe", str(self.recipe), "--initial-peers", self.address, *where)
        self.event(name, "ready")
        return monitor

    def come(self, name, *arguments):
        """A volunteer that knows the run's site."""
        return self.join(name, *arguments, recipe=f"{self.site}/recipe.toml")

    def document(self, name):
        return httpx.get(f"{self.site}/live/{name}.json", timeout=10).json()

    @property
    def epochs(self):
        """From the file: the API may send a document that is half a second old."""
        return {row["epoch"]: row["samples"] for row in HistoryReader(self.run_dir / "history.sqlite").epochs()}

    def kept_epoch(self, name):
        """Epoch of the weights that a volunteer has kept, when there are any."""
        return checkpoint_epoch(until(lambda: list_checkpoints(self.folder / name / "kept"))[-1])

    @property
    def server_epoch(self):
        """The epoch that the bootstrap peer remembers."""
        return read_kept(self.folder / "bootstrap").epoch

    @property
    def checkpoints(self):
        return [checkpoint_epoch(path) for path in list_checkpoints(self.run_dir / "checkpoints")]


@pytest.fixture
def run(tmp_path, shards):
    with test_peer.begun(StoredRun, tmp_path, shards) as run:
        yield run


def end(*programs):
    for program in programs:
        program.send_signal(signal.SIGTERM)
    assert [program.wait(20) for program in programs] == [0] * len(programs)


def test_all_volunteers_leave_and_others_come_and_the_maintainer_goes_back(run):
    """The monitor is restarted while nobody is there. One volunteer knows the run's site, another one does not."""
    monitor = run.monitor()
    ada, grace = run.come("ada"), run.come("grace")
    lineage = run.event("ada", "joined")["lineage"]
    until(lambda: run.checkpoints and max(run.epochs, default=0) >= run.checkpoints[-1] + 2, within=120)
    end(ada, grace)
    until(lambda: run.document("state")["active_peers"] == 0)
    before, stored = run.epochs, run.checkpoints[-1]
    assert max(before) > stored >= EVERY
    end(monitor)
    monitor = run.monitor("monitor again")

    barbara, edsger = run.come("barbara"), run.join("edsger")
    joined = run.event("barbara", "joined")
    assert (joined["epoch"], joined["state"]) == (stored, f"the checkpoint epoch-{stored:06d}")
    assert joined["lineage"] == lineage
    assert "nobody who has its weights is here" in run.log("edsger")
    assert run.event("edsger", "joined")["state"] == "the state of another peer"
    assert run.event("edsger", "joined")["epoch"] >= stored
    until(lambda: len(run.document("history")["branches"]) == 2 and run.document("state")["epoch"] >= stored + 3)
    assert_only_by(run, ["barbara", "edsger"], since=stored)
    after = run.epochs
    assert {epoch: after[epoch] for epoch in after if epoch <= stored} == {e: before[e] for e in before if e <= stored}
    first, resumed = run.document("history")["branches"]
    assert {row["epoch"]: row["samples"] for row in first["left"]} == {e: before[e] for e in before if e > stored}
    assert (resumed["kind"], resumed["parent_epoch"]) == ("resumed", stored)
    go_back(run, lineage, barbara, edsger, to=stored)


def test_all_volunteers_leave_and_come_back_while_the_monitor_is_away(run):
    """They go on with the weights that they have kept, of the epoch at which they left, and train together."""
    monitor = run.monitor()
    names = ("ada", "grace")
    volunteers = [run.come(name) for name in names]
    for name in names:
        run.event(name, "epoch", number=3, senders=2)
    end(*volunteers)
    end(monitor)
    left = {name: run.event(name, "stopped")["epoch"] for name in names}
    kept = {name: [checkpoint_epoch(path) for path in list_checkpoints(run.folder / name / "kept")] for name in names}
    # Who made its last update alone, since the other one had left, has no weights of the run to keep.
    assert any(kept[name] == [left[name]] for name in names), (kept, left)
    volunteers = [run.join(name) for name in names]
    for name in names:
        joined = run.event(name, "joined", number=2)
        assert joined["epoch"] >= min(left.values())
        assert joined["state"] in (f"the weights of epoch {left[name]} that it had kept", "the state of another peer")
    known = len(run.events("ada", "epoch"))
    assert run.event("ada", "epoch", number=known + 2, senders=2)["epoch"] > max(left.values())
    end(*volunteers)


@pytest.mark.parametrize("has_monitor", [False, True], ids=["no monitor", "a monitor"])
def test_a_run_of_which_all_machines_lose_power_goes_on_from_the_newest_state_that_one_of_them_has(run, has_monitor):
    """Eve, who came later, has kept newer weights than Ada. The bootstrap peer remembers an epoch that nobody has, and
    no volunteer knows the site of the monitor, which has a checkpoint."""
    programs = [run.first, *([run.monitor()] if has_monitor else [])]
    programs.append(run.join("ada"))
    older = run.event("ada", "epoch", number=8)["epoch"] - 7
    programs.append(run.join("eve"))
    run.event("eve", "epoch", number=6)
    newest = run.kept_epoch("eve")
    until(lambda: run.server_epoch > newest + 3)
    for program in programs:
        program.kill()
    assert older <= run.kept_epoch("ada") < newest == run.kept_epoch("eve") < run.server_epoch - 3
    remembered = run.server_epoch

    run.bootstrap()
    if has_monitor:
        run.monitor("monitor again")
    known = len(run.events("ada", "epoch"))
    volunteers = [run.join(name) for name in ("ada", "eve")]
    eve, ada = run.event("eve", "joined", number=2), run.event("ada", "joined", number=2)
    assert (eve["epoch"], eve["state"]) == (newest, f"the weights of epoch {newest} that it had kept")
    assert ada["epoch"] >= newest and ada["state"] == "the state of another peer"
    assert f"The run is at epoch {remembered} as the run's servers remember it" in run.log("eve")
    assert run.event("ada", "epoch", number=known + 2, senders=2)["epoch"] > newest
    if has_monitor:
        until(lambda: max(run.epochs) > remembered)
    end(*volunteers)


def assert_only_by(run, names, *, since, after=0.0):
    """All samples of the epochs since one are those that these volunteers have given after a moment."""
    assert all(points[-1][0] <= since for name, points in run.document("losses")["peers"].items() if name not in names)
    counted = {epoch: samples for epoch, samples in run.epochs.items() if epoch > since}
    counted.pop(max(counted))  # the last one may not have been told by all
    given = Counter()
    for event in (event for name in names for event in run.events(name, "epoch") if event["time"] > after):
        given[event["epoch"]] += event["samples"]
    assert counted and counted == {epoch: given[epoch] for epoch in counted}


def go_back(run, lineage, *volunteers, to):
    """The two that train go over to the branch in the same processes, from the checkpoint.

    One of them knows only the bootstrap peer, so that has to announce the branch as well.
    """
    later = [epoch for epoch in run.checkpoints if epoch > to]
    command = [sys.executable, "-m", "training", "restore", "--run-dir", run.run_dir, "--to"]
    wrong = run_program([*command, str(to + 1)])
    assert wrong.returncode == 2 and f"has no checkpoint of epoch {to + 1}" in wrong.stderr
    last = run.document("state")["epoch"]
    done = run_program([*command, str(to), "--state-dir", run.folder / "bootstrap"])
    assert done.returncode == 0, done.stderr
    assert f"The run goes back to epoch {to}" in done.stdout
    assert done.stdout.count("is running and announces it") == 2
    for name in ("barbara", "edsger"):
        branch = run.event(name, "branch")
        joined = run.event(name, "joined", number=2)
        assert joined["lineage"] == branch["lineage"] != lineage and joined["epoch"] >= branch["epoch"] == to
        assert f"The run's maintainer has gone back to epoch {to}" in run.log(name)
    assert run.events("monitor again", "branch")[0]["lineage"] == branch["lineage"]
    until(lambda: run.document("history")["branches"][-1]["current"] and to + 2 <= run.document("state")["epoch"])
    assert_only_by(run, ["barbara", "edsger"], since=to, after=branch["time"])
    restored = run.document("history")["branches"][-1]
    assert (restored["kind"], restored["parent_epoch"], restored["lineage"]) == ("restored", to, branch["lineage"])
    assert last in [row["epoch"] for row in run.document("history")["branches"][1]["left"]]
    assert "branch" in [event["kind"] for event in run.document("events")["events"]]
    aside = [int(path.name) for path in (run.run_dir / "branches" / lineage).glob("*")]
    assert set(later) <= set(aside) and min(aside) > to
    assert load_checkpoint(run.run_dir / "checkpoints" / f"epoch-{to:06d}").lineage == branch["lineage"]
    end(*volunteers)
