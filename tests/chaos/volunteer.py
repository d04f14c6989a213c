"""A volunteer's program, `python -m training join ...`, on a machine that chaos controls.

    python -m tests.chaos.volunteer CONTROL NOTES join --recipe ...

Its device computes at a set speed: after each micro-batch it sleeps for the rest of the time that this takes. Its
clock differs from the real one by an offset that may change at any time, in all processes of the peer: `time.time` is
replaced before anything is imported, and hivemind and the trainer read no other clock of the day. (libfaketime would
reach no further, because the network daemon is a Go program, and it disturbs waits for locks.) The event log keeps the
real time, so that logs can be compared.

Beside the event log it writes notes after each epoch: what the report says of faults, and some of the host's weights.
If the environment sets FAILING_ROUNDS, this share of its all-reduces fail: it answers the other peers with an error. If
it sets FORGIVING, this volunteer leaves nobody out who has spoiled averages.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

real_time = time.time
_FORMAT = struct.Struct("dd")
FAILING_ROUNDS, FORGIVING = "CHAOS_FAILING_ROUNDS", "CHAOS_FORGIVING"
NOTED_WEIGHTS = 512
"""How many weights are noted after each epoch, evenly spread over all."""


class Control:
    """A file through which chaos sets this machine's clock and speed; both sides map it to memory."""

    def __init__(self, path: Path):
        if not path.exists():
            path.write_bytes(_FORMAT.pack(0.0, 0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _FORMAT.size)

    @property
    def clock_seconds(self) -> float:
        """How far the clock is ahead."""
        return _FORMAT.unpack(self._memory[:])[0]

    @property
    def sample_seconds(self) -> float:
        """How long the device computes for a sample, at least."""
        return _FORMAT.unpack(self._memory[:])[1]

    def set(self, *, clock_seconds: float | None = None, sample_seconds: float | None = None) -> None:
        """Changes one or both."""
        clock = self.clock_seconds if clock_seconds is None else clock_seconds
        sample = self.sample_seconds if sample_seconds is None else sample_seconds
        self._memory[:] = _FORMAT.pack(clock, sample)


def keep_pace(control: Control) -> None:
    """Gives the device its speed."""
    from training.compute.micro_batches import MicroBatches

    compute = MicroBatches.gradients_of

    def gradients_of(self, batch):
        began = time.monotonic()
        for piece in compute(self, batch):
            time.sleep(max(0.0, began + piece.samples * control.sample_seconds - time.monotonic()))
            yield piece
            began = time.monotonic()

    MicroBatches.gradients_of = gradients_of


def keep_notes(path: Path) -> None:
    """Writes a line after each epoch."""
    import torch

    from training.processes.events import EventLog
    from training.volunteer.loop import TrainingLoop

    EventLog.__init__.__defaults__ = (real_time, *EventLog.__init__.__defaults__[1:])
    end_epoch = TrainingLoop._end_epoch
    notes = path.open("a", encoding="utf-8", buffering=1)

    def _end_epoch(self, report, *rest):
        end_epoch(self, report, *rest)
        master = self.optimizer.master
        with master.lock, torch.no_grad():
            updates = master.epoch
            weights = torch.cat([parameter.flatten() for parameter in master.parameters])
            some = weights[:: max(1, weights.numel() // NOTED_WEIGHTS)].tolist()
        facts = {"epoch": report.epoch, "others": report.others, "fault": report.fault, "updates": updates}
        facts |= {
            "drifted": self.optimizer.alignment.lacks_updates,
            "weights": [float(f"{value:.6g}") for value in some],
        }
        notes.write(json.dumps({"time": real_time(), **facts}) + "\n")

    TrainingLoop._end_epoch = _end_epoch


def let_rounds_fail(share: float, seed: str) -> None:
    """Makes this peer answer with an error in a share of all all-reduces; a repetition may fail again."""
    from hivemind.proto import averaging_pb2

    from training.swarm.round import rounds

    dice = random.Random(seed)

    class Failing(rounds.AllReduce):
        def __init__(self, **facts):
            super().__init__(**facts)
            self._fails = dice.random() < share

        async def answer(self, sender, stream):
            if self._fails:
                yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
                return
            async for message in super().answer(sender, stream):
                yield message

    rounds.AllReduce = Failing


def forgive() -> None:
    """Makes this peer note no faults of others."""
    from training.swarm.peers.table import Peers

    Peers.spoiled = lambda self, *fault: None


def main() -> None:
    """Prepares the machine and runs the trainer's command line."""
    control = Control(Path(sys.argv[1]))
    time.time = lambda: real_time() + control.clock_seconds
    notes = Path(sys.argv[2])
    sys.argv = ["training", *sys.argv[3:]]
    from training.processes.environment import prepare_environment

    prepare_environment()  # before torch and hivemind are imported, which read the environment
    keep_pace(control)
    keep_notes(notes)
    if share := os.environ.get(FAILING_ROUNDS):
        let_rounds_fail(float(share), seed=str(notes))
    if os.environ.get(FORGIVING):
        forgive()
    from training import cli

    cli.main()


if __name__ == "__main__":
    main()
