"""Sparse mean: each peer sends the largest values of its tensors to all of its group, and keeps the rest for later.

Source: Sarfi et al. 2025, arXiv:2508.15706 (SparseLoCo). Each peer adds its tensors to what earlier exchanges have not
sent (error feedback), and sends the largest values of the sum (`sparse_code`). The codes come to all others as they
were sent, so all peers compute the same mean, to the last bit.

Among n peers, n - 1 times the code goes up from each: with 100 of 4096 values, 1.6 bits a value among 8 peers, 3.5
among 16, 15 among 64. An all-reduce in 8 bits takes 14, 15 and 16 bits. Reducers that add the codes up would send fewer
bytes in large groups, but would have to round the sums again.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import torch
from hivemind.compression import CompressionInfo
from hivemind.p2p import PeerID
from torch import Tensor

from training.swarm.epoch.sparse_code import SparseCode
from training.swarm.peers.groups import RoundReport
from training.swarm.round.rounds import GroupAllReduce

WEIGHT = struct.Struct("<d")
"""Start of a message: the weight of the tensors. The code follows."""

Result = TypeVar("Result")


class SparseMean:
    """Averages tensors by sparse codes, with error feedback.

    Takes 4 bytes of host memory a value.

    Args:
        shapes: Shapes of the tensors.
        kept: Values that a peer sends of each 4096.
    """

    phases = (b"",)

    def __init__(self, shapes: Sequence[torch.Size], *, kept: int):
        self.code = SparseCode(shapes, kept)
        # In shared memory, since the averager's process changes it and the trainer drops it.
        self.unsent = [torch.zeros(shape).share_memory_() for shape in shapes]
        """What this peer has not sent yet."""

    async def average(
        self, tensors: Sequence[Tensor], infos: Sequence[CompressionInfo] | None, all_reduce: GroupAllReduce
    ) -> RoundReport:
        """Averages the tensors in place; see `rounds.AveragingMethod`."""
        weight, own = all_reduce.contribution.weight, all_reduce.all_reduces.peer_id
        message = await asyncio.to_thread(self.pack, tensors, weight)
        messages, report = await all_reduce.gather(message)
        if len(messages) == 1:
            return report
        return await _to_the_end(lambda: self._take(tensors, messages, own, all_reduce, report))

    @torch.no_grad()
    def pack(self, tensors: Sequence[Tensor], weight: float) -> Tensor:
        """Makes this peer's message. Changes nothing: the exchange may fail."""
        code = self.code.encode(lambda piece: piece.of(tensors) + piece.of(self.unsent))
        return torch.cat([torch.frombuffer(bytearray(WEIGHT.pack(weight)), dtype=torch.uint8), code])

    def read(self, message: Tensor) -> tuple[float, Tensor]:
        """Reads a peer's message. Returns the weight of its tensors and their code, which can be decoded to its end.

        Raises:
            ValueError: If `pack` cannot have made the message.
        """
        if message.dtype != torch.uint8 or message.shape != (WEIGHT.size + self.code.bytes,):
            length = WEIGHT.size + self.code.bytes
            raise ValueError(f"a message has {length} bytes, not the shape {tuple(message.shape)} of {message.dtype}")
        weight, code = WEIGHT.unpack(message[: WEIGHT.size].numpy())[0], message[WEIGHT.size :]
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"the weight {weight} is not a finite number of at least 0")
        for _ in self.code.decode(code):
            pass
        return weight, code

    def _take(
        self,
        tensors: Sequence[Tensor],
        messages: dict[PeerID, Tensor],
        own: PeerID,
        all_reduce: GroupAllReduce,
        report: RoundReport,
    ) -> RoundReport:
        """Writes the mean of the group's messages to the tensors, and notes what this peer has not sent."""
        read, refused = {}, list(report.refused)
        for peer, message in messages.items():
            try:
                read[peer] = self.read(message)
            except ValueError:  # all peers have the same bytes, so all leave them out
                refused.append(str(peer))
        codes = {peer: code for peer, (weight, code) in read.items() if weight > 0}
        counted = all_reduce.travel.reduction.counted([read[peer][0] for peer in codes])
        total = math.fsum(counted)
        shares = {peer: weight / total for peer, weight in zip(codes, counted, strict=True)}
        if codes:
            self._average(tensors, codes, shares, own)
        return replace(
            report,
            senders=len(codes),
            own_share=shares.get(own, 0.0) if codes else 1.0,
            weight=total,
            refused=tuple(dict.fromkeys(refused)),
        )

    @torch.no_grad()
    def _average(
        self, tensors: Sequence[Tensor], codes: dict[PeerID, Tensor], shares: dict[PeerID, float], own: PeerID
    ) -> None:
        for piece in self.code.pieces:
            values, unsent = piece.of(tensors), piece.of(self.unsent)
            if own in codes:  # otherwise the group has left its message out
                unsent.add_(values)
            values.zero_()
            for peer, code in codes.items():
                places, sent = self.code.decode_piece(piece, code)
                if peer == own:
                    unsent.index_add_(0, places, sent, alpha=-1)
                # First the product, then the sum: some processors would round both at once, and differ.
                values.index_add_(0, places, sent * shares[peer])
            if not bool(unsent.sum().isfinite()):  # otherwise no later message could be read
                unsent.zero_()


async def _to_the_end(work: Callable[[], Result]) -> Result:
    """Runs work in a thread to its end, even if the round is cancelled meanwhile.

    If the round ended before the thread, the trainer would use tensors that still change.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({running})
    return running.result()
