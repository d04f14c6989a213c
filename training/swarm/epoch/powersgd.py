"""PowerSGD: gradients of large matrices are averaged as products of two thin ones.

Source: Vogels et al. 2019, arXiv:1905.13727.

A gradient M (n x m) is approximated by P Q^T with r columns each. All peers have the same Q. Each peer computes P = M
Q, the group averages P and makes its columns orthonormal, each peer computes Q = M^T P, and the group averages Q. The
difference between M and P Q^T is kept and added to the next gradient.

hivemind 1.1.12 has the algorithm, but its averager fails with any model that has a bias (it passes the descriptions of
all gradients to an all-reduce of the thin matrices alone), and a failed round counts the gradient twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from hivemind.compression import CompressionBase, CompressionInfo, NoCompression, RoleAdaptiveCompression
from hivemind.compression.base import TensorRole
from hivemind.utils.math import get_flatten_greedy_dims
from torch import Tensor

from training.swarm.peers.groups import Delay, RoundReport
from training.swarm.round.rounds import GroupAllReduce

_LEAST_SAVING = 0.8
"""Least share of a matrix's values that thin matrices must save: they travel in 32 bits, the matrix in 8."""
_LEAST_LEFT = 1e-4
"""Least length of a column after earlier columns are subtracted, as a share of its length before. A shorter rest
becomes zeros. Rounding errors are 1e-7 of the length before, a thousandth of such a rest."""


def powersgd_codec(gradients: CompressionBase) -> CompressionBase:
    """Codec of the tensors: the recipe's for gradients, 32 bits for the thin matrices, so that all peers get equal
    directions."""
    return RoleAdaptiveCompression(gradient=gradients, default=NoCompression())


