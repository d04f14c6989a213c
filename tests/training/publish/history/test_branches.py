"""A run that goes back to an earlier epoch: no epoch has samples of two trainings, and nothing is deleted."""

from __future__ import annotations

import pytest

from tests.training.publish.history.test_history import ALAN, Clock, Report, open_history
from training.errors import BadInput
from training.publish.showcase import Shown
from training.recipe import parse_recipe, read_recipe
from training.tasks.held_out import HeldOut

OLD, NEW, FOREIGN = "a" * 16, "b" * 16, "c" * 16
GRACE = {"name": "grace", "peer_id": "G"}
EXPIRATION_SECONDS = 30.0


class Played:
    """A history in which peers do epochs of ten samples each."""

    def __init__(self, folder):
        self.folder, self.clock, self.samples = folder, Clock(), {}
        self.history = open_history(folder, self.clock, expiration_seconds=EXPIRATION_SECONDS)

    def say(self, peer, epoch, *, status="training", samples=0, lineage=None, recent=()):
        """One record; `samples` are new."""
        self.clock.now += 1
        self.samples[peer["name"]] = self.samples.get(peer["name"], 0) + samples
        told = {"samples": self.samples[peer["name"]], "time": self.clock.now, "lineage": lineage, "recent": recent}
        self.history.observe([Report(**peer, epoch=epoch, status=status, loss=2.0, **told)])

    def come(self, *peers, epoch=0, lineage=None):
        for peer in peers:
            self.say(peer, 0, status="joining", lineage=lineage)
            self.say(peer, epoch, status="joining", lineage=lineage)

    def train(self, *peers, epochs, lineage=None):
        for epoch in epochs:
            for peer in peers:
                self.say(peer, epoch, samples=10, lineage=lineage)

    def all_die(self):
        self.clock.now += EXPIRATION_SECONDS + 1
        self.history.observe([])

    def restart(self):
        self.history.close()
        self.history = open_history(self.folder, self.clock, expiration_seconds=EXPIRATION_SECONDS)

    @property
    def shown(self):
        return [(row["epoch"], row["samples"]) for row in self.history.epochs()]

    @property
    def left(self):
        """What the run has gone back from: (branch, epoch, samples)."""
        return [
            (branch["number"], row["epoch"], row["samples"])
            for branch in self.history.branches()
            for row in branch["left"]
        ]


ADA = {"name": "ada", "peer_id": "A"}


@pytest.fixture
def played(tmp_path):
    played = Played(tmp_path)
    yield played
    played.history.close()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["watched", "the monitor was restarted meanwhile"])
def test_all_left_and_new_ones_go_on_from_the_checkpoint(played, is_restarted):
    """Seven epochs, a checkpoint of the fourth."""
    played.come(ADA, ALAN)
    played.train(ADA, ALAN, epochs=range(1, 8))
    played.all_die()
    if is_restarted:
        played.restart()
    assert played.shown[-1] == (7, 20)
    played.come(GRACE, ADA, epoch=4)
    played.train(GRACE, ADA, epochs=[5])
    assert played.shown == [(1, 20), (2, 20), (3, 20), (4, 20), (5, 20)]
    played.train(GRACE, ADA, epochs=[6, 7, 8])
    assert played.shown[4:] == [(5, 20), (6, 20), (7, 20), (8, 20)]
    assert played.left == [(1, 5, 20), (1, 6, 20), (1, 7, 20)]
    assert played.history.total_samples() == 20 * 7 + 20 * 4  # whoever gave them keeps the credit
    _, resumed = played.history.branches()
    assert (resumed["kind"], resumed["parent_epoch"], resumed["current"]) == ("resumed", 4, True)
    (event,) = [event for event in played.history.events() if event["kind"] == "branch"]
    assert "go on from epoch 4" in event["text"]


def test_epochs_that_the_monitor_missed_after_all_came_back_are_not_those_of_before(played):
    played.come(ADA)
    played.train(ADA, epochs=range(1, 8))
    played.all_die()
    played.come(ADA, epoch=4)
    played.say(ADA, 6, samples=20)
    assert played.shown[3:] == [(4, 10), (6, 10)]


