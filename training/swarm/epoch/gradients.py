"""Gradients of an epoch: added up over micro-batches, and averaged with other peers', weighted by samples.

With momentum, a peer sends the mean over the samples of its recent epochs too. An epoch's samples count less with each
later epoch:

    (sum_k momentum^k g_k) / (sum_k momentum^k n_k)        g_k: sum of the gradients of the n_k samples k epochs ago

Means over more samples differ less from peer to peer, so a hostile peer can deviate less without being noticed
(Karimireddy et al. 2021, arXiv:2012.10333). The mean of a peer that has just come is over fewer samples; it is not
biased.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.swarm.engine.process import DHT
from training.swarm.peers.groups import Announcement
from training.swarm.round.averager import Averager, Round
from training.swarm.round.pipe import AveragerSettings
from training.swarm.round.rounds import AveragingMethod


class GradientAverager(Averager):
    """Averages the gradients of some parameters.

    Takes 4 bytes a value for the sums, on the device of the parameters, and 4 on the host for the averaged tensors.
    Momentum takes no more: the sums of earlier epochs stay in the same memory.

    Args:
        parameters: Parameters of the model.
        dht: A running node.
        settings: Settings of the averager; see `Averager`.
        method: Averages the gradients within a group; None: averages all in one all-reduce.
        momentum: Factor by which an epoch's samples count less in the next epoch's mean; 0: they do not count there.
        start: Start the averager's process.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        dht: DHT,
        settings: AveragerSettings,
        method: AveragingMethod | None = None,
        momentum: float = 0.0,
        start: bool = True,
    ):
        self.parameters, self.momentum = tuple(parameters), momentum
        self.samples = 0
        """Samples of this epoch whose gradients have been added up."""
        self.not_finite = False
        """True if the last gradients were left out because they were not finite."""
        self.is_new = True
        """True until this peer's first update; until then it tells its group how many peers it knows to train."""
        self._sums = self._make_sums()
        self._earlier_samples = 0.0
        """Samples in the sums, those of earlier epochs scaled by momentum."""
        self._epoch = 0
        """Newest epoch in the sums."""
        averaged = [torch.zeros(parameter.shape, dtype=torch.float32) for parameter in self.parameters]
        super().__init__(averaged, dht=dht, settings=settings, method=method, start=start)

    def _make_sums(self) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(parameter) for parameter in self.parameters)

    @torch.no_grad()
    def add_gradients(self, samples: int, epoch: int = 0) -> None:
        """Adds the model's gradients, each a mean over `samples` samples, to the sums of an epoch."""
        self._decay_to(epoch)
        # A sum over samples, so that each sample counts equally, whatever the size of its micro-batch.
        for total, parameter in zip(self._sums, self.parameters, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=samples)
        self.samples += samples

    def _decay_to(self, epoch: int) -> None:
        """Scales the sums by momentum for each epoch passed; drops them after a return to an earlier epoch."""
        passed, self._epoch = epoch - self._epoch, epoch
        if passed and self.momentum:
            left = self.momentum**passed if passed > 0 else 0.0
            for total in self._sums:
                total.mul_(left)
            self._earlier_samples *= left

    @torch.no_grad()
    def load_mean(self) -> int:
        """Writes the mean over all samples to the tensors that are averaged. Returns the number of the epoch's samples.

        If a gradient is not finite, the means are zeros, and the result is 0: the peer then takes the others' mean.
        """
        samples, self.samples = self.samples, 0
        self._earlier_samples += samples
        with self.get_tensors() as averaged:
            self._write_mean(averaged)
            self.not_finite = not all(bool(torch.isfinite(mean).all()) for mean in averaged)
            if self.not_finite:
                for mean in averaged:
                    mean.zero_()
        if self.not_finite or not self.momentum:
            self._drop_sums()
        return 0 if self.not_finite else samples

    def _write_mean(self, averaged: Sequence[Tensor]) -> None:
        for total, mean in zip(self._sums, averaged, strict=True):
            mean.copy_(total).div_(self._earlier_samples or 1)

    @torch.no_grad()
    def forget(self) -> None:
        """Drops the gradients added up since the last mean.

        With momentum, the sums also contain earlier epochs; these are dropped as well if gradients have been added
        since.
        """
        if self.samples:
            self._drop_sums()

    def _drop_sums(self) -> None:
        for total in self._sums:
            total.zero_()
        self.samples, self._earlier_samples = 0, 0.0

    def look_for_group(self, epoch: int, *, wants_weights: bool, expected_peers: int, seconds: float) -> Round:
        """Begins a round for the gradients of an epoch; see `Averager.begin_round`."""
        announcement = Announcement(epoch, wants_weights, expected_peers if self.is_new else 0)
        return self.begin_round(announcement.packed(), seconds=seconds, expected_peers=expected_peers)