class PowerSgd:
    """Averages gradients by PowerSGD.

    Takes 4 bytes of host memory for each value of a matrix that is averaged by thin matrices.

    Args:
        shapes: Shapes of the gradients.
        rank: r, number of columns of the thin matrices.
    """

    phases = (b"P", b"Q")

    def __init__(self, shapes: Sequence[torch.Size], rank: int):
        self.rank = rank
        self._factored = [
            number for number, shape in enumerate(shapes) if self._saves(torch.empty(shape, device="meta"))
        ]
        # In shared memory, since the averager's process changes both and the trainer's tests look at them.
        self.kept = [torch.zeros(shapes[number]).share_memory_() for number in self._factored]
        self.q = [self._first_q(torch.empty(shapes[n], device="meta"), n).share_memory_() for n in self._factored]

    def _saves(self, gradient: Tensor) -> bool:
        thin = self.rank * sum(get_flatten_greedy_dims(gradient)) if gradient.ndim > 1 else gradient.numel()
        return gradient.ndim > 1 and 1 - thin / gradient.numel() >= _LEAST_SAVING

    def _first_q(self, gradient: Tensor, number: int) -> Tensor:
        """Makes the first Q of a gradient, equal at all peers: with different directions, the mean of P would have no
        meaning."""
        columns = get_flatten_greedy_dims(gradient)[1]
        return torch.randn((columns, self.rank), generator=torch.Generator().manual_seed(number))

    async def average(
        self, tensors: Sequence[Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        """Averages the gradients in place, large ones by thin matrices; see `rounds.AveragingMethod`."""
        large = [tensors[number] for number in self._factored]
        rest = [tensor for number, tensor in enumerate(tensors) if number not in self._factored]
        # `kept` is what the thin matrices could not express so far. P and Q are computed from it with the gradient
        # added. A peer without weight must not add its gradient: it would subtract the others' average from `kept`.
        counts = all_reduce.contribution.weight > 0
        sums = (self.kept, large) if counts else ((), ())
        _each_add(*sums)
        try:
            p, q, report = await self._exchange(rest, all_reduce)
        except BaseException:  # also if the task is cancelled
            _each_add(*sums, alpha=-1)  # otherwise the next try would count the gradient twice
            raise
        for gradient, kept, own_p, own_q, shared_q in zip(large, self.kept, p, q, self.q, strict=True):
            # The next gradient begins with these directions; from random ones, one pass would approximate it badly.
            # A direction of zeros, as after an epoch without any gradient, would stay zero for ever, so it is not taken
            # over.
            shared_q.copy_(torch.where(own_q.any(dim=0), own_q / _lengths(own_q), shared_q))
            gradient.copy_((own_p @ own_q.t()).reshape(gradient.shape))
            if counts:
                kept.sub_(gradient)
            if not bool(kept.abs().sum().isfinite()):  # otherwise no later P would be finite
                kept.zero_()
        return report

    async def _exchange(
        self, rest: Sequence[Tensor], all_reduce: GroupAllReduce
    ) -> tuple[list[Tensor], list[Tensor], RoundReport]:
        """Averages P and Q, and, in place together with Q, the gradients in `rest`. Returns P, Q and the report on
        both."""
        matrices = [kept.reshape(-1, q.shape[0]) for kept, q in zip(self.kept, self.q, strict=True)]
        p = [matrix @ q for matrix, q in zip(matrices, self.q, strict=True)]
        first = await all_reduce(p, _infos(p, TensorRole.UNSPECIFIED), phase=self.phases[0])
        # After the average, so that all peers have the same P. P Q^T is then the matrix projected on the columns of P.
        for one in p:
            _make_orthonormal(one)
        q = [matrix.t() @ one for matrix, one in zip(matrices, p, strict=True)]
        infos = _infos(q, TensorRole.UNSPECIFIED) + _infos(rest, TensorRole.GRADIENT)
        second = await all_reduce([*q, *rest], infos, phase=self.phases[1])
        return p, q, _both(first, second)


def _lengths(columns: Tensor) -> Tensor:
    """Largest magnitude in each column; a positive number where it would be 0, for divisions."""
    return columns.abs().amax(dim=0).clamp(min=torch.finfo(columns.dtype).tiny)


def _make_orthonormal(columns: Tensor) -> None:
    """Makes columns orthonormal in place, one after the other. A column that is a sum of earlier ones becomes zeros.

    hivemind's function makes a direction of such a column's rounding errors. This direction is not orthogonal to the
    others, so that they count twice, and it differs from peer to peer. The function also treats columns shorter than
    1e-8 as zeros, and small gradients have such columns.
    """
    columns.div_(_lengths(columns))  # their squares neither overflow nor vanish
    lengths = columns.norm(dim=0)
    for number, length in enumerate(lengths):
        column, rest = columns[:, number], columns[:, number + 1 :]
        left = column.norm()
        column.mul_(1 / left if left > _LEAST_LEFT * length else 0)
        rest.sub_(torch.outer(column, column @ rest))


def _each_add(tensors: Sequence[Tensor], others: Sequence[Tensor], alpha: float = 1) -> None:
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=alpha)


def _infos(tensors: Sequence[Tensor], role: TensorRole) -> list[CompressionInfo]:
    return [CompressionInfo.from_tensor(tensor, key=n, role=role) for n, tensor in enumerate(tensors)]


def _worst_faults(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Returns one fault a peer: a peer lost in the first all-reduce is missing from the second as well."""
    return {peer: max(first.get(peer, 0.0), second.get(peer, 0.0)) for peer in {**first, **second}}


def _added_delays(first: Mapping[str, Delay], second: Mapping[str, Delay]) -> dict[str, Delay]:
    """Adds up how long both all-reduces waited for each peer; its share of the samples is that in the last one."""
    found = dict(first)
    for peer, delay in second.items():
        before = first[peer].seconds if peer in first else 0.0
        found[peer] = Delay(before + delay.seconds, delay.share)
    return found


def _both(first: RoundReport, second: RoundReport) -> RoundReport:
    """Makes one report of a group's two all-reduces, with the worse result of each; only one of them may show the
    weights."""
    shares = [report.own_share for report in (first, second) if report.own_share is not None]
    return RoundReport(
        group_size=second.group_size,
        senders=min(first.senders, second.senders),
        own_share=max(shares, default=None),
        weight=second.weight,
        torn=first.torn or second.torn,
        repeated=first.repeated + second.repeated,
        lost=tuple(dict.fromkeys(first.lost + second.lost)),
        absent=tuple(dict.fromkeys(first.absent + second.absent)),
        spoiled_by=_worst_faults(first.spoiled_by, second.spoiled_by),
        delays=_added_delays(first.delays, second.delays),
        brought=dict(second.brought),
        refused=tuple(dict.fromkeys(first.refused + second.refused)),
        reduced_share=second.reduced_share,
        bytes_sent=first.bytes_sent + second.bytes_sent,
        bytes_received=first.bytes_received + second.bytes_received,
        seconds=first.seconds + second.seconds,
    )
