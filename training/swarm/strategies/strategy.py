"""What a strategy is asked, and what it works with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from hivemind.dht import DHT
from torch import nn

from training.config import RunConfig
from training.optim.lamb import build_optimizer, parameter_groups
from training.optim.schedule import learning_rate_factor
from training.swarm.codecs import exchange_codec
from training.swarm.epochs import EpochEnd
from training.swarm.exchange import Exchange
from training.swarm.gradients import GradientAverager
from training.swarm.host import Host
from training.swarm.pipe import AveragerSettings
from training.swarm.powersgd import PowerSgd, powersgd_codec
from training.swarm.updates import Updates


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a peer that a strategy puts to use."""

    run: RunConfig
    model: nn.Module
    host: Host
    updates: Updates
    exchange: Exchange
    begin_update: Callable[..., None]
    """`Updates.begin` for the epoch that ends, with the round of parameters that is due with it."""
    report: Callable[[EpochEnd], None]
    """Reports an epoch whose average ends in the background."""


class Strategy(ABC):
    """When weights move, and what is exchanged for that.

    The class methods make what a peer is built of; the others are called while it trains, by `SwarmOptimizer`.
    """

    epochs_apart = 0
    """So many epochs further than its gradients a peer may be while these are averaged."""

    def __init__(self, parts: Parts):
        self.parts = parts

    @classmethod
    def make_host(cls, model: nn.Module, run: RunConfig) -> Host:
        """The host's copies of the model's weights, and the optimizer that moves them."""
        schedule = run.schedule
        return Host(
            parameter_groups(model, run.optimizer.weight_decay),
            partial(build_optimizer, run.optimizer, lr=schedule.peak_learning_rate),
            lambda epoch: schedule.peak_learning_rate * learning_rate_factor(epoch, schedule),
        )

    @classmethod
    def make_averager(cls, host: Host, run: RunConfig, *, dht: DHT, settings: AveragerSettings) -> GradientAverager:
        """What averages gradients, or what stands for them; its tensors are the gradients of the host's optimizer."""
        codec = exchange_codec(run.swarm.compression_threshold, run.swarm.gradient_codec)
        method = None
        if run.swarm.powersgd_rank:
            codec, method = powersgd_codec(codec), PowerSgd(host.shapes, run.swarm.powersgd_rank)
        settings = replace(settings, compression=codec)
        return GradientAverager(host.model_parameters, dht=dht, settings=settings, method=method)

    def add_gradients(self, samples: int, epoch: int) -> None:
        """Takes the gradients of a micro-batch, which are of this epoch, from the model."""
        self.parts.exchange.averager.add_gradients(samples)

    @abstractmethod
    def end_epoch(self, end: EpochEnd) -> None:
        """The samples of all peers are there: exchanges what it must and moves the weights.

        Raises:
            LeftBehindError: If the others have gone on without this peer; the epoch has not ended for it then.
        """

    def forget(self) -> None:
        """Drops what was computed: the peer goes on with other weights."""
        self.parts.exchange.averager.forget()
