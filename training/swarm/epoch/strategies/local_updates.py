"""Local updates for slow links: each peer trains by itself for a while, then peers average how far weights have moved.

A peer's inner optimizer, the recipe's, updates its own weights. When all peers together have computed the target
batch, the distance from the common weights to each peer's own is averaged, weighted by samples, as if it was a
gradient, and an outer optimizer, SGD with Nesterov momentum, moves the common weights by it; from these all peers go
on. With n equal peers each does H = target_batch_size / (n * inner_batch_size) inner updates between two exchanges.

Source: Douillard et al. 2023, arXiv:2311.08105 (DiLoCo). It fixes H for every peer; here, as with awaited gradients,
peers of uneven speed contribute what they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from training.optim.build import build_optimizer
from training.optim.groups import parameter_groups
from training.optim.schedule import learning_rate_factor
from training.recipe import RunConfig
from training.swarm.engine.codecs import exchange_codec
from training.swarm.engine.process import DHT
from training.swarm.epoch.gradients import GradientAverager
from training.swarm.epoch.strategies.strategy import Parts, Strategy
from training.swarm.peers.epochs import EpochEnd
from training.swarm.round.pipe import AveragerSettings
from training.swarm.state.master_weights import MasterWeights


class DistanceAverager(GradientAverager):
    """Averages the distances by which peers' weights have moved since the last exchange; keeps no gradients.

    Args:
        common_weights: The master weights, with which all peers began the epoch; in the order of the parameters.
        parameters: This peer's own weights; see `GradientAverager`.
        kwargs: Further arguments of `GradientAverager`.
    """

    def __init__(self, common_weights: Sequence[Tensor], parameters: Sequence[nn.Parameter], **kwargs):
        self._common_weights = tuple(weights.detach() for weights in common_weights)
        super().__init__(parameters, **kwargs)

    def _make_sums(self) -> tuple[Tensor, ...]:
        return ()

    def add_gradients(self, samples: int, epoch: int = 0) -> None:
        """Counts samples, by which the distance is weighted."""
        self.samples += samples

    def _write_mean(self, averaged: Sequence[Tensor]) -> None:
        """Writes the current distances to the averaged tensors."""
        for distance, common, own in zip(averaged, self._common_weights, self.parameters, strict=True):
            # An optimizer moves against its gradient, so the distance is common minus own weights: that moves towards
            # the own.
            distance.copy_(common).sub_(own.detach().to(distance.device))


class LocalUpdates(Strategy):
    """Strategy in which epochs are exchanges between stretches of local training; see the module.

    On the host a peer holds weights, momentum and distance (12 bytes a parameter). It also holds the inner
    optimizer's state and the sum of an inner batch's gradients (4 bytes a parameter) where its model is.
    """

    outer_learning_rate, outer_momentum = 0.7, 0.9
    """Settings of the outer optimizer, as in the paper."""

    def __init__(self, parts: Parts):
        super().__init__(parts)
        config, groups = parts.run.optimizer, parameter_groups(parts.model, parts.run.optimizer)
        self.inner = build_optimizer(config, groups, lr=parts.run.schedule.peak_learning_rate)
        self.inner_samples = 0
        """Number of samples since the last inner update."""
        self.sums = [torch.zeros_like(parameter) for parameter in parts.master.model_parameters]
        """Sums of the gradients of `inner_samples`."""

    @classmethod
    def groups(cls, model: nn.Module, run: RunConfig) -> list[dict]:
        """Groups the parameters without weight decay, which the inner optimizer has already; see `Strategy.groups`."""
        return [dict(params=group["params"], weight_decay=0.0) for group in super().groups(model, run)]

    @classmethod
    def make_optimizer(cls, groups: Iterable[dict], run: RunConfig) -> torch.optim.Optimizer:
        """Makes the outer optimizer."""
        rate, momentum = cls.outer_learning_rate, cls.outer_momentum
        return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, foreach=False)

    @classmethod
    def learning_rate(cls, epoch: int, run: RunConfig) -> float:
        """Learning rate of the outer optimizer, equal for all epochs."""
        return cls.outer_learning_rate

    @classmethod
    def make_averager(
        cls, master: MasterWeights, run: RunConfig, *, dht: DHT, settings: AveragerSettings
    ) -> DistanceAverager:
        """Makes the averager of the distances; see `Strategy`."""
        codec = exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec)
        settings = replace(settings, compression=codec)
        return DistanceAverager(master.parameters, master.model_parameters, dht=dht, settings=settings)

    def add_gradients(self, samples: int, epoch: int) -> None:
        """Adds up a micro-batch, and updates this peer's own weights when an inner batch is full."""
        super().add_gradients(samples, epoch)
        with torch.no_grad():
            for total, parameter in zip(self.sums, self.parts.master.model_parameters, strict=True):
                if parameter.grad is not None:
                    total.add_(parameter.grad, alpha=samples)
        self.inner_samples += samples
        if self.inner_samples >= self.parts.run.swarm.inner_batch_size:
            self._inner_update(epoch)

    def end_epoch(self, epoch_end: EpochEnd) -> None:
        """Averages the distances and awaits the outer update, which would undo inner updates made meanwhile."""
        if self.inner_samples:
            self._inner_update(epoch_end.epoch)
        self.parts.exchange.finish(self.parts.exchange.begin(epoch_end), epoch_end)
        self.parts.begin_update(epoch_end.epoch)
        self.parts.updates.wait()

    def forget(self) -> None:
        """Drops the samples and gradients since the last exchange; see `Strategy`."""
        super().forget()
        for total in self.sums:
            total.zero_()
        self.inner_samples = 0

    @torch.no_grad()
    def _inner_update(self, epoch: int) -> None:
        """Updates this peer's own weights by the mean gradient of the samples since its last update."""
        schedule = self.parts.run.schedule
        for group in self.inner.param_groups:
            group["lr"] = schedule.peak_learning_rate * learning_rate_factor(epoch, schedule)
        for total, parameter in zip(self.sums, self.parts.master.model_parameters, strict=True):
            parameter.grad = total.div_(self.inner_samples)
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        for total in self.sums:
            total.zero_()
        self.inner_samples = 0
