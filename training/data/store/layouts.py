"""Columns of a block of shards, their largest sizes, and its samples once they are decoded.

Data from a server are not trusted. `room` limits the bytes of a column before it is decoded, and `rows_of` refuses
samples that do not match the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from training.data.store.shards import SCHEMA, Manifest, TextManifest, text_schema

LARGEST_CAPTION_BYTES = 4096
"""Largest caption in UTF-8. `prepare` leaves out longer ones, and the captions of a block are at most this long on
average."""
LEAST_CAPTION_CHARACTERS, LARGEST_ASPECT_RATIO = 3, 2.0
"""`prepare` leaves out pictures with shorter captions, and those that are longer or wider than this."""
BYTES_PER_CODE = 6
"""Most bytes of a code in a page: four for the code, two that say to which sample it belongs."""
PAGE_ROOM_BYTES = 1 << 18
"""Further bytes of a column's pages, for dictionaries and headers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The pictures of a block."""

    captions: list[str]
    codes: np.ndarray
    """uint16 (rows, image tokens)."""

    def __len__(self) -> int:
        return len(self.captions)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRows:
    """The blocks of text of a block of shards."""

    tokens: np.ndarray
    """(rows, T), in the manifest's type."""
    starts: np.ndarray
    """uint8 (rows, T / 8 rounded up): bits that say where documents begin; see `text_schema`."""

    def __len__(self) -> int:
        return len(self.tokens)


class Layout(Protocol):
    """The columns of a set's shards."""

    schema: pa.Schema
    columns: tuple[str, ...]
    """Paths of the columns that are read."""
    shared: tuple[str, ...]
    """Columns of texts that samples share in memory."""

    def room(self, rows: int) -> dict[str, tuple[int, int]]:
        """Returns for each column how many values `rows` samples have, and the most bytes of its pages once
        decompressed."""

    def rows_of(self, table: pa.Table, rows: int) -> Rows | TextRows:
        """Reads the samples of a table; raises ValueError if they are not `rows` samples that match the manifest."""


def layout_of(manifest: Manifest | TextManifest) -> Layout:
    """Returns the layout of a set's shards."""
    return TextLayout(manifest) if manifest.kind == "text" else PictureLayout(manifest)


class PictureLayout(Layout):
    """Layout of shards of pictures: captions and codes."""

    schema = SCHEMA
    columns, shared = ("caption", "codes.list.element"), ("caption",)

    def __init__(self, manifest: Manifest):
        self._manifest = manifest

    def room(self, rows: int) -> dict[str, tuple[int, int]]:
        codes = rows * self._manifest.image_seq_len
        caption, code = self.columns
        return {
            caption: (rows, rows * LARGEST_CAPTION_BYTES + PAGE_ROOM_BYTES),
            code: (codes, BYTES_PER_CODE * codes + 4 * self._manifest.image_vocab_size + PAGE_ROOM_BYTES),
        }

    def rows_of(self, table: pa.Table, rows: int) -> Rows:
        manifest = self._manifest
        captions, codes = (table.column(name).combine_chunks() for name in ("caption", "codes"))
        flat = codes.values
        if captions.null_count or codes.null_count or flat.null_count:
            raise ValueError("a caption or codes are missing")
        # Not `to_numpy`, which imports pandas: a second of time and 60 MB.
        offsets = np.from_dlpack(codes.offsets)
        if len(captions) != rows or (np.diff(offsets) != manifest.image_seq_len).any():
            raise ValueError(f"it does not have {rows} samples of {manifest.image_seq_len} codes")
        numbers = np.from_dlpack(flat)[offsets[0] : offsets[-1]]
        if numbers.max(initial=0) >= manifest.image_vocab_size:
            raise ValueError(f"it has the code {numbers.max()}; the codebook has {manifest.image_vocab_size}")
        words = captions.dictionary.to_pylist()
        return Rows(
            captions=[words[at] for at in np.from_dlpack(captions.indices).tolist()],
            codes=numbers.reshape(rows, manifest.image_seq_len),
        )


class TextLayout(Layout):
    """Layout of shards of text: tokens, and the starts of documents."""

    columns, shared = ("tokens", "starts"), ()

    def __init__(self, manifest: TextManifest):
        self._manifest = manifest
        self.schema = text_schema(manifest.block_length, manifest.token_type)

    def room(self, rows: int) -> dict[str, tuple[int, int]]:
        widths = {name: self.schema.field(name).type.byte_width for name in self.columns}
        return {name: (rows, rows * width + PAGE_ROOM_BYTES) for name, width in widths.items()}

    def rows_of(self, table: pa.Table, rows: int) -> TextRows:
        tokens, starts = (self._bytes(table.column(name).combine_chunks(), rows) for name in self.columns)
        numbers = tokens.reshape(-1).view(self._manifest.token_type).reshape(rows, -1)
        if numbers.max(initial=0) >= self._manifest.vocab_size:
            raise ValueError(f"it has the id {numbers.max()}; the tokenizer has {self._manifest.vocab_size}")
        return TextRows(tokens=numbers, starts=starts)

    def _bytes(self, column: pa.FixedSizeBinaryArray, rows: int) -> np.ndarray:
        """Bytes of a column, uint8 (rows, width)."""
        if column.null_count or len(column) != rows:
            raise ValueError(f"it does not have {rows} blocks of {self._manifest.block_length} tokens")
        width = column.type.byte_width
        content = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        return content[column.offset * width : (column.offset + rows) * width].reshape(rows, width)
