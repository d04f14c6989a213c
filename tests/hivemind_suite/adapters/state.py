"""hivemind's averager of a training state over our host and its averager of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from hivemind.compression import CompressionBase, NoCompression
from torch import nn

from adapters.averager import DOWNLOAD_SECONDS, DecentralizedAverager
from training.swarm.round.pipe import AveragerSettings
from training.swarm.round.serving import Head
from training.swarm.state.alignment import AlignmentState
from training.swarm.state.download import download_state, most_state_bytes
from training.swarm.state.host import Host
from training.swarm.state.parameters import ParameterAverager

LATEST_EPOCH = 10_000


class TrainingStateAverager(DecentralizedAverager):
    """Takes hivemind's arguments, but for what ours do not average: `extra_tensors`, `average_opt_statistics`."""

    def __init__(
        self,
        *,
        params: Iterable[nn.Parameter],
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
        **options: object,
    ):
        self.local_epoch = 0
        self._make_optimizer, self._make_scheduler = optimizer, scheduler
        self.host = HostOfAModel(self, [{"params": list(params)}], optimizer, self._learning_rate)
        super().__init__(self.host.parameters, **options)

    def _make_averager(
        self, parameters: Sequence[nn.Parameter], settings: AveragerSettings, *, start: bool
    ) -> ParameterAverager:
        everything = {"dht": self.dht, "settings": settings, "codec": NoCompression(), "start": start}
        return ParameterAverager(self.host, AlignmentState(), **everything)

    def _learning_rate(self, epoch: int) -> float:
        optimizer = self._make_optimizer([nn.Parameter(torch.zeros(1))])
        scheduler = self._make_scheduler(optimizer)
        for _ in range(epoch):
            optimizer.step()
            scheduler.step()
        return optimizer.param_groups[0]["lr"]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.host.optimizer

    def load_state_from_peers(self) -> None:
        """And makes an update by gradients of zero: ours sets the learning rate with the update, not before."""
        state = download_state(
            self.dht,
            self.prefix,
            shapes=self.host.shapes,
            chunk_seconds=DOWNLOAD_SECONDS,
            total_seconds=DOWNLOAD_SECONDS,
            max_bytes=most_state_bytes(self.host.shapes),
            epochs=range(LATEST_EPOCH),
        )
        self.host.load_state(state.tensors, state.optimizer_metadata, state.epoch)
        self.local_epoch = self.host.epoch
        self.host.use_gradients([torch.zeros_like(parameter) for parameter in self.host.parameters])
        self.host.update(self.local_epoch)
        self.host.copy_to_model()


class HostOfAModel(Host):
    """A host whose weights and epoch are the model's when a newcomer asks: hivemind's test changes these."""

    def __init__(self, averager: TrainingStateAverager, *arguments: object):
        self._averager = averager
        super().__init__(*arguments)

    def packed_state(self, codec: CompressionBase, *, drifted: bool) -> tuple[dict, torch.Tensor, list[Head]]:
        self.load([parameter.detach() for parameter in self.model_parameters], self._averager.local_epoch)
        return super().packed_state(codec, drifted=drifted)
