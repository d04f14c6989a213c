"""Packs documents into blocks of one length, one document after the other, with an end-of-text token between them.

Nothing is padded: a document that does not fit goes on in the next block. So that attention across documents can be
cut, a block also says at which of its positions a document begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """Blocks of T tokens."""

    tokens: np.ndarray
    """(blocks, T), in the type of the packer."""
    starts: np.ndarray
    """bool (blocks, T): whether a document begins at this token."""

    def divided(self, places: Sequence[int]) -> tuple[Packed, Packed]:
        """Divides the blocks into those that are not at these places, and those that are."""
        chosen = np.isin(np.arange(len(self.tokens)), places)
        others, some = (Packed(tokens=self.tokens[of], starts=self.starts[of]) for of in (~chosen, chosen))
        return others, some


@dataclass(kw_only=True)
class Packer:
    """Packs the documents of one split, in the order in which they are added.

    A packer made from another packer's `rest` continues its blocks as if there had been no interruption.
    """

    block_length: int
    """T, tokens of a block."""
    end_of_text: int
    """Id of the token between two documents; it belongs to the first document."""
    kind: np.dtype
    """Type of the tokens."""
    is_open: bool = False
    """True if the last document still lacks its end of text."""
    parts: list[np.ndarray] = field(default_factory=list)
    """Tokens that `take` has not returned yet."""
    starts: list[int] = field(default_factory=list)
    """Places in `parts` at which documents begin, counted from the first token."""
    size: int = 0
    """Tokens in `parts`."""
    length: int = 0
    """Tokens of the last document, as far as it was added."""
    finished: list[int] = field(default_factory=list)
    """Tokens of each finished document since this packer was made."""

    def add(self, ids: np.ndarray, *, begins: bool) -> None:
        """Adds a document, or more of the last one."""
        if begins:
            if self.is_open:
                self._append(np.array([self.end_of_text]))
                self.finished.append(self.length)
            self.starts.append(self.size)
            self.length = 0
        self.is_open = True
        self.length += len(ids)
        self._append(ids)

    @property
    def blocks(self) -> int:
        """Blocks that are full."""
        return self.size // self.block_length

    def take(self) -> Packed:
        """Removes the full blocks from the packer and returns them."""
        full = self.blocks * self.block_length
        tokens = np.concatenate([np.zeros(0, self.kind), *self.parts])
        starts = np.zeros(full, dtype=bool)
        starts[[at for at in self.starts if at < full]] = True
        self.parts, self.size = [tokens[full:].copy()], self.size - full  # a view would keep all of them
        self.starts = [at - full for at in self.starts if at >= full]
        shape = (-1, self.block_length)
        return Packed(tokens=tokens[:full].reshape(shape), starts=starts.reshape(shape))

    @property
    def rest(self) -> dict[str, object]:
        """State of the packer for `from_rest`, as JSON; fewer than T tokens after `take`."""
        tokens = [int(one) for part in self.parts for one in part]
        return {"tokens": tokens, "starts": list(self.starts), "is_open": self.is_open, "length": self.length}

    @classmethod
    def from_rest(cls, rest: dict, **settings: object) -> Packer:
        """Makes a packer from the state of another; `settings` are the first three fields."""
        packer = cls(is_open=rest["is_open"], starts=list(rest["starts"]), length=rest["length"], **settings)
        packer._append(np.array(rest["tokens"], dtype=np.int64))
        return packer

    def _append(self, ids: np.ndarray) -> None:
        self.parts.append(ids.astype(self.kind))
        self.size += len(ids)
