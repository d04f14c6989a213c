"""hivemind's optimizer over ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

from hivemind.dht import DHT
from hivemind.utils.performance_ema import PerformanceEMA
from torch import nn

from adapters.progress import has_threads
from training.config import load_recipe
from training.swarm.optimizer import SwarmOptimizer


class Optimizer(SwarmOptimizer):
    """Takes hivemind's arguments; the rest is as in the demo's recipe, its optimizer and schedule included."""

    def __init__(
        self,
        *,
        run_id: str,
        params: Iterable[nn.Parameter],
        dht: DHT,
        optimizer: Callable,
        scheduler: Callable,
        batch_size_per_step: int,
        reuse_grad_buffers: bool,
        use_local_updates: bool,
        delay_state_averaging: bool,
        client_mode: bool,
        verbose: bool,
        tracker_opts: dict,
        **settings: object,
    ):
        assert not use_local_updates
        demo, identity = load_recipe("demo"), SimpleNamespace(private_key=tracker_opts["private_key"])
        run = demo.model_copy(
            update={"run_id": run_id, "swarm": demo.swarm.model_copy(update=swarm_settings(**settings))}
        )
        self._clears_gradients = reuse_grad_buffers
        model, where = nn.ParameterList(params), {"dht": dht, "client_mode": client_mode}
        super().__init__(model, run, **where, identity=identity, micro_batch_size=batch_size_per_step)

    def step(self) -> None:
        """With `reuse_grad_buffers` the test does not clear the model's gradients."""
        super().step()
        if self._clears_gradients:
            self.zero_grad()

    @property
    def tracker(self) -> Tracker:
        return Tracker(self)

    @property
    def state_averager(self) -> object:
        return self.parameters

    @property
    def grad_averager(self) -> object:
        return self.gradients

    @property
    def scheduled_grads(self) -> object:
        return self.exchange._search


class Tracker:
    """hivemind's names for an optimizer's progress."""

    def __init__(self, optimizer: SwarmOptimizer):
        self._progress = optimizer.progress

    @property
    def global_epoch(self) -> int:
        return self._progress.global_epoch

    @property
    def performance_ema(self) -> PerformanceEMA:
        return self._progress.performance

    def is_alive(self) -> bool:
        return has_threads(self._progress)


def swarm_settings(
    *,
    target_batch_size: int,
    matchmaking_time: float,
    averaging_timeout: float,
    averager_opts: dict,
    delay_grad_averaging: bool,
    delay_optimizer_step: bool,
    average_state_every: int,
) -> dict[str, object]:
    """The recipe's names of hivemind's settings; the two time-outs follow from the others there."""
    return {
        "target_batch_size": target_batch_size,
        "matchmaking_seconds": matchmaking_time,
        "delay_gradient_averaging": delay_grad_averaging,
        "delay_optimizer_step": delay_optimizer_step,
        "average_state_every": average_state_every,
    }