def test_samples_that_were_lost_with_their_epoch_count_for_no_later_one(played):
    """The monitor missed the last epoch before all went back."""
    played.come(ADA)
    played.train(ADA, epochs=[1, 2])
    played.samples["ada"] += 10
    played.come(ADA, epoch=1)
    played.train(ADA, epochs=[2])
    assert played.shown == [(1, 10), (2, 10)]


def test_the_same_volunteer_with_the_same_folder_trains_again_what_was_lost(played):
    """Killed and started again within the time in which its record counts."""
    played.come(ADA)
    played.train(ADA, epochs=range(1, 8))
    played.come(ADA, epoch=4)
    played.train(ADA, epochs=[5, 6])
    assert played.shown[3:] == [(4, 10), (5, 10), (6, 10)] and played.left == [(1, 5, 10), (1, 6, 10), (1, 7, 10)]


def test_who_is_late_and_who_has_just_come_begin_no_branch(played):
    played.come(ADA, ALAN)
    played.train(ADA, ALAN, epochs=[1, 2])
    played.train(ADA, epochs=[3])
    played.come(GRACE, epoch=2)
    played.train(GRACE, ALAN, epochs=[3])
    assert played.shown == [(1, 20), (2, 20), (3, 30)]
    assert len(played.history.branches()) == 1


def test_whoever_is_left_when_the_first_one_dies_begins_no_branch(played):
    played.come(ADA, ALAN)
    played.train(ADA, ALAN, epochs=[1, 2])
    played.train(ADA, epochs=[3])
    played.say(ADA, 3, status="leaving")
    played.train(ALAN, epochs=[3, 4])
    assert played.shown == [(1, 20), (2, 20), (3, 20), (4, 10)]
    assert len(played.history.branches()) == 1


def test_nothing_was_stored_so_the_run_begins_anew(played):
    played.come(ADA)
    played.train(ADA, epochs=[1, 2, 3])
    played.all_die()
    played.come(ALAN)
    played.train(ALAN, epochs=[1])
    assert played.shown == [(1, 10)] and [epoch for _, epoch, _ in played.left] == [1, 2, 3]


def test_who_was_cut_off_and_is_further_wins_over_those_who_resumed(played):
    """The monitor lost sight of two volunteers; a third one resumed the run beside it, until all found each other."""
    played.come(ADA, ALAN)
    played.train(ADA, ALAN, epochs=range(1, 8))
    played.all_die()
    played.come(GRACE, epoch=4)
    played.train(GRACE, epochs=[5, 6])
    assert played.shown[4:] == [(5, 10), (6, 10)]
    played.say(ADA, 9, samples=20)  # what it did meanwhile
    played.say(GRACE, 9)  # has downloaded its state
    played.train(ADA, ALAN, GRACE, epochs=[10])
    assert [epoch for epoch, _ in played.shown] == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert played.shown[4:7] == [(5, 20), (6, 20), (7, 20)] and played.shown[-1][0] == 10
    assert [(epoch, samples) for _, epoch, samples in played.left] == [(5, 10), (6, 10)]


