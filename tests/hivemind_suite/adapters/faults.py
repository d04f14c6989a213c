"""How hivemind's test of faults gets its faulty runner into our averagers.

In hivemind the test overrides a private method that averages with a group; ours has no such method. Its runner, which
is made faulty by overriding methods of ours, is what counts: it takes the place of ours in the averager's process, with
our repetitions and agreements around it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import torch
from hivemind.compression import CompressionInfo

from training.swarm.peers.groups import RoundReport
from training.swarm.round import rounds
from training.swarm.round.rounds import AveragingMethod, GroupAllReduce, Mean


class FaultyMean(Mean):
    """The mean, with the runner of the test; `fault` is a member of the test's `Fault`."""

    def __init__(self, fault: object, runner: type):
        self._fault, self._runner = fault, runner

    async def average(
        self, tensors: Sequence[torch.Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        if self._fault.name == "FAIL_BEFORE":
            raise RuntimeError("this peer fails before it averages")
        rounds.ReportingRunner = partial(self._runner, fault=self._fault)  # in the averager's process alone
        return await super().average(tensors, infos, all_reduce)


def method_with(averager: object) -> AveragingMethod | None:
    """How an averager of hivemind's tests averages: with its fault, if it has one; None: as ours do."""
    if not hasattr(averager, "fault"):
        return None
    return FaultyMean(averager.fault, sys.modules[type(averager).__module__].FaultyAllReduceRunner)
