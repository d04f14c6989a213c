"""The interface of a strategy, and the parts of a peer that it works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from training.optim.build import build_optimizer
from training.optim.groups import parameter_groups
from training.optim.schedule import learning_rate_factor
from training.recipe import RunConfig
from training.swarm.engine.codecs import exchange_codec
from training.swarm.engine.process import DHT
from training.swarm.epoch.exchange import Exchange
from training.swarm.epoch.gradients import GradientAverager
from training.swarm.epoch.powersgd import PowerSgd, powersgd_codec
from training.swarm.epoch.strategies.momentum import optimizer_of_averages, peer_momentum
from training.swarm.epoch.updates import Updates
from training.swarm.peers.epochs import EpochEnd
from training.swarm.round.pipe import AveragerSettings
from training.swarm.state.master_weights import MasterWeights


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a peer that a strategy uses."""

    run: RunConfig
    model: nn.Module
    master: MasterWeights
    updates: Updates
    exchange: Exchange
    begin_update: Callable[..., None]
    """Begins the update that ends an epoch, with the round of parameters that is due; see `Updates.begin`."""
    report: Callable[[EpochEnd], None]
    """Reports an epoch whose average ends in the background."""


class Strategy(ABC):
    """Rule for when the weights change and what the peers exchange for that.

    The class methods make parts of a peer; `SwarmOptimizer` calls the other methods while it trains.
    """

    epochs_apart = 0
    """Epochs by which a peer may be ahead of its gradients while they are averaged. The epochs of the gradients in a
    group may differ by as many."""
    weights_of: Callable[..., MasterWeights] = MasterWeights
    """Makes the master weights of groups; see `MasterWeights`."""

    def __init__(self, parts: Parts):
        self.parts = parts

    @classmethod
    def make_master(cls, model: nn.Module, run: RunConfig) -> MasterWeights:
        """Makes the master weights of a model, and the optimizer that updates them."""
        return cls.weights_of(
            cls.groups(model, run), partial(cls.make_optimizer, run=run), partial(cls.learning_rate, run=run)
        )

    @classmethod
    def groups(cls, model: nn.Module, run: RunConfig) -> list[dict]:
        """Groups the parameters for the optimizer of `make_optimizer`, in the order in which peers send them."""
        return parameter_groups(model, run.optimizer)

    @classmethod
    def make_optimizer(cls, groups: Iterable[dict], run: RunConfig) -> torch.optim.Optimizer:
        """Makes the optimizer of the common weights, whose state peers send to newcomers and to the monitor."""
        return build_optimizer(
            optimizer_of_averages(run), groups, lr=run.schedule.peak_learning_rate, given_momentum=peer_momentum(run)
        )

    @classmethod
    def learning_rate(cls, epoch: int, run: RunConfig) -> float:
        """Learning rate of the update that ends an epoch."""
        return run.schedule.peak_learning_rate * learning_rate_factor(epoch, run.schedule)

    @classmethod
    def make_averager(
        cls, master: MasterWeights, run: RunConfig, *, dht: DHT, settings: AveragerSettings
    ) -> GradientAverager:
        """Makes the averager of gradients or of distances; the optimizer uses its tensors as gradients."""
        codec = exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec)
        method = None
        if run.swarm.powersgd_rank:
            codec, method = powersgd_codec(codec), PowerSgd(master.shapes, run.swarm.powersgd_rank)
        settings = replace(settings, compression=codec)
        return GradientAverager(
            master.model_parameters, dht=dht, settings=settings, method=method, momentum=peer_momentum(run)
        )

    def add_gradients(self, samples: int, epoch: int) -> None:
        """Takes a micro-batch's gradients from the model and adds them to the sums of an epoch."""
        self.parts.exchange.averager.add_gradients(samples, epoch)

    @abstractmethod
    def end_epoch(self, epoch_end: EpochEnd) -> None:
        """Exchanges with the other peers and updates the weights; called when the samples of all peers are there.

        Raises:
            LeftBehindError: If the others have gone on without this peer; then the epoch has not ended for this peer.
        """

    def forget(self) -> None:
        """Drops the gradients computed so far, since the peer goes on with other weights."""
        self.parts.exchange.averager.forget()
