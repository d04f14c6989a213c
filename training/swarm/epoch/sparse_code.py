"""Sparse code of tensors: the largest values of each block in two bits each, and their places.

SparseLoCo (Sarfi et al. 2025, arXiv:2508.15706) sends 64 of each 4096 values, in 2 bits each. The last block of a
tensor has fewer. A block of n values, of which k are sent, takes these bytes, each field filled up to whole bytes:

    scale     2 bytes           mean magnitude of the k values, in bfloat16
    entries   k (low + 2) bits  for each of them the low bits of its place, its sign, and whether it is large
    buckets   k + n / 2^low bits  the high bits of all places: a one for each value, a zero at the end of each bucket

A bucket has 2^low places, and low is the whole part of log2(n / k); this code of increasing numbers is the one of Elias
(1974) and Fano (1971). With 64 of 4096 a block takes 82 bytes, 0.16 bits a value. Its places take 512 bits; the
entropy of as many random places is 471 bits (log2 of 4096 over 64). Rice's code of the gaps would take 482 bits, but
a varying number. Here shapes alone give the length of a code, so a message of another length is refused unread, and a
code is cut into equal parts at any place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calculator.swarm.exchange import SPARSE_BLOCK, sparse_fields
from calculator.swarm.sparse import LARGE, SMALL

PIECE_BLOCKS = 256
"""Most blocks that are encoded or decoded at once. They take 4 MiB as 32-bit numbers, which fit into a cache."""
LARGEST_SCALE = 2.0**100
"""Largest scale that is read: no mean of such values overflows."""


@dataclass(frozen=True, slots=True)
class BlockCode:
    """Code of blocks of equal length."""

    values: int
    """n, values of a block."""
    kept: int
    """k, values that the code keeps; at least 1."""

    @property
    def low_bits(self) -> int:
        """Bits of a place within its bucket."""
        return sparse_fields(self.values, self.kept)[0]

    @property
    def _bucket_bits(self) -> int:
        return sparse_fields(self.values, self.kept)[2]

    @property
    def _lengths(self) -> tuple[int, int, int]:
        """Bytes of scale, entries and buckets."""
        _, entries, buckets = sparse_fields(self.values, self.kept)
        return 2, -(-entries // 8), -(-buckets // 8)

    @property
    def bytes(self) -> int:
        """Bytes of an encoded block."""
        return sum(self._lengths)

    def encode(self, blocks: Tensor) -> Tensor:
        """Encodes blocks (B, n) of finite values; returns (B, bytes) in uint8."""
        places = blocks.abs().topk(self.kept, dim=1, sorted=False).indices.sort(dim=1).values
        found = blocks.gather(1, places)
        scales = found.abs().mean(dim=1, keepdim=True).to(torch.bfloat16)
        are_large = found.abs() >= scales.float() * ((SMALL + LARGE) / 2)
        places = places.numpy()
        entries = np.empty((len(places), self.kept, self.low_bits + 2), np.uint8)
        entries[..., : self.low_bits] = places[..., None] >> np.arange(self.low_bits) & 1
        entries[..., -2] = (found < 0).numpy()
        entries[..., -1] = are_large.numpy()
        buckets = np.zeros((len(places), self._bucket_bits), np.uint8)
        np.put_along_axis(buckets, (places >> self.low_bits) + np.arange(self.kept), 1, axis=1)
        packed = [np.packbits(bits.reshape(len(places), -1), axis=1) for bits in (entries, buckets)]
        return torch.from_numpy(np.concatenate([scales.view(torch.uint8).numpy(), *packed], axis=1))

    def decode(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Decodes blocks (B, bytes). Returns the places in each block and the values there, both (B, k).

        Raises:
            ValueError: If `encode` cannot have written the code: places do not increase, or a scale is out of range.
        """
        scale_bytes, entry_bytes, _ = self._lengths
        halves = np.ascontiguousarray(code[:, :scale_bytes].numpy()).view("<u2")
        scales = torch.from_numpy((halves.astype(np.uint32) << 16).view(np.float32))  # bfloat16: float32's first bits
        if not bool(((scales >= 0) & (scales <= LARGEST_SCALE)).all()):  # false for NaN as well
            raise ValueError("a block's scale is not a number from 0 to 2^100")
        fields, blocks = code[:, scale_bytes:].numpy(), len(code)
        buckets = np.unpackbits(fields[:, entry_bytes:], axis=1, count=self._bucket_bits)
        if bool((buckets.sum(axis=1, dtype=np.int64) != self.kept).any()):
            raise ValueError(f"a block does not have {self.kept} values")
        high = np.nonzero(buckets)[1].reshape(blocks, self.kept) - np.arange(self.kept)
        bits = np.unpackbits(fields[:, :entry_bytes], axis=1, count=self.kept * (self.low_bits + 2))
        bits = bits.reshape(blocks, self.kept, self.low_bits + 2)
        places = (high << self.low_bits) + bits[..., : self.low_bits] @ (1 << np.arange(self.low_bits))
        if bool((np.diff(places, axis=1) <= 0).any()) or bool((places[:, -1] >= self.values).any()):
            raise ValueError("the places in a block do not increase, or are outside")
        levels = np.array([SMALL, LARGE, -SMALL, -LARGE], np.float32)[2 * bits[..., -2] + bits[..., -1]]
        return torch.from_numpy(places), torch.from_numpy(levels) * scales


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks of one tensor that are encoded at once."""

    tensor: int
    """Index of the tensor."""
    begin: int
    """Index of the first value in the tensor."""
    blocks: int
    code: BlockCode
    offset: int
    """Index of the first byte in the code of all tensors."""

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the piece's values, a view of one of the tensors."""
        return tensors[self.tensor].view(-1)[self.begin : self.begin + self.blocks * self.code.values]

    @property
    def bytes(self) -> slice:
        """Range of the bytes in the code of all tensors."""
        return slice(self.offset, self.offset + self.blocks * self.code.bytes)


