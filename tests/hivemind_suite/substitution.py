"""Lets hivemind's own tests run against this project's classes; a pytest plugin of `nox -s hivemind`.

Where a test asks hivemind for an averager, a tracker or an optimizer, it gets an adapter of ours (`adapters`); where it
asks for a runner, a reducer or a container of parts, which ours subclass, it gets ours. `hivemind.TrainingAverager` is
hivemind's own: it tests our runner below hivemind's averager.
"""

from __future__ import annotations

from functools import partial

import hivemind
import hivemind.averaging
import hivemind.averaging.allreduce
import hivemind.averaging.averager
import hivemind.averaging.partition
import hivemind.optim.grad_averager
import hivemind.optim.optimizer
import hivemind.optim.power_sgd_averager
import hivemind.optim.progress_tracker
import hivemind.optim.state_averager
from adapters.averager import DecentralizedAverager
from adapters.gradients import GradientAverager, PowerSGDGradientAverager
from adapters.optimizer import Optimizer
from adapters.progress import ProgressTracker
from adapters.state import TrainingStateAverager

from training.swarm.round.allreduce import ReportingRunner
from training.swarm.round.reducer import CheckedParts, FiniteReducer

for _module in (hivemind, hivemind.averaging):
    _module.DecentralizedAverager = DecentralizedAverager
for _module in (hivemind.averaging.allreduce, hivemind.averaging.averager):
    _module.AllReduceRunner = ReportingRunner
hivemind.averaging.partition.TensorPartReducer = FiniteReducer
hivemind.averaging.partition.TensorPartContainer = partial(CheckedParts, check=lambda peer, part: None)
hivemind.optim.grad_averager.GradientAverager = GradientAverager
hivemind.optim.power_sgd_averager.PowerSGDGradientAverager = PowerSGDGradientAverager
hivemind.optim.state_averager.TrainingStateAverager = TrainingStateAverager
hivemind.optim.progress_tracker.ProgressTracker = ProgressTracker
hivemind.optim.optimizer.Optimizer = Optimizer
