"""A folder of prepared shards: its content, and how it is written, described and checked.

train-00000.parquet ...      the samples; Brotli-compressed Parquet
held-out-00000.parquet ...   the same, never trained on; likewise for each of `captions.SPLITS`
tokenizer.json, and for pictures codec.safetensors, codec.json
manifest.json                counts, what was left out by reason, size and SHA-256 of every other file

A sample is a picture (id, caption and codes) or a block of text (tokens, and where documents begin).

Peers read row groups of a shard, not the whole file. The manifest has the digest of each shard's footer, and the
footer has the digest of each row group.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from training.data.demo.captions import Split
from training.errors import BadInput, reason_of
from training.model.config import ModelConfig
from training.storage.whole import whole_file

MANIFEST_FILE, TOKENIZER_FILE = "manifest.json", "tokenizer.json"

ROW_GROUP = 256
"""Samples of a shard that are compressed and read together: 450 kB with 1024 codes of 13 bits each."""
DIGESTS_KEY, DIGEST_DIGITS = b"row_group_sha256", 32
"""Key of the footer's list of digests of row groups, and hex digits of each digest."""
LARGEST_MANIFEST_BYTES = 1 << 25
"""Largest manifest; enough for 500 million samples."""
LARGEST_FOOTER_BYTES = 1 << 22
MOST_GROUP_ROWS, MOST_SHARD_ROWS = 1 << 12, 1 << 24
"""Most rows of a row group, which is decoded as a whole, and of a shard."""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

SCHEMA = pa.schema({"id": pa.string(), "caption": pa.string(), "codes": pa.list_(pa.uint16())})
"""Columns of a shard of pictures; `codes` are the image tokens row by row."""
GROUP_TOKENS = 1 << 18
"""Tokens of a row group of text: 512 kB in 16 bit."""
LARGEST_GROUP_TOKENS = 1 << 22
LONGEST_BLOCK, LARGEST_TEXT_VOCABULARY = 1 << 17, 1 << 24
"""The most tokens of a block, and ids of a tokenizer."""
Kind = Literal["pictures", "text"]
KINDS: dict[Kind, str] = {"pictures": "pictures with captions", "text": "blocks of text"}
"""Kind of a set -> its samples, in the words of messages."""


class FileEntry(BaseModel):
    """One file beside the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: Annotated[int, Field(ge=0)]
    sha256: Digest


class ShardIndex(BaseModel):
    """Sizes and digest with which a peer finds a row group of a shard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: Annotated[int, Field(ge=1, le=MOST_SHARD_ROWS)]
    group_rows: Annotated[int, Field(ge=1, le=MOST_GROUP_ROWS)]
    """Rows of each row group; the last one may have fewer."""
    footer_bytes: Annotated[int, Field(ge=12, le=LARGEST_FOOTER_BYTES)]
    footer_sha256: Digest


class SplitEntry(BaseModel):
    """Entry of one split in a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: Annotated[int, Field(ge=0)]
    shards: tuple[str, ...]
    """Names of the split's shards, in order."""


class AnyManifest(BaseModel):
    """Manifest of a set: the files that `prepare` has made, and counts of the input that it has left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_digest: Digest
    """SHA-256 over the input and the settings that shape the shards."""
    left_out: dict[str, int]
    """Reason -> number of pictures or documents that were left out."""
    splits: dict[Split, SplitEntry]
    files: dict[str, FileEntry]
    index: dict[str, ShardIndex]
    """Shard -> sizes and digest by which its row groups are found."""

    @property
    def tokens_digest(self) -> str:
        """Identifies the meaning of the shards' numbers: 16 hex digits of a digest of codec and tokenizer."""
        tokenizer = self.files[TOKENIZER_FILE].sha256 if TOKENIZER_FILE in self.files else ""
        return hashlib.sha256(f"{self._meaning} {tokenizer}".encode()).hexdigest()[:16]


class Manifest(AnyManifest):
    """Manifest of a set of pictures."""

    kind: Literal["pictures"] = "pictures"
    run_id: str
    image_seq_len: Annotated[int, Field(ge=1, le=1 << 16)]
    """Codes per sample."""
    image_vocab_size: int
    text_vocab_size: int
    """Ids that the tokenizer uses."""
    codec_digest: str
    """Digest of the codec whose codes the shards contain; see `digest_of` in `training.model.codecs.codec`."""
    reconstruction_error: float
    """Mean squared error between pictures in [0, 1] and the codec's reconstructions, of a part of the pictures."""
    pictures: int
    """Rows of captions or addresses, those left out included, and other files in the folder of the pictures."""
    picture_bytes: Annotated[int, Field(ge=0)]
    """Bytes of the files of all pictures in the shards."""
    near_duplicates: Annotated[int, Field(ge=0)]
    """Pictures that were nearly the same as an earlier one, whether they were left out or not."""

    @property
    def _meaning(self) -> str:
        return self.codec_digest