def test_a_maintainer_goes_back(played):
    """Two volunteers; one of them has not heard of it yet. Pictures of the old branch stay with it."""
    played.history.enter_lineage(OLD)
    played.come(ADA, ALAN, lineage=OLD)
    played.train(ADA, ALAN, epochs=range(1, 7), lineage=OLD)
    for epoch in (2, 6):
        played.history.add_held_out(epoch, HeldOut(loss=1.0 / epoch, samples=1, tokens=9), lineage=OLD)
        played.history.add_snapshot(epoch, [Shown(prompt="a", file=f"{epoch}.png", shape=None, colour=None)])
    played.history.enter_lineage(NEW, [(OLD, 3)])
    assert played.history.last_epoch()["epoch"] == 3
    played.come(ADA, epoch=3, lineage=NEW)
    played.train(ADA, epochs=[4], lineage=NEW)
    played.train(ALAN, epochs=[7], lineage=OLD)
    assert played.shown == [(1, 20), (2, 20), (3, 20), (4, 10)]
    assert played.left == [(1, 4, 20), (1, 5, 20), (1, 6, 20), (1, 7, 10)]
    assert [snapshot["epoch"] for snapshot in played.history.snapshots()] == [2]
    played.history.add_held_out(7, HeldOut(loss=0.1, samples=1, tokens=9), lineage=OLD)
    played.history.add_held_out(4, HeldOut(loss=0.4, samples=1, tokens=9), lineage=NEW)
    assert [(one["epoch"], one["loss"]) for one in played.history.held_out()] == [(2, 0.5), (4, 0.4)]
    assert played.history.losses()["alan"] == [[1, 2.0], [2, 2.0], [3, 2.0]]
    _, restored = played.history.branches()
    assert (restored["kind"], restored["lineage"], restored["parent_epoch"]) == ("restored", NEW, 3)
    assert [event["text"] for event in played.history.events() if event["kind"] == "branch"] == [
        "has gone back to epoch 3; what was trained after it is kept as a branch"
    ]
    played.history.enter_lineage(NEW, [(OLD, 3)])
    played.restart()
    assert len(played.history.branches()) == 2 and played.shown[-1] == (4, 10)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_a_banned_peer_claimed_of_epochs_before_a_maintainer_went_back_is_dropped(played, is_restarted):
    """Its own only, and not what it did before; the others keep the credit for what they have computed."""
    played.history.enter_lineage(OLD)
    played.come(ADA, ALAN, GRACE, lineage=OLD)
    played.train(ADA, ALAN, GRACE, epochs=range(1, 4), lineage=OLD)
    played.train(ADA, epochs=[4], lineage=OLD)
    for epoch in range(4, 7):
        played.say(ALAN, epoch, samples=10**9, lineage=OLD)
    played.history.observe([], banned={"C", "invited:alan"})  # nobody goes back yet, nor is this peer banned
    played.history.observe([], banned={ALAN["peer_id"]})
    assert played.history.total_samples() == 3 * 30 + 10 + 3 * 10**9
    played.history.enter_lineage(NEW, [(OLD, 3)])
    if is_restarted:
        played.restart()
    late = Report(**ALAN, epoch=7, samples=4 * 10**9, lineage=OLD, time=99.0)
    for _ in range(2):
        played.history.observe([late], banned={ALAN["peer_id"], "invited:alan"})
    credit = {one["name"]: (one["samples"], one["epochs"], one["active"]) for one in played.history.leaderboard()}
    assert credit == {"ada": (40, 4, True), "alan": (30, 3, False), "grace": (30, 3, True)}
    assert played.shown == [(1, 30), (2, 30), (3, 30)] and played.left == [(1, 4, 10)]
    assert played.history.losses()["alan"] == [[1, 2.0], [2, 2.0], [3, 2.0]]
    dropped = [event["text"] for event in played.history.events() if event["name"] == "alan"][-1]
    assert dropped.startswith(f"is banned; {3 * 10**9} samples")
    # Whose ban is lifted begins where it was.
    played.samples["alan"] = 30
    played.come(ADA, ALAN, epoch=3, lineage=NEW)
    played.train(ADA, ALAN, epochs=[4], lineage=NEW)
    assert played.history.total_samples() == 40 + 30 + 30 + 20


def test_a_foreign_lineage_counts_for_nothing(played):
    played.history.enter_lineage(OLD)
    played.come(ADA, lineage=OLD)
    played.train(ADA, epochs=[1], lineage=OLD)
    played.come(ALAN, lineage=FOREIGN)
    played.train(ALAN, epochs=[1, 2, 3], lineage=FOREIGN)
    assert played.shown == [(1, 10)] and played.history.total_samples() == 10


def test_a_history_is_of_the_recipe_that_it_has_kept_whatever_its_digest_was(tmp_path):
    """A later version of this program may count other fields in a recipe's digest."""
    recipe = read_recipe("demo")
    history = open_history(tmp_path, recipe_digest="0123456789abcdef")
    history.set_run_value("recipe.toml", recipe)
    history.close()
    open_history(tmp_path, recipe_digest=parse_recipe(recipe).digest).close()
    with pytest.raises(BadInput, match="give another folder"):
        open_history(tmp_path, recipe_digest="fedcba9876543210")
