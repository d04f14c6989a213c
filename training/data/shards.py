"""A folder of prepared shards: its content, and how it is written, described and checked.

train-00000.parquet ...      id, caption and codes of the samples; Brotli-compressed Parquet
held-out-00000.parquet ...   the same, never trained on; likewise for each of `captions.SPLITS`
codec.safetensors, codec.json, tokenizer.json
manifest.json                counts, left-out pictures by reason, size and SHA-256 of every other file
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from training.config import ModelConfig
from training.data.captions import Split
from training.errors import BadInput, reason_of
from training.storage.whole import whole_file

MANIFEST_FILE, TOKENIZER_FILE = "manifest.json", "tokenizer.json"

ROW_GROUP = 512
"""Samples of a shard that are compressed and read together."""

SCHEMA = pa.schema({"id": pa.string(), "caption": pa.string(), "codes": pa.list_(pa.uint16())})
"""Columns of a shard; `codes` are the image tokens row by row."""


class FileEntry(BaseModel):
    """One file beside the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class SplitEntry(BaseModel):
    """One split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int
    shards: tuple[str, ...]
    """Names of its files, in order."""


class Manifest(BaseModel):
    """What `prepare` made, from which input, and what it left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    input_digest: str
    """SHA-256 over captions, pictures and the settings that shape the shards."""
    image_seq_len: int
    """Codes per sample."""
    image_vocab_size: int
    text_vocab_size: int
    """Ids that the tokenizer uses."""
    codec_digest: str
    """Digest of the codec whose codes the shards contain; see `digest_of` in `training.model.codec`."""
    reconstruction_error: float
    """Mean squared error between pictures in [0, 1] and the codec's reconstructions."""
    pictures: int
    """Rows of captions.jsonl."""
    left_out: dict[str, int]
    """Reason -> number of pictures that were left out."""
    splits: dict[Split, SplitEntry]
    files: dict[str, FileEntry]

    @property
    def tokens_digest(self) -> str:
        """Identifies the meaning of the shards' numbers: 16 hex digits of a digest of image codec and tokenizer."""
        tokenizer = self.files[TOKENIZER_FILE].sha256 if TOKENIZER_FILE in self.files else ""
        return hashlib.sha256(f"{self.codec_digest} {tokenizer}".encode()).hexdigest()[:16]


def parse_manifest(text: str | bytes, *, source: str) -> Manifest:
    """A manifest from its JSON.

    Raises:
        BadInput: If it is not a manifest, or has file names that lead out of the folder.
    """
    try:
        manifest = Manifest.model_validate_json(text)
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
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder.

    Raises:
        BadInput: If it is missing or broken.
    """
    try:
        return parse_manifest((folder / MANIFEST_FILE).read_bytes(), source=str(folder / MANIFEST_FILE))
    except OSError as error:
        raise BadInput(
            f"{folder} has no prepared shards: {reason_of(error)}. Make them with `python -m training prepare`."
        ) from None


def check_fit(manifest: Manifest, model: ModelConfig, *, source: str) -> None:
    """Compares the sizes of the shards' tokens with those of a recipe's model.

    Raises:
        BadInput: If they were prepared for another model.
    """
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
    with whole_file(path) as draft:
        pq.write_table(table, draft, compression="brotli", row_group_size=ROW_GROUP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row of a shard."""

    id: str
    caption: str
    codes: np.ndarray
    """uint16, (image tokens,)."""


def read_shard(path: Path) -> Iterator[Sample]:
    """The samples of a shard in order; one row group at a time is in memory.

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
                # Views of one array: `to_pylist` would make a Python number of each code.
                codes = batch.column("codes")
                flat, offsets = codes.values.to_numpy(), codes.offsets.to_numpy()
                ids, captions = batch.column("id").to_pylist(), batch.column("caption").to_pylist()
                for row, (name, caption) in enumerate(zip(ids, captions, strict=True)):
                    yield Sample(id=name, caption=caption, codes=flat[offsets[row] : offsets[row + 1]])
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} is no readable shard: {error}.", cure="Fetch or prepare the shards again.") from None


def describe_file(path: Path) -> FileEntry:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def is_same_file(path: Path, entry: FileEntry) -> bool:
    """Whether the file is the one that the manifest describes; it is not read if its size differs."""
    try:
        return path.stat().st_size == entry.bytes and describe_file(path) == entry
    except OSError:
        return False


def check_file(path: Path, entry: FileEntry, *, source: str) -> None:
    """Compares a file with the manifest.

    Raises:
        BadInput: If it is missing or differs.
    """
    try:
        found = describe_file(path)
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error}. Prepare or fetch the shards again.") from None
    if found != entry:
        raise BadInput(
            f"{source} is broken: it has {found.bytes} bytes and SHA-256 {found.sha256[:12]}..., the manifest says "
            f"{entry.bytes} and {entry.sha256[:12]}.... Prepare or fetch the shards again."
        )
