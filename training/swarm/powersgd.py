"""PowerSGD: gradients of large matrices are averaged as products of two thin ones.

Source: Vogels et al. 2019, arXiv:1905.13727.

What a product of rank r cannot hold is kept and added to the next gradient. hivemind 1.1.12 has the algorithm, but its
averager fails with any model that has a bias: it hands the descriptions of all gradients to an all-reduce of the thin
matrices alone; and a round that fails counts the gradient twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from hivemind.averaging.group_info import GroupInfo
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    NoCompression,
    RoleAdaptiveCompression,
)
from hivemind.compression.base import TensorRole
from hivemind.optim.power_sgd_averager import PowerSGDGradientAverager
from hivemind.utils.asyncio import enter_asynchronously

from training.swarm.averaging import SwarmGradientAverager
from training.swarm.groups import AveragedGroup, RoundReport

_LEAST_SAVING = 0.8
"""A matrix is averaged as it is unless the thin ones have a fifth of its values: they travel in 32 bit, it in 8."""


class SwarmPowerSGDAverager(PowerSGDGradientAverager, SwarmGradientAverager):
    """Averages gradients by PowerSGD, weighted by samples, and reports each round.

    Host memory grows by 4 bytes for each value of a matrix that is averaged so.

    Args:
        parameters: See hivemind.
        averager_rank: r, columns of the thin matrices.
        compression: For gradients that travel as they are. The thin matrices travel in 32 bit, so that all peers turn
            them into the same directions.
        kwargs: See hivemind.
    """

    _rpc_handlers = None
    _stub_type = None

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        averager_rank: int,
        *,
        compression: CompressionBase | None = None,
        **kwargs,
    ):
        self._phases: list[RoundReport] = []
        self._added = False
        by_role = RoleAdaptiveCompression(gradient=compression or NoCompression(), default=NoCompression())
        super().__init__(parameters, averager_rank, compression=by_role, min_compression_ratio=_LEAST_SAVING, **kwargs)
        for number, q in enumerate(self._qs):  # hivemind's are random: peers would begin with different ones
            q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(number)))

    async def _aggregate_with_group(self, group_info: GroupInfo, *args, **kwargs) -> AveragedGroup:
        self._phases, self._added = [], False
        try:
            gathered = await PowerSGDGradientAverager._aggregate_with_group(self, group_info, *args, **kwargs)
        except Exception:
            if self._added:
                async with enter_asynchronously(self.get_tensors()) as gradients:
                    large = (g for i, g in enumerate(gradients) if i not in self._uncompressed_gradients_indexes)
                    for kept, gradient in zip(self._ms, large, strict=True):
                        kept.sub_(gradient)
            raise
        return AveragedGroup.of_those_left(gathered, _both(*self._phases))

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs
    ) -> None:
        """As in `ReportingAverager`, for tensors other than the gradients; the latter come last."""
        self._added = True
        kwargs.pop("tensor_infos", None)
        phase_q = bool(self._phases)
        infos = tuple(
            CompressionInfo.from_tensor(
                tensor,
                key=number,
                role=TensorRole.GRADIENT if phase_q and number >= len(self._qs) else TensorRole.UNSPECIFIED,
            )
            for number, tensor in enumerate(tensors)
        )
        await super()._run_allreduce_inplace_(tensors, group_info, group_id, tensor_infos=infos, **kwargs)
        self._phases.append(self._last_report)


def gradient_averager(powersgd_rank: int) -> Callable[..., SwarmGradientAverager]:
    """What makes the averager of a run's gradients: by PowerSGD of this rank, or as they are if it is 0."""
    return partial(SwarmPowerSGDAverager, averager_rank=powersgd_rank) if powersgd_rank else SwarmGradientAverager


def _both(first: RoundReport, second: RoundReport) -> RoundReport:
    """One report for two all-reduces of a group, the worse of each; a peer may see the weights in one of them alone."""
    shares = [report.own_share for report in (first, second) if report.own_share is not None]
    return RoundReport(
        group_size=second.group_size,
        senders=min(first.senders, second.senders),
        own_share=max(shares, default=None),
        weight=second.weight,
        torn=first.torn or second.torn,
        repeated=first.repeated + second.repeated,
        lost=tuple(dict.fromkeys(first.lost + second.lost)),
        refused=tuple(dict.fromkeys(first.refused + second.refused)),
        reduced_share=second.reduced_share,
        bytes_sent=first.bytes_sent + second.bytes_sent,
        bytes_received=first.bytes_received + second.bytes_received,
        seconds=first.seconds + second.seconds,
    )