class TextManifest(AnyManifest):
    """Manifest of a set of text."""

    kind: Literal["text"] = "text"
    block_length: Annotated[int, Field(ge=2, le=LONGEST_BLOCK)]
    """T, tokens of a sample."""
    vocab_size: Annotated[int, Field(ge=2, le=LARGEST_TEXT_VOCABULARY)]
    """Ids that the tokenizer uses."""
    end_of_text: Annotated[int, Field(ge=0)]
    """Id of the token between two documents."""
    documents: Annotated[int, Field(ge=0)]
    """Number of documents that were read, including those left out, and of files that are not text."""
    left_over_tokens: Annotated[int, Field(ge=0)]
    """Tokens at the end of each split that do not fill a block."""
    text_bytes: Annotated[int, Field(ge=0)]
    """Bytes in UTF-8 of all documents that were packed."""
    document_lengths: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=64)]
    """Numbers of documents with 1 token, 2 to 3, 4 to 7, and so on."""

    @property
    def tokens(self) -> int:
        """Tokens in the shards."""
        return self.block_length * sum(split.samples for split in self.splits.values())

    @property
    def token_type(self) -> np.dtype:
        """Type in which tokens are stored: 16 bits suffice for 65 536 ids."""
        return token_type(self.vocab_size)

    @property
    def codec_digest(self) -> str:
        """Digest in place of that of a picture codec: it covers the tokenizer and the id that ends a document."""
        return self.tokens_digest

    @property
    def _meaning(self) -> str:
        return f"text {self.end_of_text}"


_ANY_KIND = TypeAdapter(Annotated[Manifest | TextManifest, Field(discriminator="kind")])


def parse_manifest(text: str | bytes, *, source: str) -> Manifest | TextManifest:
    """Reads a manifest from its JSON.

    Raises:
        BadInput: If the text is not a manifest, or has file names that lead out of the folder.
    """
    try:
        manifest = _ANY_KIND.validate_json(text)
    except ValidationError as error:
        raise BadInput(
            f"{source} is no manifest of prepared shards: {error.errors()[0]['msg']}.",
            cure="Give the folder that `prepare` has written.",
        ) from None
    names = [*manifest.files, *(name for split in manifest.splits.values() for name in split.shards)]
    # The manifest may come from a server: a name such as "../x" would make the peer write outside of its cache.
    strange = [name for name in names if Path(name).name != name or name.startswith(".") or name not in manifest.files]
    if strange:
        raise BadInput(
            f"{source} names the file {strange[0]!r}, which is not one beside it.",
            cure="Fetch or prepare the shards again.",
        )
    for name, split in manifest.splits.items():
        rows = [manifest.index[shard].rows for shard in split.shards if shard in manifest.index]
        if len(rows) < len(split.shards) or sum(rows) != split.samples:
            raise BadInput(
                f"{source} names {split.samples} {name} samples, but its index of shards does not.",
                cure="Fetch or prepare the shards again.",
            )
    if manifest.kind == "text":
        _check_text(manifest, source=source)
    return manifest


def _check_text(manifest: TextManifest, *, source: str) -> None:
    """Raises BadInput if the parts of a manifest of text cannot be true together, or would fill the memory."""
    if manifest.end_of_text >= manifest.vocab_size:
        raise BadInput(
            f"{source} ends documents with an id that no tokenizer has.", cure="Fetch or prepare the shards again."
        )
    most = max((index.group_rows for index in manifest.index.values()), default=0)
    if most * manifest.block_length > LARGEST_GROUP_TOKENS:
        raise BadInput(
            f"{source} claims row groups of {most} blocks with {manifest.block_length} tokens each; "
            f"{LARGEST_GROUP_TOKENS} tokens are the most.",
            cure="Fetch or prepare the shards again.",
        )


def refuse_other_kind(manifest: Manifest | TextManifest, kind: Kind, *, source: str) -> None:
    """Raises BadInput if a set does not hold samples of this kind."""
    if manifest.kind != kind:
        raise BadInput(
            f"The shards at {source} hold {KINDS[manifest.kind]}; {KINDS[kind]} are needed here.",
            cure="Give shards of the run's kind: `prepare --images` makes those of pictures, `prepare --text` those of "
            "text.",
        )


