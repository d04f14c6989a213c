"""What a peer does with parts: it averages those that it is sent, and checks those that come back."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer

from training.swarm.defence.clipping import Clipping, centered_clip, ones

LARGEST_HELD_BYTES = 64 << 20
"""Most that all senders' copies of a part take at a `ClippingReducer`; with many senders, parts are shorter."""


class FiniteReducer(TensorPartReducer):
    """hivemind's weighted mean of a part; it leaves out parts and weights that are not finite, or of a wrong shape.

    If no part is left, or all weights are zero, each peer keeps its own part; hivemind divides by zero.

    Args:
        part_shapes: See hivemind.
        num_senders: See hivemind.
        most_weight: A sender's weight counts as no more than this.
    """

    def __init__(self, part_shapes: Sequence[torch.Size], num_senders: int, most_weight: float = math.inf):
        self._most_weight = most_weight
        super().__init__(part_shapes, num_senders)
        self.refused: Counter[int] = Counter()
        """Parts that were left out, by the sender's number."""
        self.spoiled = False
        """Whether a sum of finite numbers overflowed, so that there is no mean."""
        self._empty: set[int] = set()

    async def accumulate_part(
        self, sender_index: int, part_index: int, tensor_part: torch.Tensor, weight: float = 1.0
    ) -> torch.Tensor:
        """The mean of this part.

        A refused part becomes zeros in place: the answer is the difference from it to the mean.
        """
        counts = tensor_part
        if not self._is_sound(tensor_part, part_index, weight):
            self.refused[sender_index] += 1
            tensor_part.detach().zero_()
            weight, counts = 0.0, torch.zeros(self.part_shapes[part_index])
        # A connection that breaks cancels its handler and what the handler awaits. That is the mean of this part, which
        # the other senders await as well: without the shield, one broken connection would fail them all.
        weight = min(weight, self._most_weight)
        average = await asyncio.shield(asyncio.ensure_future(self._add(sender_index, part_index, counts, weight)))
        return tensor_part if part_index in self._empty else average

    def _is_sound(self, part: torch.Tensor, part_index: int, weight: float) -> bool:
        fits = part.shape == self.part_shapes[part_index]
        # As it is added: a number of 64 bits may be too large for 32.
        return fits and math.isfinite(weight) and weight >= 0 and bool(torch.isfinite(part.float()).all())

    async def _add(self, sender_index: int, part_index: int, part: torch.Tensor, weight: float) -> torch.Tensor:
        return await super().accumulate_part(sender_index, part_index, part, weight=weight)

    def counted(self, weights: Sequence[float], shares: Sequence[float] = ()) -> Sequence[float]:
        """Senders' weights as they count in the average; see `Clipping.counted`."""
        return [min(weight, self._most_weight) for weight in weights]

    def check_current_part_finished(self) -> None:
        """hivemind calls this when a sender's part has come; the last one makes the mean."""
        if self.current_part_accumulated_from == self.num_current_senders:
            finite = math.isfinite(self.denominator) and bool(torch.isfinite(self.accumulator).all())
            if not finite or not self.denominator:
                self.spoiled |= not finite
                self._empty.add(self.current_part_index)
                self.denominator = 1.0  # hivemind divides by it; `accumulate_part` does not return that result
        super().check_current_part_finished()


class ClippingReducer(FiniteReducer):
    """Averages a part by CenteredClip, which a minority of hostile senders cannot carry away.

    It holds all senders' copies of the current part, at most `LARGEST_HELD_BYTES`. Those that come by the network are
    held by hivemind in any case until they are answered.

    Args:
        part_shapes: See hivemind.
        num_senders: See hivemind.
        clipping: How far one sender may pull.
        shares: How much of each sender's weight counts; none: all of it.
    """

    def __init__(
        self, part_shapes: Sequence[torch.Size], num_senders: int, clipping: Clipping, shares: Sequence[float] = ()
    ):
        self._clipping, self._shares = clipping, shares or ones(range(num_senders))
        super().__init__(part_shapes, num_senders)

    async def _add(self, sender_index: int, part_index: int, part: torch.Tensor, weight: float) -> torch.Tensor:
        # hivemind gives the part to `accumulator.add_` and does nothing else with it, so the sender's number can go
        # along. In the order of senders, the result does not depend on who was faster.
        return await super()._add(sender_index, part_index, (sender_index, part), weight)

    def counted(self, weights: Sequence[float], shares: Sequence[float] = ()) -> Sequence[float]:
        """See `FiniteReducer`."""
        return self._clipping.counted(weights, shares)

    def reset_accumulators(self) -> None:
        """hivemind calls this before the first part and after each."""
        super().reset_accumulators()
        self.accumulator = _HeldParts()

    def check_current_part_finished(self) -> None:
        """See `FiniteReducer`."""
        if self.current_part_accumulated_from == self.num_current_senders:
            held, shape = self.accumulator, self.part_shapes[self.current_part_index]
            average = held.average(shape, self._clipping, self._shares)
            self.accumulator, self.denominator = average, float(held.has_weight)
        super().check_current_part_finished()


class _HeldParts:
    """Stands where hivemind's reducer adds parts up, and keeps each."""

    def __init__(self):
        self._parts: dict[int, tuple[float, torch.Tensor]] = {}

    def add_(self, sent: tuple[int, torch.Tensor], *, alpha: float) -> None:
        """Keeps a sender's part; one without weight has no say."""
        sender, part = sent
        if alpha > 0:
            self._parts[sender] = alpha, part

    @property
    def has_weight(self) -> bool:
        """Whether any sender has."""
        return bool(self._parts)

    def average(self, shape: torch.Size, clipping: Clipping, shares: Sequence[float]) -> torch.Tensor:
        """By CenteredClip; zeros if nobody has any weight."""
        if not self._parts:
            return torch.zeros(shape)
        senders = sorted(self._parts)
        weights, parts = zip(*(self._parts[sender] for sender in senders), strict=True)
        of_these = [shares[sender] for sender in senders]
        return centered_clip([part.detach().float() for part in parts], weights, clipping, of_these)


def shortened_part_bytes(part_bytes: int, senders: int) -> int:
    """Length of a part, so that a `ClippingReducer` does not hold more than it may; a value in 8 bit is held in 32.

    >>> shortened_part_bytes(1 << 19, 16), shortened_part_bytes(1 << 19, 256)
    (524288, 65536)
    """
    return min(part_bytes, LARGEST_HELD_BYTES // (4 * senders))


class CheckedParts(TensorPartContainer):
    """hivemind's parts of all tensors; what a reducer answers is checked before it is taken.

    Args:
        args: See hivemind.
        check: Called with the reducer's number and its answer; raises an exception if the answer must not be used.
        kwargs: See hivemind.
    """

    def __init__(self, *args, check: Callable[[int, torch.Tensor], None], **kwargs):
        self._check_answer = check
        super().__init__(*args, **kwargs)

    def register_processed_part(self, peer_index: int, part_index: int, part: torch.Tensor) -> None:
        """A reducer has answered."""
        self._check_answer(peer_index, part)
        super().register_processed_part(peer_index, part_index, part)