class SparseCode:
    """Sparse code of several tensors, one after the other.

    Args:
        shapes: Shapes of the tensors.
        kept: Values that are kept of each 4096; of a shorter block as large a share, and at least one.

    >>> code = SparseCode([torch.Size((128, 64)), torch.Size((10,))], kept=64)
    >>> code.bytes
    168
    >>> piece, places, values = next(code.decode(code.encode(lambda piece: piece.of([torch.ones(128, 64)] * 2))))
    >>> piece.blocks, places.shape, values.shape
    (2, torch.Size([128]), torch.Size([128]))
    """

    def __init__(self, shapes: Sequence[torch.Size], kept: int):
        self.pieces: list[Piece] = []
        self.bytes = 0
        """Bytes of the code of all tensors."""
        for number, shape in enumerate(shapes):
            whole, rest = divmod(shape.numel(), SPARSE_BLOCK)
            for first in range(0, whole, PIECE_BLOCKS):
                blocks = min(PIECE_BLOCKS, whole - first)
                self._add(number, first * SPARSE_BLOCK, blocks, BlockCode(SPARSE_BLOCK, kept))
            if rest:
                self._add(number, whole * SPARSE_BLOCK, 1, BlockCode(rest, -(-rest * kept // SPARSE_BLOCK)))

    def _add(self, tensor: int, begin: int, blocks: int, code: BlockCode) -> None:
        self.pieces.append(Piece(tensor, begin, blocks, code, self.bytes))
        self.bytes += blocks * code.bytes

    def encode(self, values_of: Callable[[Piece], Tensor]) -> Tensor:
        """Encodes tensors of finite 32-bit values; returns (bytes,) in uint8.

        Args:
            values_of: Returns the values of a piece, such as `piece.of(tensors)`.
        """
        code = torch.empty(self.bytes, dtype=torch.uint8)
        for piece in self.pieces:
            code[piece.bytes] = piece.code.encode(values_of(piece).view(piece.blocks, -1)).view(-1)
        return code

    @staticmethod
    def decode_piece(piece: Piece, code: Tensor) -> tuple[Tensor, Tensor]:
        """Decodes one piece of the code of all tensors. Returns places, counted from the piece's first value, and
        values.

        Raises:
            ValueError: If `encode` cannot have written the code.
        """
        places, values = piece.code.decode(code[piece.bytes].view(piece.blocks, -1))
        places += torch.arange(piece.blocks)[:, None] * piece.code.values
        return places.view(-1), values.view(-1)

    def decode(self, code: Tensor) -> Iterator[tuple[Piece, Tensor, Tensor]]:
        """Yields each piece of a code of the right length with the places, counted from its first value, and the
        values there.

        Raises:
            ValueError: If `encode` cannot have written the code.
        """
        for piece in self.pieces:
            yield piece, *self.decode_piece(piece, code)