def read_manifest(folder: Path) -> Manifest | TextManifest:
    """Reads the manifest in a folder.

    Raises:
        BadInput: If the manifest is missing or broken.
    """
    try:
        return parse_manifest((folder / MANIFEST_FILE).read_bytes(), source=str(folder / MANIFEST_FILE))
    except OSError as error:
        raise BadInput(
            f"{folder} has no prepared shards: {reason_of(error)}. Make them with `python -m training prepare`."
        ) from None


def manifest_or_none(content: bytes | None, *, source: str) -> Manifest | TextManifest | None:
    """Reads the manifest of a set; None if there is none, or it cannot be read."""
    try:
        return None if content is None else parse_manifest(content, source=source)
    except BadInput:
        return None


def check_fit(manifest: Manifest | TextManifest, model: ModelConfig, *, source: str) -> None:
    """Compares the sizes of the shards' tokens with those of a recipe's text-to-image model.

    Raises:
        BadInput: If the shards were prepared for another model, or hold no pictures.
    """
    refuse_other_kind(manifest, "pictures", source=source)
    for what, ours, theirs in (
        ("image_grid squared", model.image_seq_len, manifest.image_seq_len),
        ("image_vocab_size", model.image_vocab_size, manifest.image_vocab_size),
    ):
        if ours != theirs:
            raise BadInput(
                f"The shards at {source} have {what} {theirs}; the recipe's model has {ours}.",
                cure="Prepare the shards again with the run's recipe, or join with theirs.",
            )
    if manifest.text_vocab_size > model.text_vocab_size:
        raise BadInput(
            f"The tokenizer of {source} has {manifest.text_vocab_size} ids, the recipe's model has room for "
            f"{model.text_vocab_size}.",
            cure="Prepare the shards again with the run's recipe, or join with theirs.",
        )


def check_text_fit(manifest: Manifest | TextManifest, *, block_length: int, vocab_size: int, source: str) -> None:
    """Compares the sizes of the shards' tokens with those of a language model.

    Args:
        manifest: The set's manifest.
        block_length: Tokens of a sample for which the model is made.
        vocab_size: Ids for which the model has room.
        source: Folder or address of the set, for messages.

    Raises:
        BadInput: If the shards were prepared for another model, or hold no text.
    """
    refuse_other_kind(manifest, "text", source=source)
    if manifest.block_length != block_length or manifest.vocab_size > vocab_size:
        raise BadInput(
            f"The shards at {source} have blocks of {manifest.block_length} tokens out of {manifest.vocab_size} ids; "
            f"the recipe's model takes {block_length} tokens and has room for {vocab_size} ids.",
            cure="Prepare the shards again for the run's model, or join with theirs.",
        )


