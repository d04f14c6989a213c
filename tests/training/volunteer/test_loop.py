"""What a volunteer is told of an epoch."""

import io
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from training.processes.events import EventLog
from training.processes.notices import Notices
from training.recipe import load_recipe
from training.swarm.epoch.strategies import Delayed, Parts
from training.swarm.epoch.updates import Updates
from training.swarm.peers.epochs import EpochEnd
from training.swarm.peers.groups import RoundReport
from training.swarm.state.alignment import AlignmentState
from training.volunteer.loop import TrainingLoop

RECORD = SimpleNamespace(samples_per_second=6.4, micro_batch_size=4)


def loop_that_prints_to(printed, folder, *, waiting_seconds=0.0):
    stream = SimpleNamespace(waiting_seconds=waiting_seconds, skipped_samples=0, repeated_samples=0)
    return TrainingLoop(
        schedule=None,
        swarm=None,
        choices=None,
        model=None,
        optimizer=None,
        reporter=SimpleNamespace(record=RECORD, end_epoch=lambda report, loss, seconds: None),
        notices=Notices(events=EventLog(folder / "events.jsonl"), console=Console(file=printed, width=400)),
        samples=SimpleNamespace(stream=stream),
    )


@pytest.mark.parametrize(
    "waited, shown, warned", [(0.004, None, False), (0.25, "2% waiting for samples", False), (3.0, "30% waiting", True)]
)
def test_the_share_of_time_that_goes_to_waiting_for_samples_is_shown(tmp_path, waited, shown, warned):
    printed = io.StringIO()
    loop = loop_that_prints_to(printed, tmp_path, waiting_seconds=waited)
    loop._end_epoch(EpochEnd(epoch=6, others=0, samples=64).report([]), loss=2.5, seconds=10.0)
    line, *warnings = printed.getvalue().splitlines()
    assert line.startswith("epoch     7  loss 2.5000     64 samples")
    assert (shown in line) if shown else ("waiting" not in line)
    assert bool(warnings) == warned and all("waited for samples for 30% of the time" in text for text in warnings)
    assert f'"data_waiting_seconds": {waited}' in (tmp_path / "events.jsonl").read_text()


def test_a_peer_that_reaches_none_of_the_others_says_so_after_ten_epochs(tmp_path):
    """Each of two peers behind routers trains a model of its own, while both see that the other trains."""
    printed = io.StringIO()
    loop = loop_that_prints_to(printed, tmp_path)

    def end_epochs(first, count, *, others, left_behind=False, group=None):
        for epoch in range(first, first + count):
            end = EpochEnd(epoch=epoch, others=others, samples=64, left_behind=left_behind, round=group)
            loop._end_epoch(end.report([]), loss=2.5, seconds=10.0)
        return printed.getvalue().count("do not reach each other")

    assert end_epochs(0, 20, others=0) == 0
    assert end_epochs(20, 9, others=2) == 0
    assert end_epochs(29, 1, others=2, left_behind=True) == 1
    sizes = {"group_size": 3, "senders": 3, "own_share": 0.3, "weight": 192.0}
    average = RoundReport(**sizes, torn=False, bytes_sent=1, bytes_received=1, seconds=1.0)
    assert end_epochs(30, 1, others=2, group=average) == 1
    assert end_epochs(31, 9, others=2) == 1 and end_epochs(40, 1, others=2) == 2


class _Line(torch.nn.Module):
    """The smallest model that the loop can train."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.ones(()))

    def stored_layers(self, samples, budget_bytes):
        return 0

    def forward(self, inputs, *, stored_layers):
        return SimpleNamespace(loss=(self.slope * inputs).mean())


class _LastOfTwo:
    """Ends an epoch after each micro-batch, by the strategy that averages in the background. The other peer leaves in
    the first average, which ends when the second epoch does."""

    waits_for_others, samples_held = False, 0

    def __init__(self, model, run):
        self.local_epoch, self._reports, self._left = 0, [], threading.Event()
        master = Delayed.make_master(model, run)
        self._updates = Updates(master, None, AlignmentState(), epoch_seconds=float, round_seconds=9, search_seconds=9)
        master.use_gradients([torch.zeros(shape) for shape in master.shapes])
        self._strategy = Delayed(
            Parts(
                run=run,
                model=model,
                master=master,
                updates=self._updates,
                exchange=self,
                begin_update=partial(self._updates.begin, average_parameters=False, expected_peers=0),
                report=lambda epoch_end: self._reports.append(epoch_end.report([])),
            )
        )

    def begin(self, epoch_end):
        epoch_end.samples = 4
        return None if epoch_end.epoch else "a round"

    def finish(self, round_, epoch_end):
        if round_ is not None:
            assert self._left.wait(60)

    def step(self, batch_size):
        if self.local_epoch == 1:
            threading.Timer(0.2, self._left.set).start()
        epoch_end = EpochEnd(epoch=self.local_epoch, others=1 - self.local_epoch)
        self._strategy.end_epoch(epoch_end)
        self.local_epoch += 1
        if not epoch_end.in_background:
            self._strategy.parts.report(epoch_end)

    def zero_grad(self):
        pass

    def take_epoch_reports(self):
        taken = self._reports[:]
        del self._reports[: len(taken)]
        return taken


def test_two_epochs_that_end_at_once_are_both_reported(tmp_path):
    """The last average of a peer whose only companion leaves may end in the same step as the epoch after it."""
    run, model = load_recipe("demo"), _Line()
    loop, told = loop_that_prints_to(io.StringIO(), tmp_path), []
    loop.schedule, loop.swarm, loop.model, loop.optimizer = run.schedule, run.swarm, model, _LastOfTwo(model, run)
    loop.choices = SimpleNamespace(micro_batch_size=4, activation_budget_bytes=None, precision="float32")
    loop.reporter = SimpleNamespace(record=RECORD, end_epoch=lambda *facts: told.append(facts))

    class FourSamples:
        inputs = (torch.tensor([1.0, 2.0, 3.0, 4.0]),)
        stream = loop.samples.stream

        def __len__(self):
            return 4

        def __next__(self):
            return self

        def computed(self, samples, *, is_added, held):
            pass

    began = time.monotonic()
    loop.samples = FourSamples()
    loop.train(2, SimpleNamespace(asked=False))
    seconds = time.monotonic() - began
    assert [(report.epoch, loss) for report, loss, _ in told] == [(1, 2.5), (2, 2.5)]
    assert all(0.04 < took <= seconds for *_, took in told)  # the two took 0.2 s or longer
