"""Real programs of a run are stopped, killed and started in ten orders, and each time the run goes on by itself."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.programs import until
from tests.training.roles import test_peer
from tests.training.roles.test_stored_run import StoredRun
from training.checkpoints.facts import damage_of
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(900)]
shards = test_peer.shards

ALL = ("bootstrap", "monitor", "ada", "eve")
SEQUENCES = {
    "all are stopped as a maintainer would": "stop monitor ada eve bootstrap; start bootstrap monitor ada eve",
    "all lose power, and volunteers are the first to come back": "kill bootstrap monitor ada eve; "
    "start ada eve bootstrap monitor",
    "all lose power, and a newcomer comes": "kill bootstrap monitor ada eve; start bootstrap monitor new-1",
    "the volunteers lose power, and a newcomer comes": "kill ada eve; start new-2",
    "the servers lose power, and come back in the other order": "kill bootstrap monitor; start monitor bootstrap",
    "one volunteer is killed and one stopped later, and the first comes back": "kill ada; wait; stop eve; start ada",
    "the monitor is stopped first, and the others lose power later": "stop monitor; wait; kill bootstrap ada eve; "
    "start bootstrap ada",
    "power comes back for a moment only": "kill bootstrap monitor ada eve; start bootstrap ada; "
    "kill bootstrap ada; start monitor bootstrap eve",
    "the disk has damaged the newest checkpoint": "stop ada eve monitor; damage; start monitor new-3",
    "all are stopped one after another while the others go on": "stop bootstrap; stop monitor; wait; stop ada; wait; "
    "stop eve; start eve bootstrap ada monitor",
}


class UpAgain(StoredRun):
    """A run whose servers have their folders side by side; its volunteers know the bootstrap peer's address alone."""

    def __init__(self, folder, shards, programs):
        super().__init__(folder, shards, programs)
        self.run_dir = folder
        text = self.recipe.read_text().replace("max_epochs_alone = 0", "max_epochs_alone = 100000")
        self.recipe.write_text(text.replace("total_epochs = 400", "total_epochs = 100000"))
        self.up, self.counts, self.ended_at = {}, {}, 0.0

    def bootstrap(self):
        super().bootstrap()
        self.up["bootstrap"] = self.first

    def begin(self, *names):
        """Starts programs one after the other; waits until a server is ready, but for no volunteer."""
        for name in names:
            if name == "bootstrap":
                self.bootstrap()
            else:
                self.up[name] = self.monitor(name) if name == "monitor" else self.join(name)

    def monitor(self, name="monitor"):
        self.counts[name] = self.counts.get(name, 0) + 1
        where = ("--run-dir", str(self.run_dir), "--port", str(self.port), "--host-maddrs", "/ip4/127.0.0.1/tcp/0")
        monitor = self.start(name, "monitor", "--recipe", str(self.recipe), "--initial-peers", self.address, *where)
        self.event(name, "ready", number=self.counts[name])
        return monitor

    def end(self, kind, names):
        ended = [self.up.pop(name) for name in names]
        for program in ended:
            program.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGINT)
            if kind == "stop":
                program.wait(30)
        for program in ended:
            program.wait(30)
        self.ended_at = time.time()

    @property
    def volunteers(self):
        return [name for name in self.up if name not in ("bootstrap", "monitor")]

    def done(self, name):
        """The last epoch that a volunteer has done."""
        return max((event["epoch"] for event in self.events(name, "epoch")), default=0)

    @property
    def held(self):
        """The newest epoch of which a program that is up has a sound state on its disk."""
        folders = [self.folder / name / "kept" for name in self.volunteers]
        folders += [self.run_dir / "checkpoints"] if "monitor" in self.up else []
        stored = [path for folder in folders for path in list_checkpoints(folder)]
        return max([checkpoint_epoch(path) for path in stored if damage_of(path) is None], default=0)

    def play(self, steps):
        for step in steps.split("; "):
            verb, *names = step.split()
            if verb == "start":
                self.begin(*names)
            elif verb == "wait":
                epochs = {name: self.done(name) for name in self.volunteers}
                until(lambda epochs=epochs: all(self.done(name) >= epoch + 2 for name, epoch in epochs.items()))
            elif verb == "damage":
                file = list_checkpoints(self.run_dir / "checkpoints")[-1] / "model.safetensors"
                file.write_bytes(file.read_bytes()[:-1])
            else:
                self.end(verb, names)

    def goes_on(self):
        """Waits until each volunteer that is up does an epoch that nobody had. Returns the seconds since the last
        end."""
        held, since = self.held, self.ended_at

        def has_gone_on(name):
            return any(event["epoch"] > held and event["time"] > since for event in self.events(name, "epoch"))

        logs = lambda: "\n".join(self.log(name) for name in self.volunteers)  # noqa: E731
        until(lambda: all(map(has_gone_on, self.volunteers)), within=400, said=logs)
        return time.time() - since


@pytest.fixture(scope="module")
def run(tmp_path_factory, shards):
    with test_peer.begun(UpAgain, tmp_path_factory.mktemp("run"), shards) as run:
        yield run


@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=SEQUENCES)
def test_a_run_goes_on_from_the_newest_state_whatever_was_stopped_and_started(run, steps, record_property):
    run.begin(*(name for name in ALL if name not in run.up))
    run.end("stop", [name for name in run.volunteers if name not in ALL])
    run.goes_on()
    until(lambda: run.checkpoints, within=240)
    run.play(steps)
    seconds = run.goes_on()
    record_property("seconds", round(seconds))
    print(f"{steps}: {seconds:.0f} s")
    if "damage" in steps:
        assert "is not used: its model.safetensors has" in run.log("monitor")
