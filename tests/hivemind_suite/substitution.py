"""Lets hivemind's own tests run against this project's subclasses; a pytest plugin of `nox -s hivemind`.

Where a test asks hivemind for an averager, a runner, a tracker or an optimizer, it gets ours.
"""

from __future__ import annotations

from functools import partial

import hivemind
import hivemind.averaging
import hivemind.averaging.allreduce
import hivemind.averaging.averager
import hivemind.optim.grad_averager
import hivemind.optim.optimizer
import hivemind.optim.power_sgd_averager
import hivemind.optim.progress_tracker
import hivemind.optim.state_averager

from training.config import load_recipe
from training.swarm.allreduce import ReportingRunner
from training.swarm.averaging import SwarmGradientAverager, SwarmStateAverager
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.powersgd import SwarmPowerSGDAverager
from training.swarm.rounds import ReportingAverager
from training.swarm.tracker import LivelyTracker


class Tracker(LivelyTracker):
    """Takes hivemind's arguments."""

    def __init__(self, dht: hivemind.DHT, prefix: str, target_batch_size: int, **kwargs):
        super().__init__(lively_seconds=6.0, dht=dht, prefix=prefix, target_batch_size=target_batch_size, **kwargs)


class Optimizer(SwarmOptimizer):
    """Takes hivemind's arguments; what else a recipe says is as in the demo's."""

    def __init__(self, *, run_id: str, averager_opts: dict, matchmaking_time: float, **kwargs):
        demo = load_recipe("demo")
        settings = {
            "matchmaking_seconds": matchmaking_time,
            "request_timeout_seconds": averager_opts["request_timeout"],
        }
        run = demo.model_copy(update={"run_id": run_id, "swarm": demo.swarm.model_copy(update=settings)})
        factory = partial(SwarmGradientAverager, **averager_opts)
        super().__init__(run=run, matchmaking_time=matchmaking_time, grad_averager_factory=factory, **kwargs)


for _module in (hivemind, hivemind.averaging, hivemind.averaging.averager):
    _module.DecentralizedAverager = ReportingAverager
for _module in (hivemind.averaging.allreduce, hivemind.averaging.averager):
    _module.AllReduceRunner = ReportingRunner
hivemind.optim.grad_averager.GradientAverager = SwarmGradientAverager
hivemind.optim.power_sgd_averager.PowerSGDGradientAverager = SwarmPowerSGDAverager
hivemind.optim.state_averager.TrainingStateAverager = SwarmStateAverager
hivemind.optim.progress_tracker.ProgressTracker = Tracker
hivemind.optim.optimizer.Optimizer = Optimizer
