"""Parts of tensors: the pieces in which peers send tensors. For each part, one peer of the group is the reducer."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hivemind.compression import CompressionBase, CompressionInfo
from torch import Tensor

LARGEST_HELD_BYTES = 64 << 20
"""Most bytes of all senders' copies of a part, if a reducer must hold them at once; with many senders, parts are
shorter."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one tensor."""

    begin: int
    """Index of its first value, counted over all tensors one after the other."""
    values: Tensor
    """(P,), a view of this peer's tensor."""
    update: Tensor
    """(P,), a view of the memory for the average's change to that tensor; if the parts are gathered, (others, P)."""
    info: CompressionInfo
    """Hints for the codec."""


def divide(
    tensors: Sequence[Tensor],
    updates: Sequence[Tensor],
    *,
    shares: Sequence[float],
    codec: CompressionBase,
    part_bytes: int,
    infos: Sequence[CompressionInfo] | None = None,
) -> list[list[Part]]:
    """Cuts tensors into parts. A part goes to the reducer whose share of all values contains the part's middle.

    All peers of a group get equal parts, since their tensors have equal shapes.

    Args:
        tensors: Tensors to average, contiguous and in float32.
        updates: Memory for the average's changes, of the tensors' shapes; if the parts are gathered, with one more
            dimension before them.
        shares: Share of the values that each peer averages, in the group's order; 0 for a peer that averages none.
        codec: Encodes each part.
        part_bytes: Longest encoded part, in bytes.
        infos: Hints for the codec, one for each tensor; None: made from the tensor's shape.

    Returns:
        The parts of each peer, in the group's order.
    """
    ends = list(itertools.accumulate(shares))
    values, last = sum(tensor.numel() for tensor in tensors), max(n for n, share in enumerate(shares) if share > 0)
    parts: list[list[Part]] = [[] for _ in shares]
    begin = 0
    for number, (tensor, update) in enumerate(zip(tensors, updates, strict=True)):
        info = infos[number] if infos is not None else CompressionInfo.from_tensor(tensor, key=number)
        bytes_per_value = tensor.element_size() * codec.estimate_compression_ratio(info)
        length = max(int(part_bytes / bytes_per_value), 1)
        rows = update.view(*update.shape[: update.ndim - tensor.ndim], -1)
        pieces = zip(tensor.detach().view(-1).split(length), rows.split(length, dim=-1), strict=True)
        for place, (piece, its_update) in enumerate(pieces):
            if piece.numel():
                middle = (begin + piece.numel() / 2) / values * ends[-1]
                reducer = min(bisect.bisect_right(ends, middle), last)
                parts[reducer].append(Part(begin, piece, its_update, info.get_part(place, length)))
                begin += piece.numel()
    return parts


def empty_updates(tensors: Sequence[Tensor], rows: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    """Allocates memory for the changes that an average makes to tensors; its values are arbitrary at first.

    Args:
        tensors: Tensors whose shapes and types it has.
        rows: Dimensions before those of the tensors.
    """
    return tuple(torch.empty((*rows, *tensor.shape), dtype=tensor.dtype) for tensor in tensors)


def shortened_part_bytes(part_bytes: int, senders: int) -> int:
    """Bytes of a part whose copies from all senders fit into `LARGEST_HELD_BYTES`.

    A part's values travel in 8 bits and are held in 32.

    >>> shortened_part_bytes(1 << 19, 16), shortened_part_bytes(1 << 19, 256)
    (524288, 65536)
    """
    return min(part_bytes, LARGEST_HELD_BYTES // (4 * senders))
