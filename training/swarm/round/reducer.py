"""Reducer: takes a part from all senders, and averages or gathers it when all copies have come."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from hivemind.p2p import PeerID
from torch import Tensor

from training.swarm.peers.groups import AllReduceError


class Reduction(Protocol):
    """Rule that averages the parts of several senders."""

    needs_short_parts: bool
    """True if parts must be short enough for all senders' copies to fit into `LARGEST_HELD_BYTES`."""

    def counted(self, weights: Sequence[float], shares: Sequence[float] = ()) -> list[float]:
        """Returns the weights of senders as they count; of each weight only a share, if `shares` is given."""

    def average(self, parts: Sequence[Tensor], weights: Sequence[float], shares: Sequence[float]) -> Tensor:
        """Returns the average of parts of equal shapes, in float32; all weights are above zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedMean:
    """Mean weighted by samples."""

    most_weight: float = math.inf
    """Largest weight of a sender; a larger weight counts as this."""
    needs_short_parts = False

    def counted(self, weights: Sequence[float], shares: Sequence[float] = ()) -> list[float]:
        """Returns the limited weights; ignores `shares`, so a peer's weight does not depend on vouchers."""
        return [min(weight, self.most_weight) for weight in weights]

    def average(self, parts: Sequence[Tensor], weights: Sequence[float], shares: Sequence[float] = ()) -> Tensor:
        """Returns the weighted mean, which is not finite if the sum of finite numbers overflows."""
        weights = self.counted(weights)
        mean = torch.zeros_like(parts[0])
        for part, weight in zip(parts, weights, strict=True):
            mean.add_(part, alpha=weight)
        return mean.div_(sum(weights))


class Reducer:
    """Averages some parts for a group, one after the other; needs a running event loop.

    A part is averaged when all senders have sent it. If one of them is lost, the whole all-reduce has failed. A part or
    weight that is not finite, or a part of a wrong length, is ignored. If no part is left, or their sum overflows, each
    peer keeps its own part.

    Args:
        lengths: Number of values of each part.
        senders: All peers of the group.
        reduction: Rule that averages a part.
        shares: Share of each sender's weight that counts, for a reduction that uses shares.

    >>> async def average():
    ...     reducer = Reducer([1], ["ada", "bob"], WeightedMean())
    ...     parts = reducer.take("ada", torch.zeros(1), 1.0), reducer.take("bob", torch.ones(1), 3.0)
    ...     return [update.item() for update in await asyncio.gather(*parts)]
    >>> asyncio.run(average())
    [0.75, -0.25]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        senders: Sequence[PeerID],
        reduction: Reduction,
        shares: Sequence[float] = (),
    ):
        self.lengths, self._senders, self._reduction = tuple(lengths), tuple(senders), reduction
        self._shares = dict(zip(senders, shares or [1.0] * len(senders), strict=True))
        self._parts: dict[PeerID, tuple[Tensor, float]] = {}
        self._average: asyncio.Future[Tensor | None] = asyncio.get_running_loop().create_future()
        self._is_closed = False
        self.averaged = 0
        """Number of parts that have been averaged."""
        self.refused: Counter[PeerID] = Counter()
        """Number of ignored parts by sender."""
        self.has_overflowed = False
        """True if a sum of finite numbers was not finite."""

    @property
    def is_done(self) -> bool:
        """True if all parts have been averaged."""
        return self.averaged == len(self.lengths)

    @property
    def awaited(self) -> frozenset[PeerID]:
        """Senders whose copies of the current part have not come."""
        return frozenset() if self.is_done else frozenset(self._senders) - self._parts.keys()

    async def take(self, sender: PeerID, part: Tensor, weight: float) -> Tensor:
        """Takes a sender's next part. Returns what the sender must add to the part to get the average.

        Raises:
            AllReduceError: If the all-reduce is over.
        """
        if self._is_closed:
            raise AllReduceError("the all-reduce is over")
        part, weight = self._read(sender, part, weight, self.lengths[self.averaged])
        self._parts[sender], average = (part, weight), self._average
        if len(self._parts) == len(self._senders):
            self._finish_part()
        try:
            # A connection that breaks cancels its handler and what the handler awaits. Without the shield, that would
            # take the average from all other senders.
            found = await asyncio.shield(average)
        except asyncio.CancelledError:
            if self._is_closed:
                raise AllReduceError("the all-reduce is over") from None
            raise
        return self._answer(sender, part, found)

    def close(self) -> None:
        """Gives the all-reduce up: no sender gets an answer any more."""
        self._is_closed = True
        self._average.cancel()

    def _finish_part(self) -> None:
        self._average.set_result(self._result())
        self.averaged += 1
        self._parts, self._average = {}, asyncio.get_running_loop().create_future()

    def _read(self, sender: PeerID, part: Tensor, weight: float, length: int) -> tuple[Tensor, float]:
        # In the precision in which weights are added up: a number of 64 bits may be too large for 32.
        part = part.detach().float().flatten()
        if not (part.numel() == length and math.isfinite(weight) and weight >= 0 and bool(torch.isfinite(part).all())):
            self.refused[sender] += 1
            return torch.zeros(length), 0.0
        return part, weight

    def _result(self) -> Tensor | None:
        """Makes the result of a part that has come from all senders; None if there is none."""
        # In the group's order, so that the result does not depend on the order of arrival.
        counted = [(*self._parts[peer], self._shares[peer]) for peer in self._senders if self._parts[peer][1] > 0]
        average = self._reduction.average(*zip(*counted, strict=True)) if counted else None
        if average is not None and not bool(torch.isfinite(average).all()):
            self.has_overflowed, average = True, None
        return average

    def _answer(self, sender: PeerID, part: Tensor, result: Tensor | None) -> Tensor:
        return torch.zeros_like(part) if result is None else result - part


class Gatherer(Reducer):
    """Reducer of parts that are bytes: answers each sender with the copies of all others, in the group's order.

    A copy of another length arrives as zeros.

    >>> async def gather():
    ...     gatherer = Gatherer([1], ["ada", "bob", "eve"], WeightedMean())
    ...     parts = [gatherer.take(name, torch.tensor([ord(name[0])]).byte(), 1.0) for name in ("eve", "ada", "bob")]
    ...     return [answer.flatten().tolist() for answer in await asyncio.gather(*parts)]
    >>> asyncio.run(gather())
    [[97, 98], [98, 101], [97, 101]]
    """

    def _read(self, sender: PeerID, part: Tensor, weight: float, length: int) -> tuple[Tensor, float]:
        if part.dtype == torch.uint8 and part.shape == (length,) and math.isfinite(weight) and weight >= 0:
            return part, weight
        self.refused[sender] += 1
        return torch.zeros(length, dtype=torch.uint8), 0.0

    def _result(self) -> Tensor:
        return torch.stack([self._parts[peer][0] for peer in self._senders])

    def _answer(self, sender: PeerID, part: Tensor, result: Tensor) -> Tensor:
        place = self._senders.index(sender)
        return torch.cat([result[:place], result[place + 1 :]])
