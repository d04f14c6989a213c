"""What a peer does with parts: it averages those that it is sent, and checks those that come back."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer


class FiniteReducer(TensorPartReducer):
    """hivemind's weighted mean of a part; it leaves out parts and weights that are not finite.

    If no part is left, or all weights are zero, each peer keeps its own part; hivemind divides by zero.
    """

    def __init__(self, part_shapes: Sequence[torch.Size], num_senders: int):
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
        if not (math.isfinite(weight) and weight >= 0 and bool(torch.isfinite(tensor_part).all())):
            self.refused[sender_index] += 1
            tensor_part.detach().zero_()
            weight = 0.0
        # A connection that breaks cancels its handler and what the handler awaits. That is the mean of this part, which
        # the other senders await as well: without the shield, one broken connection would fail them all.
        average = await asyncio.shield(
            asyncio.ensure_future(super().accumulate_part(sender_index, part_index, tensor_part, weight=weight))
        )
        return tensor_part if part_index in self._empty else average

    def check_current_part_finished(self) -> None:
        """hivemind calls this when a sender's part has come; the last one makes the mean."""
        if self.current_part_accumulated_from == self.num_current_senders:
            finite = math.isfinite(self.denominator) and bool(torch.isfinite(self.accumulator).all())
            if not finite or not self.denominator:
                self.spoiled |= not finite
                self._empty.add(self.current_part_index)
                self.denominator = 1.0  # hivemind divides by it; `accumulate_part` does not return that result
        super().check_current_part_finished()


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
