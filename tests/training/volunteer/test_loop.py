"""What a volunteer is told of an epoch."""

import io
import json
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
from training.swarm.epoch.exchange import OVERTAKEN
from training.swarm.epoch.strategies import Delayed, Parts
from training.swarm.epoch.updates import Updates
from training.swarm.peers.epochs import EpochEnd
from training.swarm.peers.groups import RoundReport
from training.swarm.state.alignment import AlignmentState
from training.volunteer.loop import TrainingLoop
from training.volunteer.manners.manners import Manners

RECORD = SimpleNamespace(samples_per_second=6.4, micro_batch_size=4)


class _Missed:
    """An optimizer whose every micro-batch ends after the others' epoch."""

    waits_for_others, samples_held, local_epoch = False, 0, 0

    def __init__(self, epoch_seconds=12.0):
        self.progress = SimpleNamespace(epoch_seconds=epoch_seconds)

    def step(self, batch_size):
        self.local_epoch += 1

    def zero_grad(self):
        pass

    def take_epoch_reports(self):
        return [EpochEnd(epoch=self.local_epoch - 1, others=1, left_behind=True, fault=OVERTAKEN).report([])]


def loop_that_prints_to(printed, folder, *, waiting_seconds=0.0):
    stream = SimpleNamespace(waiting_seconds=waiting_seconds, skipped_samples=0, repeated_samples=0)
    return TrainingLoop(
        schedule=None,
        swarm=None,
        choices=None,
        model=None,
        optimizer=_Missed(),
        reporter=SimpleNamespace(
            record=RECORD, end_epoch=lambda report, loss, seconds: None, miss_epoch=lambda report: None
        ),
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
    """Each of two peers for whom no server relays trains a model of its own, while both see that the other trains."""
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


@pytest.mark.parametrize(
    "samples, seconds, said",
    [
        (4, 20.0, "a micro-batch of 4 samples takes 20 s here, an epoch of the run 12 s; join again with --micro-bat"),
        (4, 50.0, "a micro-batch of 4 samples takes 50 s here, an epoch of the run 12 s; end programs that keep this"),
        (1, 20.0, "a micro-batch of 1 sample takes 20 s here, an epoch of the run 12 s; end programs that keep this"),
        (4, 11.0, None),
    ],
)
def test_a_peer_that_misses_ten_epochs_in_a_row_says_why_and_what_helps(tmp_path, samples, seconds, said):
    printed = io.StringIO()
    loop = loop_that_prints_to(printed, tmp_path)
    loop.micro_batch = samples, seconds
    for _ in range(11):
        loop.optimizer.step(samples)
        loop._report_epochs()
    lines = printed.getvalue().splitlines()
    assert lines[:9] == [f"Epoch {epoch} was missed: {OVERTAKEN}." for epoch in range(1, 10)]
    if said:
        assert len(lines) == 11 and all(f"Epoch {epoch} was missed: {said}" in lines[epoch - 1] for epoch in (10, 11))
    else:  # nothing of this machine explains it
        assert lines[9].endswith(f"{OVERTAKEN}.") and "do not reach each other" in lines[10] and len(lines) == 12


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


def test_a_peer_that_is_always_late_compares_its_own_time_of_a_micro_batch(tmp_path):
    ada = _Volunteer(tmp_path, {})
    ada.loop.optimizer = _Missed(epoch_seconds=1e-9)
    ada.loop.reporter = SimpleNamespace(record=RECORD, miss_epoch=lambda report: None)
    ada.loop.train(10, ada)
    *_, last = (json.loads(line)["text"] for line in (tmp_path / "events.jsonl").read_text().splitlines())
    assert last.startswith("Epoch 10 was missed: a micro-batch of 4 samples takes ")


class _Peer:
    """An optimizer of epochs of three micro-batches, of which it holds the samples; it notes what the loop does."""

    waits_for_others, averages = False, False

    def __init__(self):
        self.local_epoch, self.samples_held, self._reports, self.done = 0, 0, [], []

    def step(self, batch_size):
        self.samples_held += batch_size
        self.done.append("step")
        if self.samples_held == 12:
            self.end_epoch()

    def end_epoch(self):
        samples, self.samples_held = self.samples_held, 0
        self._reports.append(EpochEnd(epoch=self.local_epoch, others=0, samples=samples).report([]))
        self.local_epoch += 1

    def rest(self):
        self.done.append("rest")
        if self.samples_held:  # the others have computed what the epoch lacks
            self.end_epoch()

    def catch_up(self):
        self.done.append("catch up")

    def zero_grad(self):
        pass

    take_epoch_reports = _LastOfTwo.take_epoch_reports


class _Volunteer:
    """A loop that trains as `_Peer` does; `plan` says what the volunteer does after so many steps and rests."""

    def __init__(self, folder, plan):
        run, self.statuses, self.reported = load_recipe("demo"), [], []
        self.loop = loop_that_prints_to(io.StringIO(), folder)
        self.loop.schedule, self.loop.swarm, self.loop.model = run.schedule, run.swarm, _Line()
        self.loop.choices = SimpleNamespace(micro_batch_size=4, activation_budget_bytes=None, precision="float32")
        self.peer = self.loop.optimizer = _Peer()
        self.loop.awake = SimpleNamespace(hold=lambda: self.note("hold"), release=lambda: self.note("release"))
        self.loop.reporter = SimpleNamespace(
            record=RECORD,
            end_epoch=lambda report, loss, seconds: self.reported.append((report.epoch, report.samples, loss)),
            wait=self.statuses.append,
            update=lambda **facts: self.statuses.append(facts.get("status")),
        )
        self.manners, self.plan, self.asked = self.loop.manners, plan, False
        self.loop.samples = SimpleNamespace(stream=self.loop.samples.stream, computed=lambda *_, **__: None)
        self.loop.samples = _FourSamples(self.loop.samples)
        step, rest = self.peer.step, self.peer.rest
        self.peer.step = lambda batch_size: (step(batch_size), self.act())
        self.peer.rest = lambda: (rest(), self.act())

    def note(self, what):
        self.peer.done.append(what)

    def act(self):
        done = sum(what in ("step", "rest") for what in self.peer.done)
        self.plan.get(done, lambda manners: None)(self.manners)

    def wait(self, seconds):
        return self.asked

    def train(self, epochs=2):
        self.loop.train(epochs, self)
        return self.peer.done


class _FourSamples:
    inputs = (torch.tensor([1.0, 2.0, 3.0, 4.0]),)

    def __init__(self, samples):
        self.stream, self.computed = samples.stream, samples.computed

    def __len__(self):
        return 4

    def __next__(self):
        return self


def test_a_pause_keeps_what_was_computed_and_ends_where_it_began(tmp_path):
    ada = _Volunteer(tmp_path, {2: Manners.pause, 5: Manners.resume})
    done = ada.train()
    assert done == [
        *("hold", "step", "step"),
        *("release", "rest", "rest", "rest", "catch up", "hold"),
        *("step", "step", "step", "release"),
    ]
    assert [(epoch, samples) for epoch, samples, _ in ada.reported] == [(1, 8), (2, 12)]
    assert ada.statuses == ["paused", "training"]
    log = (tmp_path / "events.jsonl").read_text()
    assert log.count('"paused", "reason": "as you wish') == log.count('"resumed"') == 1


def test_a_peer_that_comes_while_it_may_not_compute_rests_at_once(tmp_path):
    ada = _Volunteer(tmp_path, {3: Manners.resume})
    ada.manners.pause()
    assert ada.train(1)[:5] == ["hold", "release", "rest", "rest", "rest"]
    assert ada.reported[0][:2] == (1, 12)


@pytest.mark.parametrize("when, samples", [(1, 12), (2, 12), (3, 12), (4, 12)])
def test_a_peer_finishes_its_epoch_and_leaves(tmp_path, when, samples):
    ada = _Volunteer(tmp_path, {when: Manners.finish})
    ada.train(9)
    assert ada.peer.samples_held == 0 and len(ada.reported) == (1 if when <= 3 else 2)
    assert all(one[1] == samples for one in ada.reported)


def test_a_paused_peer_that_is_to_finish_leaves_when_its_samples_are_in_an_update(tmp_path):
    def pause_and_finish(manners):
        manners.pause()
        manners.finish()

    ada = _Volunteer(tmp_path, {2: pause_and_finish})
    assert ada.train(9) == ["hold", "step", "step", "release", "rest", "release"]
    assert [one[:2] for one in ada.reported] == [(1, 8)]


def test_a_peer_that_finishes_awaits_its_average_in_the_background(tmp_path):
    ada = _Volunteer(tmp_path, {3: Manners.finish, 6: lambda manners: setattr(ada.peer, "averages", False)})
    ada.peer.averages = True
    assert ada.train(9).count("rest") == 3


def test_waiting_for_others_is_what_a_volunteer_does_now_and_no_problem(tmp_path):
    ada = _Volunteer(tmp_path, {})
    ada.loop.reporter.wait = lambda: None
    ada.loop._wait_for_others(ada)
    kinds = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert kinds == ["notice", "notice"] and ada.statuses == ["training"]


def test_a_peer_that_is_asked_to_leave_while_it_rests_leaves_at_once(tmp_path):
    ada = _Volunteer(tmp_path, {2: Manners.pause, 3: lambda manners: setattr(ada, "asked", True)})
    assert ada.train(9) == ["hold", "step", "step", "release", "rest", "release"]


def test_an_epoch_that_ends_while_nothing_was_computed_has_the_last_loss(tmp_path):
    """An average in the background ends during a pause, after the report of the epoch before it."""
    ada = _Volunteer(tmp_path, {3: Manners.pause, 5: Manners.resume})
    ada.plan[4] = lambda manners: setattr(ada.peer, "samples_held", 4)
    ada.train(3)
    assert [loss for *_, loss in ada.reported] == [2.5, 2.5, 2.5]


def test_a_peer_whose_machine_has_slept_connects_anew_and_catches_up(tmp_path):
    ada, slept = _Volunteer(tmp_path, {}), [0.0, 600.0, 0.0, 0.0]
    ada.loop.sleep = SimpleNamespace(noticed=lambda: slept.pop(0))
    ada.loop.reconnect = lambda: ada.note("reconnect")
    done = ada.train(1)
    assert done == ["hold", "step", "step", "reconnect", "catch up", "step", "release"]
    assert "has slept for 10 min; this peer catches up" in (tmp_path / "events.jsonl").read_text()


def test_a_peer_that_sleeps_while_it_rests_connects_anew(tmp_path):
    ada, slept = _Volunteer(tmp_path, {1: Manners.pause, 3: Manners.resume}), [0.0, 0.0, 600.0, 0.0, 0.0, 0.0]
    ada.loop.sleep = SimpleNamespace(noticed=lambda: slept.pop(0))
    ada.loop.reconnect = lambda: ada.note("reconnect")
    assert ada.train(1)[:6] == ["hold", "step", "release", "rest", "reconnect", "rest"]
