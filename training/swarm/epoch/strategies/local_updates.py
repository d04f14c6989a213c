"""Local updates for slow links: each peer trains by itself for a while, then peers average how far weights have moved.

A peer's inner optimizer, the recipe's, updates its own weights. When all peers together have computed the target
batch, the distance from the common weights to each peer's own is averaged, weighted by samples, as if it was a
gradient, and an outer optimizer, SGD with Nesterov momentum, moves the common weights by it; from these all peers go
on. With n equal peers each does H = target_batch_size / (n * inner_batch_size) inner updates between two exchanges.

Source: Douillard et al. 2023, arXiv:2311.08105 (DiLoCo). It fixes H for every peer; here, as with awaited gradients,
peers of uneven speed contribute what they have.

With `delay_outer_step` an exchange runs while the peers train on (`OverlappedUpdates`).
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


class CommonWeights(MasterWeights):
    """Weights that all peers have in common; the model has this peer's own weights."""

    unsent: Sequence[Tensor] = ()
    """What this peer has not sent yet of the distances that it moved (`sparse`), in the order of the parameters."""
    own_share = 0.0
    """Share of `unsent` by which this peer's own weights are ahead of the common ones."""
    _came_from: list[Tensor] | None = None
    """Weights from which the model's progress since the last offer counts; None: nobody trains in an exchange."""

    def allow_overlap(self) -> None:
        """Lets the model train on between an offer and the update that follows it; takes 4 bytes a parameter."""
        self._came_from = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def offer(self, distances: Sequence[Tensor]) -> None:
        """Writes how far the model has moved since the last exchange."""
        for place, (distance, own) in enumerate(zip(distances, self.model_parameters, strict=True)):
            # An optimizer moves against its gradient, so the distance is the start minus own weights: that moves
            # towards the own.
            distance.copy_(self._start(place)).sub_(own.detach().to(distance.device))
            if self._came_from is not None:
                self._came_from[place].copy_(own)

    @torch.no_grad()
    def update_model(self) -> None:
        """Replaces what the model had offered by what all peers offered; keeps its progress since then."""
        for place, own in enumerate(self.model_parameters):
            start = self._start(place)
            if self._came_from is not None:
                came_from = self._came_from[place]
                progress = own.detach().to(start.device) - came_from
                came_from.copy_(start)
                # What is not finite would stay so for ever: it is dropped, as where an exchange is awaited.
                start = progress.nan_to_num_(0.0, 0.0, 0.0).add_(start)
            own.copy_(start)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Makes the model's weights the common ones, for a peer that goes on where others are: drops its progress."""
        with self._hold_gradients():
            for unsent in self.unsent:
                unsent.zero_()
        super().copy_to_model()
        if self._came_from is not None:
            self.allow_overlap()

    def _start(self, place: int) -> Tensor:
        """Returns one tensor of the weights from which this peer sets out after an exchange."""
        common = self.parameters[place].detach()
        return common.sub(self.unsent[place], alpha=self.own_share) if self.unsent else common


class DistanceAverager(GradientAverager):
    """Averages the distances by which peers' weights have moved since the last exchange; keeps no gradients.

    Args:
        master: The common weights, and this peer's own.
        kwargs: Further arguments of `GradientAverager`.
    """

    def __init__(self, master: CommonWeights, **kwargs):
        self._master = master
        super().__init__(master.model_parameters, **kwargs)

    def _make_sums(self) -> tuple[Tensor, ...]:
        return ()

    def add_gradients(self, samples: int, epoch: int = 0) -> None:
        """Counts samples, by which the distance is weighted."""
        self.samples += samples

    def _write_mean(self, averaged: Sequence[Tensor]) -> None:
        self._master.offer(averaged)


class LocalUpdates(Strategy):
    """Strategy in which epochs are exchanges between stretches of local training; see the module.

    On the host a peer holds weights, momentum and distance (12 bytes a parameter). It also holds the inner
    optimizer's state and the sum of an inner batch's gradients (4 bytes a parameter) where its model is.
    """

    weights_of = CommonWeights
    outer_learning_rate, outer_momentum = 0.7, 0.9
    """Settings of the outer optimizer in a run of 1000 exchanges or more, as in the paper; see `outer_settings`."""

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
        rate, momentum = cls.outer_settings(run)
        return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, foreach=False)

    @classmethod
    def learning_rate(cls, epoch: int, run: RunConfig) -> float:
        """Learning rate of the outer optimizer, equal for all epochs."""
        return cls.outer_settings(run)[0]

    @classmethod
    def outer_settings(cls, run: RunConfig) -> tuple[float, float]:
        """Returns learning rate and momentum of the outer optimizer.

        A momentum m goes on for 1 / (1 - m) exchanges after the distances that it came from, at most a hundredth of the
        run here. With the paper's 0.7 and 0.9, runs of 20 and of 200 exchanges ended with a higher loss
        (benchmarks/README.md).
        """
        momentum = min(cls.outer_momentum, max(0.0, 1 - 100 / run.schedule.total_epochs))
        share = momentum / cls.outer_momentum if cls.outer_momentum else 1.0
        return 1 - share * (1 - cls.outer_learning_rate), momentum

    @classmethod
    def make_averager(
        cls, master: CommonWeights, run: RunConfig, *, dht: DHT, settings: AveragerSettings
    ) -> DistanceAverager:
        """Makes the averager of the distances; see `Strategy`."""
        codec = exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec)
        settings = replace(settings, compression=codec)
        return DistanceAverager(master, dht=dht, settings=settings)

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
        """Averages the distances, and awaits the outer update."""
        self._end_inner_batch(epoch_end.epoch)
        self.parts.exchange.finish(self.parts.exchange.begin(epoch_end), epoch_end)
        self.parts.begin_update(epoch_end.epoch)
        self.parts.updates.wait()

    def forget(self) -> None:
        """Drops the samples and gradients since the last exchange; see `Strategy`."""
        super().forget()
        for total in self.sums:
            total.zero_()
        self.inner_samples = 0

    def _end_inner_batch(self, epoch: int) -> None:
        """Updates this peer's own weights with the samples that fill no inner batch any more."""
        if self.inner_samples:
            self._inner_update(epoch)

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
