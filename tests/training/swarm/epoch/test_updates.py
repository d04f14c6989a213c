"""Updates in the background, with rounds of parameters that are played."""

import threading
import time

import pytest
import torch

from tests.training.swarm.played import averaged
from training.swarm.epoch.updates import Updates
from training.swarm.epoch.waiting import LeftBehindError
from training.swarm.round.pipe import Stage
from training.swarm.state.alignment import AlignmentState, Event
from training.swarm.state.master_weights import MasterWeights


class PlayedParameters:
    """An averager of parameters whose round ends when it is told to, with weights of 5."""

    weight = 1.0

    def __init__(self, master):
        self.master, self.round = master, None

    def begin_round(self, told, *, seconds, expected_peers):
        self.round = PlayedRound()
        return self.round

    def load(self):
        pass

    def give_back(self):
        self.master.load([torch.full_like(parameter, 5.0) for parameter in self.master.parameters], self.master.epoch)


class PlayedRound:
    stage, started = Stage.SEARCHING, False

    def __init__(self):
        self.began, self.over, self.group, self.cancelled = time.monotonic(), threading.Event(), None, False

    def start(self, weight, *, cycle_seconds, free_seconds):
        assert cycle_seconds == free_seconds == 60.0  # an epoch, in which the trainer computes
        self.started = True

    def cancel(self):
        self.cancelled = True
        self.over.set()

    def result(self, timeout):
        assert self.over.wait(timeout)
        if self.group is None:
            raise TimeoutError
        return self.group


@pytest.fixture
def peer():
    """Its model has one weight, 1; an update subtracts the learning rate, here 1 / (epoch + 1)."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1))])
    master = MasterWeights(
        [{"params": list(model)}], lambda groups: torch.optim.SGD(groups, lr=0.0), lambda e: 1 / (e + 1)
    )
    master.use_gradients([torch.ones(1)])
    parameters, alignment = PlayedParameters(master), AlignmentState()
    seconds = dict(epoch_seconds=lambda: 60.0, round_seconds=30.0, search_seconds=0.3)
    updates = Updates(master, parameters, alignment, **seconds)
    return updates, parameters, alignment, model


def test_an_update_reaches_the_model_when_it_is_applied(peer):
    updates, _, _, model = peer
    ready = threading.Event()
    updates.begin(1, gradients_ready=ready.wait, average_parameters=False, expected_peers=0)
    updates.apply()
    assert model[0].item() == 1.0 and updates.master.epoch == 0
    ready.set()
    updates.await_update()
    assert model[0].item() == 0.5 and updates.master.epoch == 2


def test_without_gradients_nothing_is_updated_and_no_parameters_are_averaged(peer):
    updates, parameters, _, model = peer

    def left_behind():
        raise LeftBehindError

    updates.begin(0, gradients_ready=left_behind, average_parameters=True, expected_peers=2)
    updates.wait()
    assert model[0].item() == 1.0 and updates.master.epoch == 0 and parameters.round.cancelled


def test_an_update_that_fails_ends_the_training(peer):
    """It would otherwise train on without updates, and its reports would look well."""
    updates, parameters, _, _ = peer
    updates.master.optimizer.step = lambda: 1 / 0
    updates.begin(0, average_parameters=True, expected_peers=2)
    with pytest.raises(ZeroDivisionError):
        updates.wait()
    assert parameters.round.cancelled


def test_an_update_waits_for_an_average_that_was_given_up(peer):
    """Its group may end it later, and would change the gradients amid the update."""
    updates, _, _, model = peer
    held = threading.Lock()
    updates.master.use_gradients([torch.ones(1)], hold=lambda: held)
    with held:
        updates.begin(1, average_parameters=False, expected_peers=0)
        time.sleep(0.3)
        updates.apply()
        assert model[0].item() == 1.0
    updates.await_update()
    assert model[0].item() == 0.5


def test_a_round_of_parameters_brings_the_weights_of_all(peer):
    updates, parameters, alignment, model = peer
    alignment.note(Event.AVERAGE_TORN)
    updates.begin(0, average_parameters=True, expected_peers=2)
    updates.await_update()
    assert model[0].item() == 0.0 and not parameters.round.over.is_set() and alignment.drifted
    parameters.round.group = averaged(torn=False)
    parameters.round.stage = Stage.AVERAGING
    parameters.round.over.set()
    updates.wait()
    assert model[0].item() == 5.0 and not alignment.drifted
    assert [report.senders for report in updates.take_reports()] == [2] and updates.take_reports() == []


@pytest.mark.parametrize("has_group", [False, True])
def test_a_round_of_parameters_without_a_group_ends_before_the_next_gradients(peer, has_group):
    """After the usual time of looking for one; one that averages is awaited."""
    updates, parameters, _, model = peer
    updates.begin(0, average_parameters=True, expected_peers=2)
    began, round_ = time.monotonic(), parameters.round
    if has_group:
        round_.stage, round_.group = Stage.AVERAGING, averaged(torn=False)
        threading.Timer(0.8, round_.over.set).start()
    updates.wait()
    assert round_.cancelled != has_group
    assert time.monotonic() - began >= (0.8 if has_group else 0.3)
    assert model[0].item() == (5.0 if has_group else 0.0)