def token_type(vocab_size: int) -> np.dtype:
    """The smallest type in which ids are stored; little-endian, as `text_schema` has them."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def text_schema(block_length: int, kind: np.dtype) -> pa.Schema:
    """Columns of a shard of text.

    `tokens` has the ids of a block as little-endian numbers; `starts` has one bit for each of them, the highest of a
    byte first, which says whether a document begins there. Both columns have a fixed length, so a hostile shard cannot
    claim another length. As bytes, tokens take 8 % less than as a list of numbers after Brotli, and half of the time to
    read (4.1 million tokens of code and documentation with 30 000 ids).
    """
    return pa.schema({"tokens": pa.binary(block_length * kind.itemsize), "starts": pa.binary(-(-block_length // 8))})


def write_shard(path: Path, *, ids: list[str], captions: list[str], codes: np.ndarray) -> None:
    """Writes one shard, whole or not at all.

    Args:
        path: The file to write.
        ids: n names.
        captions: n captions.
        codes: uint16, (n, image tokens).
    """
    n, length = codes.shape
    offsets = pa.array(np.arange(0, (n + 1) * length, length, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(codes.reshape(-1), type=pa.uint16()))
    table = pa.table([pa.array(ids, pa.string()), pa.array(captions, pa.string()), lists], schema=SCHEMA)
    # Only codes repeat: a dictionary packs them into as many bits as the codebook needs.
    _write(path, table, ROW_GROUP, dictionary=["codes.list.element"])


def write_text_shard(path: Path, *, tokens: np.ndarray, starts: np.ndarray) -> None:
    """Writes one shard of text, whole or not at all.

    Args:
        path: The file to write.
        tokens: (n, T), of a `token_type`.
        starts: bool (n, T), whether a document begins there.
    """
    n, length = tokens.shape
    schema = text_schema(length, tokens.dtype)
    packed = np.packbits(starts, axis=1)
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(field.type, n, [None, pa.py_buffer(np.ascontiguousarray(values))])
        for field, values in zip(schema, (tokens, packed), strict=True)
    ]
    table = pa.table(columns, schema=schema)
    _write(path, table, min(max(GROUP_TOKENS // length, 1), MOST_GROUP_ROWS), dictionary=False)


def _write(path: Path, table: pa.Table, group_rows: int, *, dictionary: list[str] | bool) -> None:
    with whole_file(path) as draft, pa.OSFile(str(draft), "wb") as file:
        settings = {"compression": "brotli", "use_dictionary": dictionary, "write_statistics": False}
        with pq.ParquetWriter(file, table.schema, **settings) as writer:
            ends = [file.tell()]
            for start in range(0, table.num_rows, group_rows):
                writer.write_table(table.slice(start, group_rows))
                ends.append(file.tell())
            digests = _digests(draft, ends)
            writer.add_key_value_metadata({DIGESTS_KEY: " ".join(digests).encode()})


def _digests(path: Path, ends: list[int]) -> list[str]:
    """Computes digests of the parts of a file between each of `ends` and the next."""
    with path.open("rb") as file:
        file.seek(ends[0])
        return [group_digest(file.read(end - start)) for start, end in pairwise(ends)]


def group_digest(content: bytes) -> str:
    """Digest of a row group's bytes."""
    return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]


def describe_shard(path: Path) -> ShardIndex:
    """Reads the index of a shard that `write_shard` or `write_text_shard` has written."""
    metadata = pq.read_metadata(path)
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little") + 8
        file.seek(-size, os.SEEK_END)
        digest = hashlib.sha256(file.read()).hexdigest()
    rows = metadata.row_group(0).num_rows
    return ShardIndex(rows=metadata.num_rows, group_rows=rows, footer_bytes=size, footer_sha256=digest)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row of a shard."""

    id: str
    caption: str
    codes: np.ndarray
    """uint16, (image tokens,)."""


def read_shard(path: Path) -> Iterator[Sample]:
    """Yields the samples of a shard in order; memory holds one row group at a time.

    Raises:
        BadInput: If the file is not a shard.
    """
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(SCHEMA):
                raise BadInput(
                    f"{path} has the columns {file.schema_arrow.names}; a shard has {SCHEMA.names}.",
                    cure="Fetch or prepare the shards again.",
                )
            for batch in file.iter_batches(batch_size=ROW_GROUP):
                # Views of one array, since `to_pylist` would make a Python number of each code.
                codes = batch.column("codes")
                flat, offsets = codes.values.to_numpy(), codes.offsets.to_numpy()
                ids, captions = batch.column("id").to_pylist(), batch.column("caption").to_pylist()
                for row, (name, caption) in enumerate(zip(ids, captions, strict=True)):
                    yield Sample(id=name, caption=caption, codes=flat[offsets[row] : offsets[row + 1]])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no readable shard: {error}.", cure="Fetch or prepare the shards again.") from None


def describe_file(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def is_same_file(path: Path, entry: FileEntry) -> bool:
    """Returns whether the file is the one that the manifest describes; reads it only if its size agrees."""
    try:
        return path.stat().st_size == entry.bytes and describe_file(path) == entry
    except OSError:
        return False


def check_file(path: Path, entry: FileEntry, *, source: str) -> None:
    """Compares a file with the manifest.

    Raises:
        BadInput: If the file is missing or differs.
    """
    try:
        found = describe_file(path)
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error}. Prepare or fetch the shards again.") from None
    _compare(found, entry, source=source)


def check_content(content: bytes, entry: FileEntry, *, source: str) -> None:
    """Compares a file's content with the manifest; raises BadInput if it differs."""
    _compare(FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()), entry, source=source)


def _compare(found: FileEntry, entry: FileEntry, *, source: str) -> None:
    if found != entry:
        raise BadInput(
            f"{source} is broken: it has {found.bytes} bytes and SHA-256 {found.sha256[:12]}..., the manifest says "
            f"{entry.bytes} and {entry.sha256[:12]}.... Prepare or fetch the shards again."
        )
