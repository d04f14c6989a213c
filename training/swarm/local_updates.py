"""Local updates for slow links: each peer trains by itself for a while, then all average how far they came.

A peer's inner optimizer, the recipe's LAMB, updates its own weights. When all peers together have computed the target
batch, the distance from the common weights to each peer's own is averaged, weighted by samples, as if it was a
gradient, and an outer optimizer, SGD with Nesterov momentum, moves the common weights by it; from these all peers go
on. With n equal peers each does H = target_batch_size / (n * inner_batch_size) inner updates between two exchanges.

Source: Douillard et al. 2023, arXiv:2311.08105 (DiLoCo). It fixes H for every peer; here, as in the synchronous mode,
peers of uneven speed contribute what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from training.optim.lamb import build_optimizer, parameter_groups
from training.optim.schedule import learning_rate_factor
from training.swarm.averaging import SwarmGradientAverager
from training.swarm.optimizer import SwarmOptimizer


def build_local_update_optimizer(model: torch.nn.Module, settings: Mapping) -> LocalUpdateOptimizer:
    """The optimizer of the `diloco` mode.

    The outer step is never delayed: the updates that a peer did meanwhile would be lost.

    Args:
        model: Its parameters are trained.
        settings: What the synchronous mode's optimizer is made with.
    """
    swarm = settings["run"].swarm
    changes = dict(
        params=parameter_groups(model, weight_decay=0.0),  # the inner optimizer decays
        optimizer=partial(
            torch.optim.SGD, lr=swarm.outer_learning_rate, momentum=swarm.outer_momentum, nesterov=True, foreach=False
        ),
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda epoch: 1.0),
        delay_optimizer_step=False,
        delay_grad_averaging=False,
        delay_state_averaging=False,
        grad_averager_factory=partial(DistanceAverager, **settings["grad_averager_factory"].keywords),
    )
    return LocalUpdateOptimizer(model=model, **{**settings, **changes})


class DistanceAverager(SwarmGradientAverager):
    """Averages how far peers' weights have come since the last exchange; keeps no gradients."""

    _rpc_handlers = None
    _stub_type = None
    common_weights: tuple[Tensor, ...] = ()
    """Where all peers began, in the order of the parameters; the optimizer sets it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._local_accumulators = ()

    def accumulate_grads_(self, batch_size: int) -> None:
        """Counts samples, by which the distance is weighted."""
        self.local_samples_accumulated += batch_size
        self.local_times_accumulated += 1

    @torch.no_grad()
    def load_accumulators_into_averager_(self) -> None:
        """Takes the distances as they are now."""
        with self.get_tensors() as distances:
            for distance, common, own in zip(distances, self.common_weights, self.parameters, strict=True):
                distance.copy_(common).sub_(own.to(distance.device))
        self._leave_out_what_is_not_finite()


class LocalUpdateOptimizer(SwarmOptimizer):
    """`SwarmOptimizer` whose epochs are exchanges between stretches of local training; see the module.

    Besides the outer optimizer's host copies (weights, momentum and distance, 12 bytes a parameter), a peer holds the
    inner optimizer's state and the sum of an inner batch's gradients (4 bytes a parameter) where its model is.
    Everything that waits for, reports on or recovers from an exchange is the synchronous mode's.
    """

    def __init__(self, *, model: torch.nn.Module, **kwargs):
        super().__init__(**kwargs)
        config = self._run.optimizer
        self.inner = build_optimizer(
            config, parameter_groups(model, config.weight_decay), lr=self._run.schedule.peak_learning_rate
        )
        self._inner_samples = 0
        self._sums = [torch.zeros_like(parameter) for parameter in self._inner_parameters()]
        outer = [parameter for group in self.opt.param_groups for parameter in group["params"]]
        self.grad_averager.common_weights = tuple(parameter.detach() for parameter in outer)

    def _inner_parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.inner.param_groups for parameter in group["params"]]

    def zero_inner_gradients(self) -> None:
        """Forgets what has added up of an inner batch."""
        for total in self._sums:
            total.zero_()
        self._inner_samples = 0

    def _check_and_accumulate_gradients(self, batch_size: int, grad_scaler: object) -> bool:
        for total, parameter in zip(self._sums, self._inner_parameters(), strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=batch_size)
        self._inner_samples += batch_size
        if self._inner_samples >= self._run.swarm.inner_batch_size:
            self._inner_update()
        return super()._check_and_accumulate_gradients(batch_size, grad_scaler)

    @torch.no_grad()
    def _inner_update(self) -> None:
        """One update of this peer's own weights by the mean gradient of the samples since the last one."""
        rate = self._run.schedule.peak_learning_rate * learning_rate_factor(self.local_epoch, self._run.schedule)
        for group in self.inner.param_groups:
            group["lr"] = rate
        for total, parameter in zip(self._sums, self._inner_parameters(), strict=True):
            parameter.grad = total.div_(self._inner_samples)
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        self.zero_inner_gradients()

    def _update_global_epoch(self, grad_scaler: object) -> None:
        if self._inner_samples:
            self._inner_update()
        super()._update_global_epoch(grad_scaler)

    def _begin_epoch(self, epoch: int) -> None:
        super()._begin_epoch(epoch)
        self.zero_inner_gradients()
