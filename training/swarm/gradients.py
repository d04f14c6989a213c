"""Gradients of an epoch: added up by micro-batches, averaged with the others weighted by samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hivemind.dht import DHT
from torch import Tensor, nn

from training.swarm.averager import Averager, Round
from training.swarm.groups import Announcement
from training.swarm.pipe import AveragerSettings
from training.swarm.rounds import AveragingMethod


class GradientAverager(Averager):
    """Averages the gradients of some parameters.

    Takes 4 bytes a value for the sums, where the parameters are, and 4 on the host for what is averaged.

    Args:
        parameters: Of the model.
        dht: A running node.
        settings: See `Averager`.
        method: What a group does with the gradients; None: the weighted mean.
        start: Start the averager's process.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        dht: DHT,
        settings: AveragerSettings,
        method: AveragingMethod | None = None,
        start: bool = True,
    ):
        self.parameters = tuple(parameters)
        self.samples = 0
        """Samples whose gradients have been added up."""
        self.not_finite = False
        """Whether the last gradients were left out, because they were not finite."""
        self.is_new = True
        """Whether it has not yet been in an average with others; it then tells its group how many peers it knows."""
        self._sums = self._make_sums()
        averaged = [torch.zeros(parameter.shape, dtype=torch.float32) for parameter in self.parameters]
        super().__init__(averaged, dht=dht, settings=settings, method=method, start=start)

    def _make_sums(self) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(parameter) for parameter in self.parameters)

    @torch.no_grad()
    def add_gradients(self, samples: int) -> None:
        """Adds the model's gradients, which are means over so many samples."""
        # A sum over samples, so that each sample counts the same, whatever the size of its micro-batch.
        for total, parameter in zip(self._sums, self.parameters, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=samples)
        self.samples += samples

    @torch.no_grad()
    def load_mean(self) -> int:
        """Writes the mean over all samples to what is averaged, and forgets the sums; returns the samples that count.

        If a gradient is not finite, all become zeros and no sample counts: the peer then takes the others' mean.
        """
        samples, self.samples = self.samples, 0
        with self.get_tensors() as averaged:
            self._write_mean(samples, averaged)
            self.not_finite = not all(bool(torch.isfinite(mean).all()) for mean in averaged)
            if self.not_finite:
                for mean in averaged:
                    mean.zero_()
        self.forget()
        return 0 if self.not_finite else samples

    def _write_mean(self, samples: int, averaged: Sequence[Tensor]) -> None:
        for total, mean in zip(self._sums, averaged, strict=True):
            mean.copy_(total).div_(max(samples, 1))

    @torch.no_grad()
    def forget(self) -> None:
        """Drops what was added up."""
        for total in self._sums:
            total.zero_()
        self.samples = 0

    def look_for_group(self, epoch: int, *, wants_weights: bool, expected_peers: int, seconds: float) -> Round:
        """Begins a round for the gradients of an epoch; see `Averager.begin_round`."""
        announcement = Announcement(epoch, wants_weights, expected_peers if self.is_new else 0)
        return self.begin_round(announcement.packed(), seconds=seconds, expected_peers=expected_peers)
