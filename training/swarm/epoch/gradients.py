"""Gradients of an epoch: added up by micro-batches, averaged with the others weighted by samples.

With momentum, a peer sends the mean over the samples of its recent epochs as well, where those of an epoch count less
with each epoch that has passed since:

    (sum_k momentum^k g_k) / (sum_k momentum^k n_k)        g_k: sum of the gradients of the n_k samples k epochs ago

Means over more samples differ less from peer to peer, which leaves less room to hide among them (Karimireddy et al.
2021, arXiv:2012.10333). A peer that has just come has a mean as well, only of fewer samples: it is not biased.
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

    Takes 4 bytes a value for the sums, where the parameters are, and 4 on the host for what is averaged. Momentum takes
    none: the sums of earlier epochs stay in the same memory.

    Args:
        parameters: Of the model.
        dht: A running node.
        settings: See `Averager`.
        method: What a group does with the gradients; None: averages all in one all-reduce.
        momentum: How much an epoch's samples count in the next one's mean; 0: not at all.
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
        """Samples whose gradients have been added up."""
        self.not_finite = False
        """True if the last gradients were left out because they were not finite."""
        self.is_new = True
        """True until this peer's first update; until then it tells its group how many peers it knows."""
        self._sums = self._make_sums()
        self._earlier_samples = 0.0
        """Samples of earlier epochs in the sums, weighted by the momentum of today."""
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
        # A sum over samples, so that each sample counts the same, whatever the size of its micro-batch.
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
        """Writes the mean over all samples to what is averaged; returns the samples of the epoch if they count.

        If a gradient is not finite, all become zeros and no sample counts: the peer then takes the others' mean.
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
        """Drops what was added up since the last mean; with momentum, what was added up before as well, if it was any.

        Both are in one sum, and momentum begins anew.
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
