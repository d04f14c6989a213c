"""A run goes on from the newest sound state that anybody holds, whatever was stopped, killed and started before."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.training.roles import test_peer
from tests.training.volunteer.world import SERVERS, World
from training.checkpoints.facts import damage_of
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints
from training.storage import whole

RECIPE = test_peer.tiny_recipe(**{"total_epochs = 400": "total_epochs = 100000"})
VOLUNTEERS = ("ada", "eve")
PROGRAMS = (*SERVERS, *VOLUNTEERS)
UP_AGAIN_SECONDS = 120.0


class Stops(RuleBasedStateMachine):
    """Stops, kills and starts of any programs, in any order and at any time.

    Each rule of time begins with all the chosen programs up, and so ends with a run that goes on.
    """

    @initialize()
    def begin(self):
        self.patch = pytest.MonkeyPatch()
        self.place = tempfile.TemporaryDirectory()
        self.patch.setattr(whole, "flush", lambda path: None)  # no power is cut to this machine
        self.world = World(Path(self.place.name), RECIPE)
        for one in self.world.patches():
            self.patch.setattr(*one)
        self.newcomers = 0
        self.world.start("bootstrap")
        self.world.start("ada")
        self.world.wait(60)

    @property
    def up(self):
        return self.world.programs.keys()

    @rule(name=st.sampled_from(PROGRAMS))
    def start(self, name):
        if name not in self.up:
            self.world.start(name)

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def stop(self, data):
        self.world.stop(data.draw(st.sampled_from(sorted(self.up))))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def kill(self, data):
        self.world.kill(*data.draw(st.sets(st.sampled_from(sorted(self.up)), min_size=1)))

    @rule()
    def cut_power(self):
        self.world.kill(*self.up)

    @rule(seconds=st.sampled_from([0.5, 3.0, 7.0, 20.0, 70.0, 700.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    @precondition(lambda self: "monitor" not in self.up and self.checkpoints())
    @rule()
    def damage(self):
        """The disk damages the newest checkpoint."""
        file = self.checkpoints()[-1] / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])

    def checkpoints(self):
        return list_checkpoints(self.world.folder / "checkpoints")

    def held(self, names):
        """The newest epoch of those that train, else the newest of which one of these programs holds a sound state.

        A run that goes on already does not change to a state that comes later.
        """
        trained = [one.local_epoch for one in self.world.volunteers if one.trains]
        if trained:
            return max(trained)
        kept = [self.world.folder / name / "kept" for name in names]
        folders = [*kept, *([self.world.folder / "checkpoints"] if "monitor" in names else [])]
        stored = [one for folder in folders for one in list_checkpoints(folder) if damage_of(one) is None]
        return max(map(checkpoint_epoch, stored), default=0)

    @rule(names=st.sets(st.sampled_from(["monitor", *VOLUNTEERS, "newcomer"]), min_size=1))
    def all_are_back(self, names):
        """The bootstrap peer and these are up; of the others, some may be."""
        if "newcomer" in names:
            self.newcomers += 1
            names = names - {"newcomer"} | {f"newcomer-{self.newcomers}"}
        for name in ("bootstrap", *sorted(names)):
            self.start(name)
        there = {one.name for one in self.world.volunteers}
        held = self.held(self.up)
        if not there or (not held and self.held(PROGRAMS)):
            return  # nobody who trains; or nobody who has any of the run's weights
        self.world.wait(UP_AGAIN_SECONDS)
        waiting = {one.name: one.said[-3:] for one in self.world.volunteers if not one.trains}
        assert not waiting
        assert len({one.belonging.lineage.id for one in self.world.volunteers}) == 1
        assert min(one.local_epoch for one in self.world.volunteers) > held

    def teardown(self):
        if hasattr(self, "world"):
            self.world.kill(*self.up)
            self.patch.undo()
            self.place.cleanup()


TestStops = Stops.TestCase
TestStops.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)


@pytest.mark.exhaustive
def test_forty_times_as_many():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Stops, settings=settings(max_examples=400, stateful_step_count=20, deadline=None))
