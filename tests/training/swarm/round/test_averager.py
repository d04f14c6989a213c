"""The trainer's side of an averager: what it hears when the averager's process is gone."""

import os
import signal
import time
from multiprocessing import Pipe

import pytest
import torch

from tests.training.swarm.played import averaged, nested
from tests.training.swarm.two_nodes import two_nodes
from training.errors import TrainingError
from training.swarm.engine.process import DHT
from training.swarm.round.averager import Averager, AveragingFailedError
from training.swarm.round.pipe import AveragerSettings, Ended, Stage
from training.swarm.round.service import send_end

ENDED = "the averager's process has ended"


@pytest.mark.swarm
def test_rounds_of_a_process_that_has_ended_fail_at_once():
    """hivemind's trainer waits for them for ever."""
    dht = DHT(start=True)
    averager = Averager([torch.zeros(4)], dht=dht, settings=AveragerSettings(prefix="ending"))
    try:
        under_way = averager.begin_round(seconds=600)
        os.kill(averager._process.pid, signal.SIGKILL)
        with pytest.raises(AveragingFailedError, match=ENDED):
            under_way.result(30)
        assert under_way.stage is Stage.ENDED
        with pytest.raises(AveragingFailedError, match=ENDED):
            averager.begin_round(seconds=600).result(30)
        with pytest.raises(TrainingError, match="has ended"):
            averager.check_process()
        averager._lock.acquire()  # as the process would have held it amid an average
        with averager.get_tensors() as (tensor,):
            assert tensor.tolist() == [0.0] * 4
    finally:
        averager.shutdown()
        dht.shutdown()


@pytest.mark.swarm
def test_a_round_without_a_group_fails_when_its_time_is_over():
    dht = DHT(start=True)
    settings = AveragerSettings(prefix="alone", matchmaking_seconds=0.5, request_timeout_seconds=0.2)
    averager = Averager([torch.zeros(4)], dht=dht, settings=settings)
    try:
        began = time.monotonic()
        round_ = averager.begin_round(seconds=2)
        round_.start(1.0)
        with pytest.raises(AveragingFailedError, match="no group was found"):
            round_.result(30)
        assert time.monotonic() - began > 1.5
        cancelled = averager.begin_round(seconds=600)
        cancelled.cancel()
        assert cancelled.done()
    finally:
        averager.shutdown()
        dht.shutdown()


nodes = pytest.fixture(two_nodes)


@pytest.mark.swarm
def test_a_trainer_that_holds_the_tensors_for_long_spoils_no_later_round(nodes):
    """With hivemind's way to wait for them, a round that is over would take them when they are free, for ever."""
    settings = AveragerSettings(
        prefix="held", matchmaking_seconds=1.5, request_timeout_seconds=1.0, allreduce_timeout_seconds=2.0
    )
    averagers = [
        Averager([torch.full((4,), float(number))], dht=dht, settings=settings) for number, dht in enumerate(nodes)
    ]

    def begin(seconds):
        rounds = [averager.begin_round(seconds=seconds, expected_peers=2) for averager in averagers]
        for round_ in rounds:
            round_.start(1.0)
        return rounds

    try:
        with averagers[0].get_tensors(), pytest.raises(AveragingFailedError):
            begin(seconds=4)[0].result(30)
        for round_ in begin(seconds=30):
            assert round_.result(60).report.senders == 2
        for averager in averagers:
            with averager.get_tensors() as (tensor,):
                assert tensor.tolist() == [0.5] * 4
    finally:
        for averager in averagers:
            averager.shutdown()


@pytest.mark.swarm
def test_a_peer_that_claims_next_to_no_link_fails_nobodys_average(nodes):
    """hivemind divides by it: the average of all members failed, and none of them was to blame."""
    settings = AveragerSettings(prefix="slow", matchmaking_seconds=1.5, request_timeout_seconds=1.0)
    averagers = [Averager([torch.full((8,), float(n))], dht=dht, settings=settings) for n, dht in enumerate(nodes)]
    averagers[1].bandwidth = 5e-324
    try:
        rounds = [averager.begin_round(seconds=20, expected_peers=2) for averager in averagers]
        for round_ in rounds:
            round_.start(1.0)
        assert sum(round_.result(40).report.reduced_share for round_ in rounds) == 1.0
    finally:
        for averager in averagers:
            averager.shutdown()


def test_a_trainer_hears_that_a_round_has_ended_even_if_its_result_cannot_be_handed_on():
    here, there = Pipe()
    send_end(there, Ended(7, averaged(nested(2000)), spoiled_by={"mallory": 1.0}))
    assert here.poll(10)
    ended = here.recv()
    assert (ended.number, ended.group, ended.spoiled_by) == (7, None, {"mallory": 1.0})
    assert ended.fault == "its result cannot be handed on: RecursionError"
    here.close()
    send_end(there, Ended(8, None))  # a trainer that is gone


@pytest.mark.swarm
def test_a_peer_that_tells_nested_words_keeps_no_result_from_its_groupmates(nodes):
    """Such words cannot be pickled on their way to the trainer, which waited for the end of each round in vain."""
    settings = AveragerSettings(prefix="nested", matchmaking_seconds=1.5, request_timeout_seconds=1.0)
    averagers = [Averager([torch.full((8,), float(n))], dht=dht, settings=settings) for n, dht in enumerate(nodes)]
    try:
        rounds = [
            averager.begin_round(told, seconds=6, expected_peers=2)
            for averager, told in zip(averagers, (None, nested(505)), strict=True)
        ]
        for round_ in rounds:
            round_.start(1.0)
        with pytest.raises(AveragingFailedError, match="no group was found"):
            rounds[0].result(30)
    finally:
        for averager in averagers:
            averager.shutdown()
