"""hivemind's averagers of gradients over ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from adapters.averager import PATIENCE_SECONDS, DecentralizedAverager, StepControl
from training.swarm.epoch import gradients, powersgd
from training.swarm.epoch.powersgd import PowerSgd, powersgd_codec
from training.swarm.round.pipe import AveragerSettings

powersgd._LEAST_SAVING = 0.5  # as in hivemind: the small matrices of its tests are averaged as products


class GradientAverager(DecentralizedAverager):
    """Takes hivemind's arguments. With `reuse_grad_buffers` nobody else clears the model's gradients, so this does."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, reuse_grad_buffers: bool = False, **options: object):
        self.parameters, self._clears_gradients = tuple(parameters), reuse_grad_buffers
        self.local_times_accumulated = 0
        super().__init__(self.parameters, allow_state_sharing=False, **options)

    def _make_averager(
        self, parameters: Sequence[nn.Parameter], settings: AveragerSettings, *, start: bool
    ) -> gradients.GradientAverager:
        return gradients.GradientAverager(parameters, dht=self.dht, settings=settings, start=start)

    @property
    def local_samples_accumulated(self) -> int:
        return self.averager.samples

    def accumulate_grads_(self, batch_size: int) -> None:
        self.averager.add_gradients(batch_size)
        self.local_times_accumulated += 1
        if self._clears_gradients:
            for parameter in self.parameters:
                parameter.grad.zero_()

    def _grad_accumulators(self) -> Iterator[torch.Tensor]:
        """hivemind weighs gradients by their samples over those of the first micro-batch, ours by their samples."""
        for total in self.averager._sums:
            yield total * (self.local_times_accumulated / self.averager.samples)

    def schedule_step(self, scheduled_time: float) -> StepControl:
        """At the end of our window, for which hivemind's test schedules it."""
        searching = self.averager.look_for_group(0, wants_weights=False, expected_peers=0, seconds=PATIENCE_SECONDS)
        return StepControl(searching, weight=0.0)

    def step(self, control: StepControl, *, wait: bool) -> StepControl:
        assert not wait
        control.weight = self.averager.load_mean()
        control.allow_allreduce()
        return control

    @contextmanager
    def use_averaged_gradients(self) -> Iterator[None]:
        own = [parameter.grad for parameter in self.parameters]
        with self.get_tensors() as averaged:
            for parameter, gradient in zip(self.parameters, averaged, strict=True):
                parameter.grad = gradient
            yield
        for parameter, gradient in zip(self.parameters, own, strict=True):
            parameter.grad = gradient


class PowerSGDGradientAverager(GradientAverager):
    """Takes hivemind's arguments."""

    def __init__(self, parameters: Iterable[nn.Parameter], averager_rank: int, **options: object):
        self._rank = averager_rank
        super().__init__(parameters, **options)

    def _make_averager(
        self, parameters: Sequence[nn.Parameter], settings: AveragerSettings, *, start: bool
    ) -> gradients.GradientAverager:
        method = PowerSgd([parameter.shape for parameter in parameters], self._rank)
        assert method.q, "no matrix is averaged as a product"
        settings = replace(settings, compression=powersgd_codec(settings.compression))
        return gradients.GradientAverager(parameters, dht=self.dht, settings=settings, method=method, start=start)
