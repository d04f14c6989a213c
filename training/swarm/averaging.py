"""What peers average, each in rounds that report: gradients, weighted by samples, and parameters."""

from __future__ import annotations

import time
from typing import AsyncIterator  # noqa: UP035  hivemind knows this one alone

import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import (
    CompressionBase,
    Float16Compression,
    NoCompression,
    RoleAdaptiveCompression,
)
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2PContext
from hivemind.proto import averaging_pb2
from torch import Tensor

from training.swarm.codecs import exchange_codec
from training.swarm.groups import AveragedGroup, Standing
from training.swarm.rounds import LOOK_SECONDS, ReportingAverager
from training.swarm.serving import Head, pack, unpack
from training.swarm.streams import until_hung_up

WEIGHT_OF_A_NEWCOMER = 1e-6
"""Weight of parameters that are behind the others', where theirs is 1; not 0, for all of a group may be newcomers."""


def state_codec(bits: int = 16, threshold: int = 0) -> CompressionBase:
    """How newcomers get the state: weights as told; the optimizer's 8-bit moments are not touched.

    Args:
        bits: 16, or 8 for block-wise 8 bit.
        threshold: With 8 bit, tensors of fewer values are sent in 16.
    """
    untouched = NoCompression()
    weights = exchange_codec(threshold, "blockwise8") if bits == 8 else Float16Compression()
    return RoleAdaptiveCompression(default=untouched, parameter=weights, optimizer=untouched, gradient=untouched)


class SwarmGradientAverager(GradientAverager, ReportingAverager):
    """Averages gradients, weighted by samples, and reports each round; peers tell each other where they stand."""

    _rpc_handlers = None
    _stub_type = None
    local_epoch = 0
    """Told to the peers of the next group."""
    wants_weights = False
    """Told to them as well: whether this peer's parameters are not those of the others yet."""
    not_finite = False
    """Whether this peer's own gradients were left out of the last average, because they are not finite."""

    def accumulate_grads_(self, batch_size: int) -> None:
        """See hivemind, whose mean is too small or too large where micro-batches differ in size: it divides by their
        number, having weighted each by its size over the first one's."""
        super().accumulate_grads_(batch_size)
        self.local_times_accumulated = self.local_samples_accumulated / self._anchor_batch_size

    def load_accumulators_into_averager_(self) -> None:
        """See hivemind."""
        super().load_accumulators_into_averager_()
        self._leave_out_what_is_not_finite()

    def _leave_out_what_is_not_finite(self) -> None:
        """Gradients with a number that is not finite become zeros without weight: the peer takes the others' mean."""
        with torch.no_grad(), self.get_tensors() as tensors:
            self.not_finite = not all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
            if self.not_finite:
                self.local_samples_accumulated = 0
                for tensor in tensors:
                    tensor.zero_()

    def schedule_step(self, scheduled_time: float | None = None, *, epoch: int | None = None, **kwargs) -> StepControl:
        """See hivemind; the gradients are of this epoch, or of the local one."""
        told_epoch = self.local_epoch if epoch is None else epoch
        standing = Standing(told_epoch, self.wants_weights, self.expected_group_size if self.is_new else 0)
        return super().schedule_step(scheduled_time, gather=standing.told(), **kwargs)


def standings(group: AveragedGroup) -> list[Standing]:
    """Of each peer of a gradients' group; nonsense is left out."""
    return [standing for told in group.values() if (standing := Standing.read(told)) is not None]


class SwarmStateAverager(TrainingStateAverager, ReportingAverager):
    """Averages parameters and serves the state to newcomers, and reports each round."""

    _rpc_handlers = None
    _stub_type = None
    round_own_parts = True
    wants_weights = False
    """Whether this peer takes the others' parameters and adds next to nothing of its own."""
    lacks_update = False
    """Whether the update by which the local epoch begins is still under way; delayed ones are for a while."""

    def _update_scheduler(self) -> None:
        """See hivemind, which calls it where an update has been made."""
        super()._update_scheduler()
        self.lacks_update = False

    def _weigh(self, control: StepControl) -> None:
        if self.wants_weights:
            control.weight = WEIGHT_OF_A_NEWCOMER

    def step(self, wait_for_delayed_updates: bool | None = None, **kwargs) -> object:
        """See hivemind. A round of parameters that finds no group ends before the next epoch's gradients are averaged.

        hivemind would go on looking, while the groupmates of that average wait for this peer.
        """
        if wait_for_delayed_updates or kwargs.get("averaging_round"):
            self._end_search()
        self.lacks_update |= bool(kwargs.get("increment_epoch") and kwargs.get("optimizer_step"))
        return super().step(wait_for_delayed_updates, **kwargs)

    def _end_search(self) -> None:
        usual_seconds = self.matchmaking_kwargs["min_matchmaking_time"] + self.matchmaking_kwargs["request_timeout"]
        while self.last_round is not None:
            control, began = self.last_round
            if control.done() or not control.triggered or control.stage != AveragingStage.LOOKING_FOR_GROUP:
                return
            if time.monotonic() - began >= usual_seconds:
                control.cancel()
                return
            time.sleep(LOOK_SECONDS)

    def get_current_state(self) -> tuple[dict, tuple[Tensor], list[Head]]:
        """The state between two updates, packed to be sent; hivemind sends live memory, which changes on the way.

        And it calls the state that of the epoch that has begun also where the update by which it begins is delayed.
        """
        with self.lock_optimizer:
            metadata, tensors, infos = super().get_current_state()
            metadata |= {"epoch": self.local_epoch - self.lacks_update, "wants_weights": self.wants_weights}
            with self.lock_averaged_tensors:
                memory, heads = pack(tensors, infos, self.state_compression)
        return metadata, (memory,), heads

    async def rpc_download_state(
        self, _request: averaging_pb2.DownloadRequest, _context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """See hivemind."""
        if not self.allow_state_sharing:
            return
        async for message in until_hung_up(self._state_messages()):
            yield message

    async def _state_messages(self) -> AsyncIterator[averaging_pb2.DownloadData]:
        metadata, (memory,), heads = await self._get_current_state_from_host_process()
        for part in unpack(memory, heads):
            yield averaging_pb2.DownloadData(tensor_part=part, metadata=metadata)
            metadata = None
