"""Checks of work through the programs that people start: a validator, two honest volunteers, and one that trains
nothing."""

import re
import subprocess
import sys

import pytest

from tests.programs import until
from tests.random_shards import write_shards
from tests.training.roles.test_membership import PROGRAM, Maintainer, bootstrap, join
from training.config import load_recipe
from training.demo.children import read_events

LAZY = """
import time
from training.cli import main
from training.compute.micro_batches import MicroBatches, Piece

def repeat(self, batch):
    # Computes one batch, and then sends its gradient again and again.
    if not hasattr(self, "kept"):
        (piece,) = compute(self, batch)
        self.kept = piece.loss, [parameter.grad.clone() for parameter in self._model.parameters()]
    loss, gradients = self.kept
    time.sleep(0.2)
    for parameter, gradient in zip(self._model.parameters(), gradients, strict=True):
        parameter.grad = gradient.clone()
    yield Piece(samples=len(batch), loss=loss)

compute, MicroBatches.gradients_of = MicroBatches.gradients_of, repeat
main()
"""
SURE_SOON = """
from training.trust.server import policy
policy.FAILING_EVIDENCE /= 2
from training.cli import main
main()
"""
"""A validator to which half of the evidence suffices: that is as much of its work in half of the time."""
MANY = 20_000
"""Samples: more than are in the gradients of all volunteers together, with their momentum."""


@pytest.fixture
def maintainer(tmp_path, programs):
    found = Maintainer(tmp_path, programs)
    text = found.recipe.read_text()
    for name, value in (
        ("aggregation", '"centered-clip"'),
        ("check_share", "0.5"),
        # A check takes a second of the validator on a busy machine, and it should not miss all of the next epoch by it.
        ("target_batch_size", "256"),
        ("peak_learning_rate", "1e-3"),
    ):
        text, changed = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value}", text)
        assert changed == 1
    found.recipe.write_text(text)
    return found


@pytest.mark.swarm
@pytest.mark.timeout(900)
def test_a_volunteer_that_trains_nothing_is_suspended_and_a_moderator_sees_why(maintainer):
    maintainer.close_run()
    write_shards(maintainer.folder / "shards", load_recipe(str(maintainer.recipe)), MANY)
    maintainer.serve("--validator", "invited:val")
    address, volunteers, logs = bootstrap(maintainer), {}, {}
    for name, program, more in (
        ("val", [sys.executable, "-c", SURE_SOON], ["--validate"]),
        ("ada", PROGRAM, []),
        ("alan", PROGRAM, []),
        ("eve", [sys.executable, "-c", LAZY], []),
    ):
        logs[name], events = maintainer.folder / f"{name}.log", maintainer.folder / f"{name}.jsonl"
        flags = ["--invitation", maintainer.invite(name), "--log-json", events, *more]
        with logs[name].open("w") as printed:
            command = join(maintainer, address, *flags, name=name, program=program)
            volunteers[name] = maintainer.programs.start(command, stdout=printed, stderr=subprocess.STDOUT)
    said = logs["val"].read_text
    # Each check says a little, and whom it checks is drawn: 60 epochs in 400 s did not suffice on a busy machine.
    until(lambda: "has suspended" in said(), within=720, said=said)
    assert volunteers["eve"].wait(60) == 3, logs["eve"].read_text()
    assert "maintainers have banned this account" in logs["eve"].read_text()
    shown = maintainer.moderate("evidence", "eve").said
    assert shown.startswith("Reports of validators on invited:eve: 1.") and "invited:val" in shown
    assert "No validator has reported" in maintainer.moderate("evidence", "ada").said
    peer = next(
        event["peer_id"] for event in read_events(maintainer.folder / "eve.jsonl") if event["event"] == "joined"
    )
    assert (maintainer.folder / "val" / "evidence" / f"{peer}.json").is_file()
    for name in ("val", "ada", "alan"):
        assert volunteers[name].poll() is None and "Traceback" not in logs[name].read_text()
